"""One job on several hosts: Ray's cluster over them, and what each host does beside it.

The first host is the head: it launches, and writes metrics, adapter and the markers of snapshots. The others hold their
part of Ray, write their parts of snapshots, and end as the head says that the run has ended.
"""

import os
import time
from typing import TYPE_CHECKING

from rft.sagemaker import hosts as hosts_of
from rft.sagemaker import snapshots
from rft.sagemaker.aws import AwsError
from rft.sagemaker.copies import AGAIN, remove_older, write_part
from rft.sagemaker.ends import STOPPED_BY_RULE, Job, complete, failed, seconds_left, told_to_stop
from rft.sagemaker.hosts import Hosts
from rft.sagemaker.launch import Launcher, Stop, say
from rft.sagemaker.notes import FAILED, JOINED, READY, READY_SECONDS, THERE_SECONDS, Head, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.client import BaseClient

PORT = 20000  # the head's of Ray; launch/nodes.sh takes the next ones too
LOOK = 1.0  # seconds between two looks at the head's note
LOST_SECONDS = 60.0  # after this host's part of Ray has ended, for the head to say why
NODE_SECONDS = 20.0  # for this host's part of Ray to end
STOPPED = 143  # an outcome: the job was told to stop


def meet(head: Head, job: Job) -> str | None:
    """Wait until all other hosts have joined the head; the snapshot that all are to restore, or None.

    Raises:
        ValueError: a host does not come.
        AwsError: of S3.
    """
    own = hosts_of.address(head.hosts)
    say(f"{head.hosts.here} ({own}) is the head of {', '.join(head.hosts.names)}")
    name, passed_over = snapshots.newest(head.s3, job.place)
    for each in passed_over:
        say(f"a snapshot is passed over: {each}")
    head.tell(address=own, snapshot=name)
    head.gather(JOINED, THERE_SECONDS)
    return name


def ray_of(head: Head, job: Job) -> tuple[Launcher, list[str]]:
    """The head's part of Ray, once all hosts have what they need, and what begins a launcher's command on the cluster.

    Raises:
        ValueError: a host has failed, or is not ready in time.
        AwsError: of S3.
    """
    ready = head.gather(READY, READY_SECONDS)
    gpus = {head.hosts.here: hosts_of.gpus()} | {host: note["gpus"] for host, note in ready.items()}
    say(f"GPUs: {', '.join(f'{count} of {host}' for host, count in gpus.items())}")
    node = node_of(job, ["head"], head.note["address"])
    return node, ["bash", "launch/node.sh", "driver", str(sum(gpus.values())), f"{head.note['address']}:{PORT}"]


def node_of(job: Job, words: list[str], own: str) -> Launcher:
    """This host's part of Ray by launch/node.sh, which SIGTERM leaves alone."""
    environment = os.environ | hosts_of.node_environment(own, PORT)
    return Launcher(["bash", "launch/node.sh", *words], job.checkout, environment, None)


def work(s3: "BaseClient", job: Job, hosts: Hosts, bring: "Callable[[], object]", stop: Stop) -> int:
    """What a host does that is not the head, to the end of the job; its exit status.

    Args:
        bring: copies what the submission names in S3.
    """
    worker = Worker(s3, job.place, hosts)
    own = hosts_of.address(hosts)
    say(f"{hosts.here} ({own}) works for {hosts.head}")
    head = worker.join(THERE_SECONDS)
    try:
        bring()
        restored = set()
        if head["snapshot"]:
            snapshots.bring(s3, job.run, job.place, head["snapshot"])
            restored = set(snapshots.sizes_of(s3, job.place, head["snapshot"]))
            say(f"snapshot {head['snapshot']} is restored")
        stop.prepares = False
        node = node_of(job, ["worker", f"{head['address']}:{PORT}"], own)
        worker.tell(state=READY, gpus=hosts_of.gpus())
    except (AwsError, ValueError, OSError) as error:
        worker.tell(state=FAILED, why=f"error: {error}")
        raise
    try:
        return attend(s3, job, worker, node, restored, stop)
    finally:
        node.stop(NODE_SECONDS)


def attend(s3: "BaseClient", job: Job, worker: Worker, node: Launcher, restored: set[str], stop: Stop) -> int:
    """Write parts of snapshots until the head says how the run has ended, or can say nothing any more."""
    lost_at, not_before = None, 0.0
    while True:
        ended, note = node.ended(LOOK), worker.heads()
        if outcome := note.get("outcome"):
            return ended_as(job, worker.hosts.head, outcome, stop)
        if time.monotonic() >= not_before:
            try:
                worker.answer(note.get("wanted"), lambda wanted: write_part(s3, job, wanted, restored))
                remove_older(job.run, note.get("committed"))
            except Exception as error:  # whatever it is, training goes on
                why = "; ".join(str(error).splitlines())
                say(f"warning: a part of a snapshot was not written and is tried again: {why}")
                not_before = time.monotonic() + (AGAIN if stop.at is None else 1.0)
        if seconds_left(stop, 1.0) <= 0:
            return told_to_stop(job, stop)
        if ended:
            time.sleep(LOOK)  # which `ended` has waited for before
            lost_at = lost_at or time.monotonic()
        if lost_at and stop.at is None and time.monotonic() - lost_at > LOST_SECONDS:
            why = node.said_last() or f"error: this host's part of Ray has ended with {node.process.returncode}"
            why = f"{why}\n  and {worker.hosts.head} has not said in {LOST_SECONDS:g} s how the run has ended"
            worker.tell(state=FAILED, why=why)
            return failed(job, why, 1)


def ended_as(job: Job, head: str, outcome: dict, stop: Stop) -> int:
    """The exit status of a host whose head has said how the run has ended."""
    status, reason = outcome["status"], outcome["reason"]
    if status in (0, STOPPED_BY_RULE):
        return complete(job, status, reason)
    if status != STOPPED or stop.at is None:
        return failed(job, f"error: the run has ended on {head}: {reason.removeprefix('error: ')}", status)
    return told_to_stop(job, stop)


def tell_outcome(head: Head | None, status: int, reason: str) -> None:
    """Say to the other hosts how the run has ended; what S3 does not take is said here."""
    if head:
        try:
            head.tell(outcome={"status": status, "reason": reason})
        except AwsError as error:
            say(f"warning: the other hosts do not learn how the run has ended: {error}")
