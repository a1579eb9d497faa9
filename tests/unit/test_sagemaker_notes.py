"""The hosts of a job: names and addresses, what they tell each other in S3, snapshots of which each writes a part."""

import json
import threading
import time
import types

import boto3
import pytest
from moto import mock_aws
from sagemaker_jobs import BUCKET

from rft.sagemaker import cluster, copies, hosts, notes, places, snapshots
from rft.sagemaker.aws import AwsError
from rft.sagemaker.ends import Job
from rft.sagemaker.notes import JOINED, READY, Head, Worker

JOB = places.Place(BUCKET, "rft/job")
FIRST, SECOND = (hosts.Hosts(here, ("algo-1", "algo-2"), "eth0") for here in ("algo-1", "algo-2"))


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setattr(notes, "PERIOD", 0.01)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client


def told(root, **content: object) -> hosts.Hosts:
    (root / "input/config").mkdir(parents=True, exist_ok=True)
    (root / hosts.FILE).write_text(json.dumps(content))
    return hosts.read(root)


def test_the_first_of_the_sorted_hosts_is_the_head_of_all(tmp_path):
    assert hosts.read(tmp_path).names == ("local",) and hosts.read(tmp_path).others == ()
    found = told(tmp_path, current_host="b", hosts=["c", "b", "a"], network_interface_name="eth7")
    assert found == hosts.Hosts("b", ("a", "b", "c"), "eth7") and (found.head, found.others) == ("a", ("a", "c"))
    assert told(tmp_path, current_host="a", hosts=["a"]).names == ("a",)
    with pytest.raises(ValueError, match="this host is none of the job's"):
        told(tmp_path, current_host="d", hosts=["c", "b"])


def test_an_address_is_the_interfaces_else_the_names_and_may_come_late(monkeypatch):
    monkeypatch.delenv("NODE_ADDRESS", raising=False)
    known = iter(["127.0.1.1", None, "10.0.0.7"])
    monkeypatch.setattr(hosts, "of_interface", {"eth0": "10.0.0.5"}.get)
    monkeypatch.setattr(hosts, "of_name", lambda name: next(known))
    assert hosts.address(FIRST) == "10.0.0.5"
    assert hosts.address(FIRST._replace(interface="eth1"), seconds=0.5) == "10.0.0.7", "neither none nor the loopback"
    monkeypatch.setattr(hosts, "of_name", lambda name: "127.0.0.1")
    with pytest.raises(ValueError, match=r"127.0.0.1, of interface \(not named\) and name algo-1\n  wanted: an IPv4"):
        hosts.address(FIRST._replace(interface=""), seconds=0.05)
    monkeypatch.setenv("NODE_ADDRESS", "10.0.0.9")
    assert hosts.address(FIRST) == "10.0.0.9"


def test_the_interface_and_the_name_of_this_machine():
    assert hosts.of_interface("lo") == "127.0.0.1" and hosts.of_interface("no0") is None
    assert hosts.of_name("localhost") == "127.0.0.1" and hosts.of_name("no-such-host.invalid") is None


def met(s3) -> tuple[Head, Worker]:
    """Notes of two hosts that go by each other."""
    head, worker = Head(s3, JOB, FIRST), Worker(s3, JOB, SECOND)
    joining = threading.Thread(target=worker.join, args=(60,))
    joining.start()
    head.gather(JOINED, 60)
    joining.join()
    return head, worker


def test_hosts_meet_and_go_by_no_note_of_an_earlier_start(s3):
    """Whose address and snapshot, or outcome, would be wrong."""
    head, worker = met(s3)
    head.tell(outcome={"status": 0, "reason": "of the first start"})
    worker.tell(state=READY, gpus=3)
    assert head.gather(READY, 60)["algo-2"]["gpus"] == 3 and worker.heads()["outcome"]["status"] == 0

    with pytest.raises(
        ValueError, match=r"found:  nothing of algo-2 for 0.1 s\n  wanted: all of algo-1, algo-2 joined"
    ):
        Head(s3, JOB, FIRST).gather(JOINED, 0.1)
    with pytest.raises(ValueError, match="no note of algo-1 that knows of algo-2"):
        Worker(s3, JOB, SECOND).join(0.1)
    again, other = met(s3)
    assert "outcome" not in other.heads() and worker.heads() == {}
    with pytest.raises(ValueError, match=r"algo-2 for 0.1 s\n  wanted: all of algo-1, algo-2 ready"):
        again.gather(READY, 0.1)


def test_a_host_that_fails_before_it_is_ready_is_named(s3):
    head, worker = met(s3)
    worker.tell(state=notes.FAILED, why="error: no luck\n  found:  3")
    with pytest.raises(ValueError, match=r"^algo-2: no luck\n  found:  3"):
        head.gather(READY, 60)


def test_what_s3_does_not_take_is_not_said(s3, monkeypatch):
    head, worker = met(s3)
    wanted = {"number": "n", "name": "global_step1"}
    put = s3.put_object
    monkeypatch.setattr(s3, "put_object", lambda **_: s3.get_object(Bucket="no-such-bucket", Key="k"))
    with pytest.raises(AwsError):
        worker.answer(wanted, lambda _: ["a"])
    monkeypatch.setattr(s3, "put_object", put)
    worker.answer(wanted, lambda _: ["b"])
    assert head.parts("n") == {"algo-2": ["b"]}
    worker.answer(wanted, lambda _: pytest.fail("written once more"))
    assert head.parts("m") == {"algo-2": None}
    monkeypatch.setattr(s3, "get_object", lambda **_: put(Bucket="no-such-bucket", Key="k"))
    assert worker.heads() == {}, "is tried again"


@pytest.fixture
def two(s3, tmp_path):
    """A run on two disks: `copies` of the head, `jobs`, what makes a `step`, what writes the other's `part`."""
    jobs = [Job(tmp_path, tmp_path, tmp_path / name / "run", JOB) for name in ("first", "second")]
    head, worker = met(s3)
    head.tell(snapshot=None)

    def step(number: int) -> None:
        for at, job in enumerate(jobs):
            folder = job.run / snapshots.STATES / f"global_step{number}"
            folder.mkdir(parents=True)
            (folder / f"rank_{at}").write_text(f"state {number} of rank {at}")
        (jobs[0].run / "training_metrics.jsonl").write_text("{}\n" * number)
        (jobs[0].run / snapshots.LATEST).write_text(f"global_step{number}")

    def part(restored: frozenset = frozenset()) -> None:
        wanted = worker.heads().get("wanted")
        worker.answer(wanted, lambda wanted: copies.write_part(s3, jobs[1], wanted, set(restored)))

    return types.SimpleNamespace(copies=copies.Copies(s3, jobs[0], None, head), jobs=jobs, step=step, part=part)


def committed(s3) -> set[str]:
    return set(places.objects(s3, JOB / "committed"))


def test_a_snapshot_counts_once_each_host_has_written_its_part(s3, two, tmp_path, capfd):
    two.step(1)
    for _ in range(3):
        two.copies.look()
    assert committed(s3) == set() and "snapshot global_step1" not in capfd.readouterr().out
    two.part()
    two.copies.look()
    assert committed(s3) == {"global_step1.json"} and "global_step1: 4 files in s3://" in capfd.readouterr().out
    two.copies.look()
    assert two.copies.newest == "global_step1" and two.copies.begun is None

    assert snapshots.restore(s3, tmp_path / "back", JOB) == ("global_step1", [])
    found = {file.name: file.read_text() for file in (tmp_path / "back" / snapshots.STATES).rglob("rank_*")}
    assert found == {"rank_0": "state 1 of rank 0", "rank_1": "state 1 of rank 1"}


def test_a_part_that_is_missing_or_does_not_come_leaves_the_snapshot_before_in_force(
    s3, two, tmp_path, monkeypatch, capfd
):
    for number in (1, 2):
        two.step(number)
        two.copies.look()
        two.part()
        two.copies.look()
    s3.delete_object(Bucket=BUCKET, Key=f"rft/job/snapshots/global_step2/{snapshots.STATES}/global_step2/rank_1")
    two.step(3)
    monkeypatch.setattr(copies, "PART_SECONDS", 0.0)
    two.copies.look()
    assert "global_step3 was not written and is tried again: a snapshot is not whole;   found:  no part of algo-2" in (
        capfd.readouterr().out
    )
    assert not two.copies.last(0.1)
    name, passed_over = snapshots.restore(s3, tmp_path / "back", JOB)
    assert name == "global_step1" and passed_over == [
        "global_step3-ended: its copy was not finished",
        "global_step3: its copy was not finished",
        f"global_step2: 1 of 4 files are missing or cut, such as {snapshots.STATES}/global_step2/rank_1",
    ]


def test_a_part_that_says_more_than_is_there_makes_no_snapshot(s3, two, capfd):
    two.step(1)
    two.copies.look()
    told = json.loads(s3.get_object(Bucket=BUCKET, Key="rft/job/hosts/algo-2.json")["Body"].read())
    told |= {"part": {"number": two.copies.begun.number, "files": ["gone"]}}
    s3.put_object(Bucket=BUCKET, Key="rft/job/hosts/algo-2.json", Body=json.dumps(told).encode())
    two.copies.look()
    assert committed(s3) == set() and "found:  no gone in s3://bucket/rft/job/snapshots" in capfd.readouterr().out


def test_the_last_snapshot_waits_for_the_others_parts(s3, two, capfd):
    """Not for those of one that had begun before."""
    two.step(1)
    two.copies.look()
    two.step(2)
    done = []
    ending = threading.Thread(target=lambda: done.append(two.copies.last(60)))
    ending.start()
    until = time.monotonic() + 60
    while not done and time.monotonic() < until:
        two.part()
        time.sleep(0.01)
    ending.join()
    assert done == [True] and committed(s3) == {"global_step2-ended.json"}
    assert "warning" not in capfd.readouterr().out


def test_a_run_that_went_on_from_a_snapshot_and_trained_no_step_needs_no_part(s3, two):
    """All of the checkpoint is on the head's disk then, and the other host may be what ended it."""
    two.step(1)
    two.copies.restored = "global_step1"
    assert two.copies.last(0) and committed(s3) == {"global_step1-ended.json"}


def test_a_part_has_nothing_that_the_head_has_or_that_was_restored(s3, two):
    for name in ("run.json", "training_metrics.jsonl", "save_and_stop", "spikes/rank_1.pt"):
        (two.jobs[1].run / name).parent.mkdir(parents=True, exist_ok=True)
        (two.jobs[1].run / name).write_text("of another time")
    two.step(1)
    two.copies.look()
    two.part(frozenset({"run.json", "save_and_stop"}))
    two.copies.look()
    there = places.objects(s3, JOB / "snapshots/global_step1")
    assert there.keys() == {
        "training_metrics.jsonl", "spikes/rank_1.pt", snapshots.LATEST,
        *(f"{snapshots.STATES}/global_step1/rank_{rank}" for rank in (0, 1)),
    }  # fmt: skip
    assert there["training_metrics.jsonl"]["Size"] == 3


def test_checkpoints_before_the_one_that_is_in_s3_are_removed_from_a_hosts_disk(two):
    for number in (9, 10, 11):
        two.step(number)
    copies.remove_older(two.jobs[1].run, None)
    copies.remove_older(two.jobs[1].run, "global_step10")
    assert {folder.name for folder in (two.jobs[1].run / snapshots.STATES).iterdir()} == {
        "global_step10",
        "global_step11",
    }


class Node:
    """In place of a host's part of Ray, which has ended."""

    class process:
        returncode = 1

    def ended(self, seconds: float) -> bool:
        return True

    def said_last(self) -> str:
        return "error: this node's Ray has ended"


class Nobody:
    """A stop that has not been asked for."""

    at = None


def test_a_host_whose_head_has_vanished_fails_by_name(s3, two, tmp_path, monkeypatch, capfd):
    """Not before the head had time to say how the run has ended."""
    monkeypatch.setattr(cluster, "LOOK", 0.01)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 0.3)
    worker = Worker(s3, JOB, SECOND)
    worker.note |= {"head": two.copies.head.start}
    assert cluster.attend(s3, two.jobs[1], worker, Node(), set(), Nobody()) == 1
    failure = (tmp_path / "output/failure").read_text()
    assert failure == ("error: this node's Ray has ended\n  and algo-1 has not said in 0.3 s how the run has ended")
    cluster.tell_outcome(two.copies.head, 10, "stopped by a rule")
    assert cluster.attend(s3, two.jobs[1], worker, Node(), set(), Nobody()) == 0
    assert json.loads((tmp_path / "output/data/outcome.json").read_text())["status"] == 10
