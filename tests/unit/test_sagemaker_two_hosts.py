"""Two containers of one job as processes, with a launcher that counts and no Ray; S3 is moto's."""

import json
import re
import signal
from pathlib import Path

import pytest
from sagemaker_jobs import BUCKET, toy_job

NAMES = ("algo-1", "algo-2")


@pytest.fixture
def hosts(store, s3, tmp_path):
    """Makes a job of the toy launcher for each host, which `begin` starts."""
    made = []

    def make(*options: str):
        made.extend(toy_job(tmp_path / name, store[0], *options) for name in NAMES)
        made[1].archive = made[0].archive
        return made

    yield make
    for each in made:
        each.close()


def begin(jobs: list, second: int = 1, **variables: str) -> None:
    """Start both containers; the launcher's second rank writes to the second one's disk."""
    other = jobs[1].place / f"ml{jobs[1].starts + 1}/runs/job"
    for at, name in enumerate(NAMES[: second + 1]):
        own = {"NODE_ADDRESS": f"10.0.0.{at + 1}", "NODE_GPUS": str(at + 1), "OTHER": str(other), **variables}
        jobs[at].begin(hosts=NAMES, here=name, **own)


def files(run: Path) -> dict[str, str]:
    """What a run's checkpoints hold."""
    found = sorted((run / "checkpoints/_actor").rglob("state*"))
    return {file.relative_to(run / "checkpoints/_actor").as_posix(): file.read_text().strip() for file in found}


def committed(s3) -> set[str]:
    entries = s3.list_objects_v2(Bucket=BUCKET, Prefix="rft/job/committed/").get("Contents", [])
    return {entry["Key"].rpartition("/")[2] for entry in entries}


def test_a_run_on_two_hosts_to_its_end(hosts, s3):
    """The driver waits for the GPUs of all; what the command names in S3 is on each host, at the same place."""
    s3.put_object(Bucket=BUCKET, Key="data/order.txt", Body=b"in this order\n")
    jobs = hosts("--read", f"s3://{BUCKET}/data/order.txt", "--steps", "2")
    begin(jobs)
    assert [job.end() for job in jobs] == [0, 0], jobs[0].said() + jobs[1].said()
    # The driver's lines, in this order; what the host's agent says meanwhile may stand between them.
    assert re.search(r"(?ms)^3 GPUs at 10\.0\.0\.1:20000$.*^in this order$.*^begins at step 0 ", jobs[0].said())
    assert "head at 10.0.0.1" in jobs[0].said() and "worker 10.0.0.1:20000 at 10.0.0.2" in jobs[1].said()
    assert "begins at" not in jobs[1].said()
    outcomes = [json.loads((job.root / "output/data/outcome.json").read_text()) for job in jobs]
    assert outcomes == [{"status": 0, "reason": "the run is complete"}] * 2
    assert "global_step2-ended.json" in committed(s3)
    copied = [{file.relative_to(job.root) for file in job.root.glob("cache/*/order.txt")} for job in jobs]
    assert copied[0] == copied[1] and len(copied[0]) == 1


def test_stopped_and_restarted_on_empty_disks(hosts, s3):
    """Each host has all of the checkpoint afterwards, whichever ranks it will have."""
    jobs = hosts("--steps", "4", "--hold", "1")
    begin(jobs)
    jobs[0].until("snapshot global_step1: ")
    for job in jobs:
        job.process.send_signal(signal.SIGTERM)
    for job in jobs:
        job.until("waiting to be ended by SageMaker")
        job.close()
        assert not (job.root / "output/failure").exists()
    assert "saved at 2" in jobs[0].said() and "snapshot global_step2-ended: " in jobs[0].said()
    assert "snapshot global_step2-ended: 1 files of algo-2" in jobs[1].said()

    # A second host whose part came to S3 in half, or not at all.
    state = "checkpoints/_actor/global_step2/state_of_rank_1"
    s3.put_object(Bucket=BUCKET, Key=f"rft/job/snapshots/global_step2-ended/{state}", Body=b"sta")
    s3.put_object(Bucket=BUCKET, Key="rft/job/snapshots/global_step3/checkpoints/_actor/global_step3/state", Body=b"x")
    begin(jobs)
    jobs[0].until("begins at step 1 ")
    assert re.search(
        rf"passed over: global_step2-ended: 1 of \d files are missing or cut, such as {state}", jobs[0].said()
    )
    assert "passed over: global_step3: its copy was not finished" in jobs[0].said()
    jobs[1].until("snapshot global_step1 is restored")
    runs = [job.root / "runs/job" for job in jobs]
    wanted = {"global_step1/state": "state 1", "global_step1/state_of_rank_1": "state 1 of rank 1"}
    assert wanted.items() <= files(runs[0]).items() and wanted.items() <= files(runs[1]).items()
    (runs[0] / "go_on").touch()
    assert [job.end() for job in jobs] == [0, 0], jobs[0].said() + jobs[1].said()
    steps = (runs[0] / "training_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in steps] == [1, 2, 3, 4]
    assert files(runs[1]).keys() <= {f"global_step{n}/state_of_rank_1" for n in (2, 3, 4)} | wanted.keys()


def test_a_failure_is_the_failure_of_all_hosts(hosts, s3):
    jobs = hosts("--fail", "3")
    begin(jobs)
    assert [job.end() for job in jobs] == [3, 3]
    assert (jobs[0].root / "output/failure").read_text() == "error: no luck\n  found:  3"
    failure = (jobs[1].root / "output/failure").read_text()
    assert failure == "error: the run has ended on algo-1: no luck\n  found:  3"


def test_a_host_that_cannot_begin_ends_the_job_with_its_reason(hosts, s3):
    """Here the disk of the second one, where a file is in the way of a folder."""
    s3.put_object(Bucket=BUCKET, Key="data/order.txt", Body=b"in this order\n")
    jobs = hosts("--read", f"s3://{BUCKET}/data/order.txt")
    (jobs[1].place / "ml1").mkdir(parents=True)
    (jobs[1].place / "ml1/cache").write_text("a file")
    begin(jobs)
    assert [job.end() for job in jobs] == [1, 1]
    failures = [(job.root / "output/failure").read_text() for job in jobs]
    assert (
        failures[0].startswith("error: algo-2: [Errno ") and "ml1/cache" in failures[0] and "ml1/cache" in failures[1]
    )
    assert "begins at" not in jobs[0].said()


def test_several_hosts_without_s3_are_refused(hosts):
    jobs = hosts()
    begin(jobs, RFT_SAGEMAKER_S3="")
    for job in jobs:
        assert job.end() == 1
        assert "found:  algo-1, algo-2, and no RFT_SAGEMAKER_S3" in (job.root / "output/failure").read_text()
