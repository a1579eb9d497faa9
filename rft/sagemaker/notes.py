"""What the hosts of a job tell each other, through S3: each writes one note, `hosts/NAME.json`, and reads the others'.

The head's note has its `address`, the `snapshot` that all restore, the `seen` starts of the others, what files are
`wanted` of them for a snapshot, the checkpoint that is `committed`, and at last the `outcome`. Another host's has its
`state`, its `gpus`, and the `part` of a snapshot that it has written.

A job that was taken away and begins again finds the notes of its earlier containers. So each start of a container has a
number of its own: a host goes by the head's note once that names this start of it, and the head by the notes of hosts
that go by this start of the head. No clock is compared.
"""

import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from rft.sagemaker.aws import AwsError, message, told
from rft.sagemaker.hosts import Hosts
from rft.sagemaker.launch import say
from rft.sagemaker.places import Place

if TYPE_CHECKING:
    from botocore.client import BaseClient

PERIOD = 1.0  # seconds between two looks at a note that is waited for
BEGUN, JOINED, READY, FAILED = STATES = ("begun", "joined", "ready", "failed")  # of another host, in this order
THERE_SECONDS = 900.0  # within which all hosts of a job have begun; SageMaker begins them together
READY_SECONDS = 3600.0  # within which each has copied model and data, once the head has


class Notes:
    """This host's note, and those of the others.

    Attributes:
        start: the number of this start of the container.
        note: what this host says; `tell` changes and writes it.
    """

    def __init__(self, s3: "BaseClient", job: Place, hosts: Hosts) -> None:
        self.s3, self.job, self.hosts = s3, job, hosts
        self.start = uuid.uuid4().hex[:16]
        self.note: dict = {"start": self.start}

    def tell(self, **changes: object) -> None:
        """Say this too. Raises AwsError where S3 does not take it; then it is not said."""
        note, place = self.note | changes, self.job / f"hosts/{self.hosts.here}.json"
        with told():
            self.s3.put_object(Bucket=place.bucket, Key=place.key, Body=json.dumps(note).encode())
        self.note = note

    def of(self, host: str) -> dict:
        """The note of another host; empty where it has written none."""
        place = self.job / f"hosts/{host}.json"
        with told():
            try:
                return json.loads(self.s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read())
            except self.s3.exceptions.NoSuchKey:
                return {}


class Head(Notes):
    """The notes as the host that launches sees them."""

    def gather(self, state: str, seconds: float) -> dict[str, dict]:
        """The notes of the other hosts, once all have come to `state`; it is said which are waited for.

        Raises:
            ValueError: one has failed, or some have not come so far within `seconds`; which.
            AwsError: S3 gives no answer.
        """
        until, said = time.monotonic() + seconds, None
        while True:
            found = {host: self.of(host) for host in self.hosts.others}
            seen = {host: note["start"] for host, note in found.items() if note}
            if seen != self.note.get("seen"):
                self.tell(seen=seen)
            ours = {host: note for host, note in found.items() if note.get("head") == self.start}
            for host, note in ours.items():
                if note["state"] == FAILED:
                    raise ValueError(f"{host}: {note['why'].removeprefix('error: ')}")
            come = [host for host, note in ours.items() if STATES.index(note["state"]) >= STATES.index(state)]
            missing = [host for host in found if host not in come]
            if not missing:
                return found
            if time.monotonic() > until:
                raise ValueError(
                    message(
                        "not all hosts of the job are there",
                        f"nothing of {', '.join(missing)} for {seconds:g} s",
                        f"all of {', '.join(self.hosts.names)} {state}",
                        "read the log of that host, then resume the job",
                    )
                )
            if missing != said:
                say(f"waiting for {', '.join(missing)} to be {state}")
                said = missing
            time.sleep(min(PERIOD, seconds / 10))

    def ask(self, name: str, checkpoint: str, files: list[str]) -> str:
        """Want the other hosts' parts of a snapshot, files that are not among `files`; returns the request's number."""
        number = uuid.uuid4().hex[:8]
        self.tell(wanted={"number": number, "name": name, "checkpoint": checkpoint, "files": files})
        return number

    def parts(self, number: str) -> dict[str, list[str] | None]:
        """Names of the files that each other host has written for a request; None of one that has not answered."""
        found = {}
        for host in self.hosts.others:
            note = self.of(host)
            part = note.get("part") if note.get("head") == self.start else None
            found[host] = part["files"] if part and part["number"] == number else None
        return found


class Worker(Notes):
    """The notes as one of the other hosts sees them."""

    def join(self, seconds: float) -> dict:
        """The head's note, once it knows of this start of this host. Raises ValueError where that does not come."""
        self.tell(state=BEGUN)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            head = self.of(self.hosts.head)
            if head.get("seen", {}).get(self.hosts.here) == self.start:
                self.tell(head=head["start"], state=JOINED)
                return head
            time.sleep(min(PERIOD, seconds / 10))
        raise ValueError(
            message(
                "the head of the job is not there",
                f"no note of {self.hosts.head} that knows of {self.hosts.here} for {seconds:g} s",
                f"one in {self.job}/hosts",
                f"read the log of {self.hosts.head}, then resume the job",
            )
        )

    def heads(self) -> dict:
        """The note of the head that this host has joined; empty where there is none of it, or S3 gives no answer."""
        try:
            head = self.of(self.hosts.head)
        except AwsError as error:
            say(f"warning: the head's note cannot be read: {'; '.join(str(error).splitlines())}")
            return {}
        return head if head.get("start") == self.note.get("head") else {}

    def answer(self, wanted: dict | None, write: Callable[[dict], list[str]]) -> None:
        """Write this host's part of a wanted snapshot and say so, unless that is done.

        Args:
            wanted: of the head's note.
            write: writes the part; returns the names of its files.
        """
        if not wanted or (self.note.get("part") or {}).get("number") == wanted["number"]:
            return
        files = write(wanted)
        self.tell(part={"number": wanted["number"], "files": files})
        say(f"snapshot {wanted['name']}: {len(files)} files of {self.hosts.here}")
