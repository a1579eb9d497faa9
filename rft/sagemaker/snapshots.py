"""What a run has saved, in S3 while it trains: whole snapshots, each with a marker that is written last.

A snapshot is `snapshots/NAME/…` below the job's folder and counts once `committed/NAME.json` is there, which lists its
files with their sizes. A job that is stopped in the middle of a copy leaves one that does not count, or one of whose
files some are missing: the one before it is taken. Of a job on several hosts each writes what it has of the same
snapshot (`write`), and one the marker of all (`commit`).
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rft.sagemaker.aws import AwsError, message, told
from rft.sagemaker.places import Place, download, objects

if TYPE_CHECKING:
    from botocore.client import BaseClient

STATES = "checkpoints/_actor"  # of a run: DeepSpeed's, a folder each
LATEST = f"{STATES}/latest"  # the name of the newest complete one
LEFT_OUT = re.compile(r"(^|/)(ray_logs|start_\d+|slurm)/|\.partial$|(^|/)\.")


def tag_of(run: Path) -> str | None:
    """The newest complete checkpoint of a run, or None."""
    latest = run / LATEST
    return latest.read_text().strip() if latest.is_file() else None


def files_of(run: Path, tag: str | None) -> list[str]:
    """What a run needs to be resumed from the checkpoint `tag`, and to be read, as names relative to it.

    `LATEST` is not among them: by now it may name a newer checkpoint. Nor are other checkpoints.
    """
    found = []
    for file in sorted(run.rglob("*")):
        name = file.relative_to(run).as_posix()
        is_other = name.startswith(f"{STATES}/") and not name.startswith(f"{STATES}/{tag}/")
        if file.is_file() and not file.is_symlink() and not is_other and not LEFT_OUT.search(name):
            found.append(name)
    return found


def upload(s3: "BaseClient", run: Path, job: Place, name: str, checkpoint: str | None) -> int:
    """Write a snapshot of a run of one host; returns its number of files.

    Args:
        name: the snapshot's; an older one of that name does not count from here on.
        checkpoint: the one that it holds; none with None.

    Raises:
        AwsError: it was not written whole; it does not count then.
        OSError: a file has gone meanwhile, as checkpoints do that newer ones replace.
    """
    names = of_checkpoint(run, checkpoint)
    begin(s3, job, name)
    write(s3, run, job, name, names)
    return commit(s3, job, name, names, checkpoint)


def of_checkpoint(run: Path, checkpoint: str | None) -> list[str]:
    """`files_of`, of a checkpoint of which this disk has files. Raises AwsError where it has none."""
    names = files_of(run, checkpoint)
    if checkpoint and not any(each.startswith(f"{STATES}/{checkpoint}/") for each in names):
        raise AwsError(message("a checkpoint is gone", f"no {checkpoint} in {run / STATES}", "its files", "the newest"))
    return names


def begin(s3: "BaseClient", job: Place, name: str) -> None:
    """From here on an older snapshot of this name does not count."""
    marker = job / f"committed/{name}.json"
    with told():
        s3.delete_object(Bucket=marker.bucket, Key=marker.key)


def write(s3: "BaseClient", run: Path, job: Place, name: str, names: list[str]) -> None:
    """Copy files of a run into a snapshot. Raises AwsError or OSError, as `upload`."""
    folder = job / f"snapshots/{name}"
    with told():
        for each in names:
            s3.upload_file(str(run / each), folder.bucket, (folder / each).key)


def commit(s3: "BaseClient", job: Place, name: str, names: list[str], checkpoint: str | None) -> int:
    """Make a snapshot count that has files of these names; returns how many. Raises AwsError where one is missing."""
    folder, marker, names = job / f"snapshots/{name}", job / f"committed/{name}.json", list(names)
    if checkpoint:
        with told():
            s3.put_object(Bucket=folder.bucket, Key=(folder / LATEST).key, Body=checkpoint.encode())
        names.append(LATEST)
    # Files that grow are as long as they were when they were read.
    there = objects(s3, folder)
    if missing := [each for each in names if each not in there]:
        raise AwsError(message("a snapshot is not whole", f"no {missing[0]} in {folder}", "what was written", "again"))
    with told():
        sizes = json.dumps({each: there[each]["Size"] for each in names}).encode()
        s3.put_object(Bucket=marker.bucket, Key=marker.key, Body=sizes)
    return len(names)


def restore(s3: "BaseClient", run: Path, job: Place) -> tuple[str | None, list[str]]:
    """Put the newest whole snapshot with a checkpoint where the run was.

    Returns:
        Its name, or None where there is none; and what was passed over, in words.
    """
    name, passed_over = newest(s3, job)
    if name:
        bring(s3, run, job, name)
    return name, passed_over


def newest(s3: "BaseClient", job: Place) -> tuple[str | None, list[str]]:
    """The newest whole snapshot with a checkpoint, or None; and what was passed over, in words."""
    markers = objects(s3, job / "committed")
    begun = {name.partition("/")[0] for name in objects(s3, job / "snapshots")}
    unmarked = sorted(begun - {file.removesuffix(".json") for file in markers}, key=in_order, reverse=True)
    passed_over = [f"{name}: its copy was not finished" for name in unmarked]
    for file in sorted(markers, key=lambda n: (number(n), markers[n]["LastModified"]), reverse=True):
        name = file.removesuffix(".json")
        sizes = sizes_of(s3, job, name)
        if LATEST not in sizes:
            continue  # of a run that had saved nothing: to be read
        there = {each: entry["Size"] for each, entry in objects(s3, job / f"snapshots/{name}").items()}
        if missing := [each for each, size in sizes.items() if there.get(each) != size]:
            passed_over.append(f"{name}: {len(missing)} of {len(sizes)} files are missing or cut, such as {missing[0]}")
            continue
        return name, passed_over
    return None, passed_over


def sizes_of(s3: "BaseClient", job: Place, name: str) -> dict[str, int]:
    """The files of a snapshot that counts, with their sizes."""
    marker = job / f"committed/{name}.json"
    with told():
        return json.loads(s3.get_object(Bucket=marker.bucket, Key=marker.key)["Body"].read())


def bring(s3: "BaseClient", run: Path, job: Place, name: str) -> None:
    """Copy a snapshot that counts to where the run was."""
    for each in sizes_of(s3, job, name):
        download(s3, job / f"snapshots/{name}" / each, run / each)


def number(name: str) -> int:
    """The step in a snapshot's name; -1 without one."""
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else -1


def in_order(name: str) -> tuple[int, str]:
    """A key by which names of snapshots sort: of a step, the one at the run's end last."""
    return number(name), name
