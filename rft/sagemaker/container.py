"""The entry point of the container: one training job, from its archive to its last upload. docs/sagemaker.md

    python -m rft.sagemaker.container [train] [--root /opt/ml] [--checkout DIR]

What it reads and writes below the root is SageMaker's: input/, output/. The run itself is in runs/JOB there, and in S3
while it trains, where RFT_SAGEMAKER_S3 says so.
"""

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from rft.runs.launched import FILE
from rft.sagemaker import cluster, hosts, snapshots
from rft.sagemaker.aws import AwsError, client, message
from rft.sagemaker.copies import Copies
from rft.sagemaker.ends import (
    SAVE_SECONDS,
    STOPPED_BY_RULE,
    Job,
    complete,
    failed,
    reason_of,
    seconds_left,
    told_to_stop,
)
from rft.sagemaker.jobs import S3_VARIABLE, SOURCE
from rft.sagemaker.launch import Launcher, Stop, environment_of, say
from rft.sagemaker.notes import Head
from rft.sagemaker.places import fetch, parse
from rft.sagemaker.source import COMMAND

if TYPE_CHECKING:
    from botocore.client import BaseClient

ROOT = Path(__file__).resolve().parents[2]
S3_WORD = re.compile(r"s3://[^\s,]+")
LOOK = 2.0  # seconds between two looks for a new checkpoint
LAST_SECONDS = 600.0  # for which the last upload is tried
LOST_SECONDS = 60.0  # where the run has failed: on several hosts, one may be gone that has a part of it


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 where the run is complete or a rule has stopped it, 143 where the job was told to stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="what SageMaker says behind the entry point; nothing else is done")
    parser.add_argument("--root", type=Path, default=Path("/opt/ml"))
    parser.add_argument("--checkout", type=Path, default=ROOT, help="of the image")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="replace")  # a character that a log cannot hold must not end the reader of a launcher
    url = os.environ.get(S3_VARIABLE)
    place = parse(url) if url else None
    # Named by its folder, which a job that goes on with this run shares with this one.
    run_dir = args.root.resolve() / "runs" / (Path(place.key).name if place else "local")
    job = Job(args.root, args.checkout.resolve(), run_dir, place)
    stop = Stop(functools.partial(told_to_stop, job))
    try:
        command = unpack(job)
        say(f"{command['launcher']} of commit {command['commit'][:12]}, to {run_dir}")
        s3 = client("s3") if job.place or S3_WORD.search(json.dumps(command)) else None
        told = hosts.read(job.root)
        if len(told.names) == 1:
            return run(job, command, s3, stop)
        if not job.place:
            found, wanted = f"{', '.join(told.names)}, and no {S3_VARIABLE}", "a folder in S3, by which they meet"
            raise ValueError(message("several hosts without S3", found, wanted, "submit without --local"))
        if told.here != told.head:
            return cluster.work(s3, job, told, functools.partial(bring, job, command, s3), stop)
        return run_on_several(job, command, Head(s3, job.place, told), stop)
    except (AwsError, ValueError, OSError, tarfile.TarError) as error:
        return failed(job, f"error: {error}", 1)


def unpack(job: Job) -> dict:
    """Put the archive's commit where the image's was; the submission's `launcher`, `options`, `environment`, `commit`.

    Raises:
        ValueError: no archive, or a checkout that is somebody's work.
    """
    file = job.root / "input/data" / SOURCE / "source.tar.gz"
    if not file.is_file():
        raise ValueError(
            message("no source", f"no {file}", "the archive of a submission", "bash launch/sagemaker.sh submit …")
        )
    if (job.checkout / ".git").exists():
        wanted = "the image's, which has none: its files are replaced"
        raise ValueError(message("this is a clone", f"{job.checkout}/.git", wanted, "--checkout with another folder"))
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        for top in {member.name.partition("/")[0] for member in members} - {"", ".", ".."}:
            if (job.checkout / top).is_dir():
                shutil.rmtree(job.checkout / top)  # of files that this commit has no more
        archive.extractall(job.checkout, members, filter="data")
    return json.loads((job.checkout / COMMAND).read_text())


def run(job: Job, command: dict, s3: "BaseClient | None", stop: Stop) -> int:
    """Bring what the command names and what the run had saved, train, upload; the exit status."""
    words, given = bring(job, command, s3)
    restored, passed_over = snapshots.restore(s3, job.run, job.place) if job.place else (None, [])
    for each in passed_over:
        say(f"a snapshot is passed over: {each}")
    if restored:
        say(f"snapshot {restored} is restored")
    return train(job, begin(job, command, words), given, Copies(s3, job, snapshots.tag_of(job.run)), stop)


def run_on_several(job: Job, command: dict, head: Head, stop: Stop) -> int:
    """As `run`, by the head of several hosts, which tells the others how the run has ended."""
    try:
        restored = cluster.meet(head, job)
        words, given = bring(job, command, head.s3)
        if restored:
            snapshots.bring(head.s3, job.run, job.place, restored)
            say(f"snapshot {restored} is restored")
        node, driver = cluster.ray_of(head, job)
        try:
            copies = Copies(head.s3, job, snapshots.tag_of(job.run), head)
            return train(job, [*driver, *begin(job, command, words)], given, copies, stop)
        finally:
            node.stop(cluster.NODE_SECONDS)
    except (AwsError, ValueError, OSError) as error:
        cluster.tell_outcome(head, 1, str(error))
        raise


def bring(job: Job, command: dict, s3: "BaseClient | None") -> tuple[list[str], dict[str, str]]:
    """Options and variables of the submission, with copies in place of what they name in S3."""
    words = [brought(word, s3, job.cache) for word in command["options"]]
    return words, {name: brought(value, s3, job.cache) for name, value in command["environment"].items()}


def begin(job: Job, command: dict, words: list[str]) -> list[str]:
    """The command that goes on with a run that is restored, or begins it."""
    if resumes(job):
        return ["bash", "launch/resume.sh", str(job.run)]
    return ["bash", command["launcher"], *words]


def resumes(job: Job) -> bool:
    """Whether the run has begun before."""
    return (job.run / FILE).is_file()


def train(job: Job, command: list[str], given: dict[str, str], copies: Copies, stop: Stop) -> int:
    """Run a launcher to its end, upload what it saves, say how it has ended; the exit status."""
    if resumes(job):
        given = {}  # a launcher may have given one a value of its own; a resume goes by the run's record
    launcher = Launcher(command, job.checkout, environment_of(given, job.run, job.cache, SAVE_SECONDS), stop)
    while not launcher.ended(LOOK):
        copies.look()
    status = launcher.process.returncode
    with contextlib.suppress(OSError):  # a full disk, or no run; neither may cost the last upload
        shutil.copy(job.checkout / COMMAND, job.run)  # run.json has no commit, as there is no git
    is_over = status in (0, STOPPED_BY_RULE)
    is_whole = copies.last(seconds_left(stop, LAST_SECONDS if is_over or not copies.head else LOST_SECONDS))
    if is_over and not is_whole:
        why = "error: the run has ended, and its last upload failed"
        cluster.tell_outcome(copies.head, 1, why)
        return failed(job, why, 1)
    if is_over:
        reason = reason_of(job, status)
        cluster.tell_outcome(copies.head, status, reason)
        return complete(job, status, reason)
    if stop.at is None:
        why = launcher.said_last() or f"error: the launcher has ended with status {status}"
        cluster.tell_outcome(copies.head, status, why)
        return failed(job, why, status)
    say(f"the launcher's status was {status}")
    cluster.tell_outcome(copies.head, cluster.STOPPED, "the job was told to stop")
    return told_to_stop(job, stop)


def brought(text: str, s3: "BaseClient | None", cache: Path) -> str:
    """A word with the place of a copy for each `s3://…` in it."""
    return S3_WORD.sub(lambda found: str(fetch(s3, found[0], cache)), text)


if __name__ == "__main__":
    sys.exit(main())
