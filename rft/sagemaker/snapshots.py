"""What a run has saved, in S3 while it trains: whole snapshots, each with a marker that is written last.

A snapshot is `snapshots/TAG/…` below the job's folder, TAG the checkpoint's name, and counts once `committed/TAG.json`
is there, which lists its files with their sizes. A job that is stopped in the middle of a copy leaves one that does
not count, or one of whose files some are missing: the one before it is taken.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rft.sagemaker.aws import told
from rft.sagemaker.places import Place, download, objects

if TYPE_CHECKING:
    from botocore.client import BaseClient

LATEST = "checkpoints/_actor/latest"  # of a run: the name of its newest complete checkpoint
LEFT_OUT = re.compile(r"(^|/)(ray_logs|start_\d+|slurm)/|\.partial$|(^|/)\.")


def tag_of(run: Path) -> str | None:
    """The newest complete checkpoint of a run, or None."""
    latest = run / LATEST
    return latest.read_text().strip() if latest.is_file() else None


def files_of(run: Path, tag: str | None) -> list[Path]:
    """What a run needs to be resumed from the checkpoint `tag`, and to be read; without one, all but checkpoints."""
    found = []
    for file in sorted(run.rglob("*")):
        name = file.relative_to(run).as_posix()
        is_other = (
            name.startswith("checkpoints/_actor/")
            and name != LATEST
            and not name.startswith(f"checkpoints/_actor/{tag}/")
        )
        if file.is_file() and not file.is_symlink() and not is_other and not LEFT_OUT.search(name):
            found.append(file)
    return found


def upload(s3: "BaseClient", run: Path, job: Place, tag: str, checkpoint: str | None = None) -> int:
    """Write the snapshot `tag` of a run; returns its number of files.

    Args:
        checkpoint: the one that it holds; by default the one of its name.

    Raises:
        AwsError: it was not written whole; it does not count then.
    """
    sizes = {}
    for file in files_of(run, checkpoint or tag):
        name = file.relative_to(run).as_posix()
        place = job / f"snapshots/{tag}/{name}"
        with told():
            s3.upload_file(str(file), place.bucket, place.key)
            sizes[name] = s3.head_object(Bucket=place.bucket, Key=place.key)["ContentLength"]
    marker = job / f"committed/{tag}.json"
    with told():
        s3.put_object(Bucket=marker.bucket, Key=marker.key, Body=json.dumps(sizes).encode())
    return len(sizes)


def restore(s3: "BaseClient", run: Path, job: Place) -> tuple[str | None, list[str]]:
    """Put the newest whole snapshot where the run was.

    Returns:
        Its name, or None where there is none; and what was passed over, in words.
    """
    passed_over = []
    markers = objects(s3, job / "committed")
    for name in sorted(markers, key=lambda n: (_number(n), markers[n]["LastModified"]), reverse=True):
        tag, marker = name.removesuffix(".json"), job / f"committed/{name}"
        with told():
            sizes = json.loads(s3.get_object(Bucket=marker.bucket, Key=marker.key)["Body"].read())
        there = {each: entry["Size"] for each, entry in objects(s3, job / f"snapshots/{tag}").items()}
        missing = [each for each, size in sizes.items() if there.get(each) != size]
        if missing:
            passed_over.append(f"{tag}: {len(missing)} of {len(sizes)} files are missing or cut, such as {missing[0]}")
            continue
        for each in sizes:
            download(s3, job / f"snapshots/{tag}/{each}", run / each)
        return tag, passed_over
    return None, passed_over


def _number(name: str) -> int:
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else -1
