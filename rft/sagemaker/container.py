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
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.record.files import replace_json, replace_text
from rft.runs.ending import ending
from rft.runs.launched import FILE
from rft.sagemaker import snapshots
from rft.sagemaker.aws import AwsError, client, message
from rft.sagemaker.jobs import S3_VARIABLE, SOURCE
from rft.sagemaker.launch import LONGEST, Launcher, Stop, environment_of, say
from rft.sagemaker.places import Place, fetch, parse
from rft.sagemaker.source import COMMAND

if TYPE_CHECKING:
    from botocore.client import BaseClient

ROOT = Path(__file__).resolve().parents[2]
S3_WORD = re.compile(r"s3://[^\s,]+")
STOPPED_BY_RULE = 10  # statuses of launchers
GRACE = 120  # seconds that SageMaker gives after SIGTERM
SAVE_SECONDS = 90  # of them the launcher's
LOOK = 2.0  # seconds between two looks for a new checkpoint
AGAIN = 30.0  # until a failed upload is tried again
LAST_SECONDS = 600.0  # for which the last upload is tried


class Job(NamedTuple):
    """A job of this container.

    Args:
        root: /opt/ml.
        checkout: where the archive is unpacked; the image's, which has the environment.
        run: the run's directory.
        place: the job's folder in S3; None where nothing is uploaded.
    """

    root: Path
    checkout: Path
    run: Path
    place: Place | None

    @property
    def cache(self) -> Path:
        return self.root / "cache"


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
        return run(job, command, s3, stop)
    except (AwsError, ValueError, OSError, tarfile.TarError) as error:
        return failed(job, f"error: {error}", 1)


def unpack(job: Job) -> dict:
    """Put the archive's commit where the image's was; the submission's `launcher`, `options`, `environment`, `commit`.

    Raises:
        ValueError: no archive, several hosts, or a checkout that is somebody's work.
    """
    hosts = job.root / "input/config/resourceconfig.json"
    names = json.loads(hosts.read_text())["hosts"] if hosts.is_file() else []
    if len(names) > 1:
        wanted = "one: a run's processes write to one disk, which SageMaker's hosts do not share"
        raise ValueError(message("several hosts", ", ".join(names), wanted, "submit with --instance-count 1"))
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
    words = [brought(word, s3, job.cache) for word in command["options"]]
    given = {name: brought(value, s3, job.cache) for name, value in command["environment"].items()}
    restored, passed_over = snapshots.restore(s3, job.run, job.place) if job.place else (None, [])
    for each in passed_over:
        say(f"a snapshot is passed over: {each}")
    if restored:
        say(f"snapshot {restored} is restored")
    resumes = (job.run / FILE).is_file()
    if resumes:
        given = {}  # a launcher may have given one a value of its own; a resume goes by the run's record
    begin = ["bash", "launch/resume.sh", str(job.run)] if resumes else ["bash", command["launcher"], *words]
    copies = Copies(s3, job, snapshots.tag_of(job.run))  # before there can be another one
    launcher = Launcher(begin, job.checkout, environment_of(given, job.run, job.cache, SAVE_SECONDS), stop)
    while not launcher.ended(LOOK):
        copies.look()
    status = launcher.process.returncode
    with contextlib.suppress(OSError):  # a full disk, or no run; neither may cost the last upload
        shutil.copy(job.checkout / COMMAND, job.run)  # run.json has no commit, as there is no git
    is_whole = copies.last(GRACE - 5 - (time.monotonic() - stop.at) if stop.at is not None else LAST_SECONDS)
    if status in (0, STOPPED_BY_RULE) and not is_whole:
        return failed(job, "error: the run has ended, and its last upload failed", 1)
    if status in (0, STOPPED_BY_RULE):
        return complete(job, status)
    if stop.at is None:
        return failed(job, launcher.said_last() or f"error: {begin[1]} ended with status {status}", status)
    say(f"the launcher's status was {status}")
    return told_to_stop(job, stop)


def told_to_stop(job: Job, stop: Stop) -> int:
    """143, or 130 after SIGINT, once SageMaker has had the time to end this container."""
    say("unfinished, as this job was told to stop")
    if job.place:
        # AWS does not say what it makes of a status within these seconds; a container that it ends itself has none.
        say("waiting to be ended by SageMaker")
        time.sleep(max(0.0, stop.at + GRACE + 60 - time.monotonic()))
    return 128 + stop.number


def brought(text: str, s3: "BaseClient | None", cache: Path) -> str:
    """A word with the place of a copy for each `s3://…` in it."""
    return S3_WORD.sub(lambda found: str(fetch(s3, found[0], cache)), text)


class Copies:
    """The snapshots of a run while it trains. What fails is said and tried again, and ends no training."""

    def __init__(self, s3: "BaseClient | None", job: Job, restored: str | None) -> None:
        self.s3, self.job, self.newest, self.not_before = s3, job, restored, 0.0

    def look(self) -> None:
        """Write a snapshot where there is a checkpoint that has none."""
        tag = snapshots.tag_of(self.job.run)
        if self.job.place and tag and tag != self.newest and time.monotonic() >= self.not_before:
            if self._write(tag, tag):
                self.newest = tag
            else:
                self.not_before = time.monotonic() + AGAIN

    def last(self, seconds: float) -> bool:
        """Write the run as it has ended, tried for so long; whether that was done."""
        if not self.job.place:
            return True
        tag, until = snapshots.tag_of(self.job.run), time.monotonic() + seconds
        while not self._write(f"{tag or 'start'}-ended", tag):
            if time.monotonic() > until:
                return False
            time.sleep(min(AGAIN, seconds / 10) if seconds > 0 else 0)
        return True

    def _write(self, name: str, tag: str | None) -> bool:
        try:
            count = snapshots.upload(self.s3, self.job.run, self.job.place, name, tag)
        except Exception as error:  # whatever it is, training goes on
            say(f"warning: snapshot {name} was not written and is tried again: {'; '.join(str(error).split(chr(10)))}")
            return False
        say(f"snapshot {name}: {count} files in {self.job.place}/snapshots/{name}")
        return True


def complete(job: Job, status: int) -> int:
    """0, with the reason where a rule has stopped the run."""
    manifest = job.run / "run.json"
    stopped = json.loads(manifest.read_text()).get("stopped", {}) if manifest.is_file() else {}
    reason = f"{ending(stopped)[1]}: {stopped.get('reason', '')}".rstrip(": ") if status else "the run is complete"
    say(reason)
    replace_json(job.root / "output/data/outcome.json", {"status": status, "reason": reason})
    return 0


def failed(job: Job, why: str, status: int) -> int:
    """The exit status of a failure, and why, where SageMaker reads it."""
    why = why[:LONGEST]
    print(why, file=sys.stderr, flush=True)
    replace_text(job.root / "output/failure", why)
    return status if 0 < status < 126 else 1


if __name__ == "__main__":
    sys.exit(main())
