"""The snapshots of a run while it trains. What fails is said and tried again, and ends no training."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.sagemaker import snapshots
from rft.sagemaker.aws import AwsError, message
from rft.sagemaker.ends import Job
from rft.sagemaker.launch import say
from rft.sagemaker.notes import Head

if TYPE_CHECKING:
    from botocore.client import BaseClient

AGAIN = 30.0  # seconds until a failed upload is tried again
PART_SECONDS = 300.0  # for which the parts of other hosts are waited for
PERIOD = 0.5  # between two looks for them at the end


class Begun(NamedTuple):
    """A snapshot that waits for other hosts: this one's files are written, theirs asked for until a time."""

    name: str
    checkpoint: str
    files: list[str]
    number: str
    until: float


class Copies:
    """The snapshots that the host of the launcher writes.

    Args:
        restored: the checkpoint that the run goes on from, which this disk has whole.
        head: the notes of a job on several hosts, of which each writes its part; None on one.
    """

    def __init__(self, s3: "BaseClient | None", job: Job, restored: str | None, head: Head | None = None) -> None:
        self.s3, self.job, self.head = s3, job, head
        self.restored, self.newest, self.not_before = restored, restored, 0.0
        self.begun: Begun | None = None

    def look(self) -> None:
        """Write a snapshot where there is a checkpoint that has none, or go on with one that waits for a host."""
        if not self.job.place or time.monotonic() < self.not_before:
            return
        tag = self.begun.checkpoint if self.begun else snapshots.tag_of(self.job.run)
        if not tag or tag == self.newest:
            return
        if self._write(tag, tag):
            self.newest = tag
        elif not self.begun:
            self.not_before = time.monotonic() + AGAIN

    def last(self, seconds: float) -> bool:
        """Write the run as it has ended, tried for so long; whether that was done."""
        if not self.job.place:
            return True
        tag, until = snapshots.tag_of(self.job.run), time.monotonic() + seconds
        self.begun = None  # of a checkpoint that is in this one, or older
        while not self._write(f"{tag or 'start'}-ended", tag):
            if time.monotonic() > until:
                return False
            time.sleep(PERIOD if self.begun else min(AGAIN, seconds / 10) if seconds > 0 else 0)
        return True

    def _write(self, name: str, tag: str | None) -> bool:
        """Whether the snapshot counts now; with parts outstanding, `begun` says so."""
        try:
            # A disk that the run was restored to has all of that checkpoint, whichever hosts had written it.
            if self.head and tag and tag != self.restored:
                count = self._with_parts(name, tag)
            else:
                count = snapshots.upload(self.s3, self.job.run, self.job.place, name, tag)
        except Exception as error:  # whatever it is, training goes on
            self.begun = None
            say(f"warning: snapshot {name} was not written and is tried again: {'; '.join(str(error).split(chr(10)))}")
            return False
        if count:
            say(f"snapshot {name}: {count} files in {self.job.place}/snapshots/{name}")
        return bool(count)

    def _with_parts(self, name: str, tag: str) -> int:
        """Files of the snapshot once all hosts have written theirs, and it counts; 0 before."""
        job, head = self.job, self.head
        if not self.begun:
            names = snapshots.of_checkpoint(job.run, tag)
            snapshots.begin(self.s3, job.place, name)
            number = head.ask(name, tag, names)  # first, so that all hosts write at once
            snapshots.write(self.s3, job.run, job.place, name, names)
            self.begun = Begun(name, tag, names, number, time.monotonic() + PART_SECONDS)
        parts = head.parts(self.begun.number)
        silent = [host for host, files in parts.items() if files is None]
        if silent and time.monotonic() < self.begun.until:
            return 0
        if silent:
            found = f"no part of {', '.join(silent)} in {PART_SECONDS:g} s"
            raise AwsError(message("a snapshot is not whole", found, "one of each host", "see the log of that host"))
        names = self.begun.files + [each for files in parts.values() for each in files]
        count = snapshots.commit(self.s3, job.place, name, sorted(set(names)), tag)
        self.begun = None
        head.tell(committed=tag)
        return count


def write_part(s3: "BaseClient", job: Job, wanted: dict, restored: set[str]) -> list[str]:
    """Write what this host has of a snapshot that the head wants and the head has not; the names of the files.

    Args:
        wanted: of the head's note.
        restored: names of the files that this host began with, as the head did. The head has changed or removed them
            since, this host has not.
    """
    has = restored.union(wanted["files"])
    names = [each for each in snapshots.files_of(job.run, wanted["checkpoint"]) if each not in has]
    snapshots.write(s3, job.run, job.place, wanted["name"], names)
    return names


def remove_older(run: Path, committed: str | None) -> None:
    """Remove this host's files of checkpoints before one that is in S3. Rank 0 does so on its own host only."""
    if not committed:
        return
    for folder in (run / snapshots.STATES).glob("*[0-9]"):
        if folder.is_dir() and snapshots.number(folder.name) < snapshots.number(committed):
            shutil.rmtree(folder)
