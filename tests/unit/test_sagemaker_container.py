"""The container's entry point as SageMaker starts it, with a launcher that counts; S3 is moto's."""

import json
import signal

import pytest
from s3_server import Handler
from sagemaker_jobs import BUCKET, toy_job

from rft.sagemaker import container, places


@pytest.fixture
def job(store, s3, tmp_path):
    """Makes a job of the toy launcher with options."""
    made = []

    def make(*options: str):
        made.append(toy_job(tmp_path, store[0], *options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def names(s3, folder: str) -> set[str]:
    prefix = f"rft/job/{folder}/"
    entries = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {entry["Key"].removeprefix(prefix) for entry in entries}


def test_a_run_to_its_end(job, s3, monkeypatch):
    """What the command names in S3 is brought; the variables of the submission are the launcher's."""
    s3.put_object(Bucket=BUCKET, Key="data/order.txt", Body=b"in this order\n")
    monkeypatch.setenv("SEED", "7")
    toy = job("--read", f"s3://{BUCKET}/data/order.txt", "--steps", "2")
    monkeypatch.delenv("SEED")
    toy.begin()
    assert toy.end() == 0, toy.said()
    assert "in this order\nbegins at step 0 with SEED=7 in 90 s\n" in toy.said()
    assert json.loads((toy.root / "output/data/outcome.json").read_text()) == {
        "status": 0,
        "reason": "the run is complete",
    }
    assert "global_step2-ended.json" in names(s3, "committed")
    wanted = {"training_metrics.jsonl", "checkpoints/_actor/latest", "sagemaker_command.json"}
    assert wanted <= names(s3, "snapshots/global_step2-ended")
    assert not (toy.root / "output/failure").exists()


def test_stopped_and_restarted_on_an_empty_disk(job, s3, monkeypatch):
    monkeypatch.setenv("SEED", "7")
    toy = job("--steps", "4", "--hold", "1")
    monkeypatch.delenv("SEED")
    process = toy.begin()
    toy.until("snapshot global_step1: ")
    process.send_signal(signal.SIGTERM)
    toy.until("waiting to be ended by SageMaker")
    process.kill()
    process.wait()
    assert "saved at 2" in toy.said() and "snapshot global_step2-ended: " in toy.said()
    assert not (toy.root / "output/failure").exists()

    # A copy that was cut, and one without its marker, as newer ones of a third start.
    for name, marked in (("global_step8", False), ("global_step9", True)):
        s3.put_object(Bucket=BUCKET, Key=f"rft/job/snapshots/{name}/launch.json", Body=b"--st")
        if marked:
            sizes = {"launch.json": 10, "checkpoints/_actor/latest": 12}
            s3.put_object(Bucket=BUCKET, Key=f"rft/job/committed/{name}.json", Body=json.dumps(sizes).encode())
    toy.begin()
    toy.until("begins at step 2 with SEED= in")  # which launch/resume.sh takes from the run's record
    assert "passed over: global_step9: 2 of 2 files are missing or cut, such as launch.json" in toy.said()
    assert "passed over: global_step8: its copy was not finished" in toy.said()
    assert toy.end() == 0, toy.said()
    steps = (toy.root / "runs/job/training_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in steps] == [1, 2, 3, 4]


def test_told_to_stop_while_it_prepares_itself(job, s3):
    """S3 gives no answer, so it is still asking for a snapshot."""
    toy = job()
    with Handler.lock:
        process = toy.begin()
        toy.until("sagemaker: launch/train_toy.sh of commit ")
        process.send_signal(signal.SIGTERM)
        toy.until("waiting to be ended by SageMaker")
    assert "begins at" not in toy.said() and not (toy.root / "output/failure").exists()


def test_a_rule_that_stopped_the_run_is_no_failure(job):
    toy = job("--rule", "10")
    toy.begin()
    assert toy.end() == 0, toy.said()
    outcome = json.loads((toy.root / "output/data/outcome.json").read_text())
    assert outcome == {"status": 10, "reason": "stopped at step 3 by the rule kl: 0.4 > 0.2"}
    assert outcome["reason"] in toy.said()


def test_a_failure_is_written_where_sagemaker_reads_it(job, s3):
    toy = job("--fail", "3")
    toy.begin()
    assert toy.end() == 3
    assert (toy.root / "output/failure").read_text() == "error: no luck\n  found:  3"
    assert "global_step3-ended.json" in names(s3, "committed")


def test_an_upload_that_fails_is_tried_again_and_ends_no_training(job, s3, monkeypatch):
    toy = job("--hold", "1")
    monkeypatch.setattr(Handler, "refused", "PUT")
    toy.begin()
    toy.until("warning: snapshot global_step1 was not written and is tried again: this user or role may not do that")
    monkeypatch.setattr(Handler, "refused", "")
    (toy.root / "runs/job/go_on").touch()
    assert toy.end() == 0, toy.said()
    assert names(s3, "committed") == {"global_step3-ended.json"}


def test_a_result_that_cannot_be_uploaded_is_a_failure(store, s3, tmp_path, monkeypatch):
    """For as long as the last upload may be tried, here not at all again."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/training_metrics.jsonl").write_text("{}\n")
    job = container.Job(tmp_path, tmp_path, tmp_path / "run", places.parse("s3://no-such-bucket/rft/job"))
    assert not container.Copies(s3, job, None).last(-1)
    job = job._replace(place=places.parse(f"s3://{BUCKET}/rft/job"))
    assert container.Copies(s3, job, None).last(-1)
    assert names(s3, "snapshots") == {"start-ended/training_metrics.jsonl"}


def test_a_bucket_that_is_not_there_is_said_before_the_launcher_begins(job):
    toy = job()
    toy.begin(RFT_SAGEMAKER_S3="s3://no-such-bucket/rft/job")
    assert toy.end() == 1
    failure = (toy.root / "output/failure").read_text()
    assert "there is no such bucket" in failure and "SAGEMAKER_BUCKET" in failure


def test_without_s3_a_job_that_is_told_to_stop_just_ends(job, s3):
    toy = job("--hold", "1")
    process = toy.begin(RFT_SAGEMAKER_S3="")
    toy.until("begins at step 0")
    process.send_signal(signal.SIGTERM)
    assert toy.end() == 143 and "unfinished, as this job was told to stop" in toy.said()
    assert names(s3, "snapshots") == set() and not (toy.root / "output/failure").exists()


def test_what_is_not_in_s3_is_said_before_the_launcher_begins(job):
    toy = job("--read", f"s3://{BUCKET}/nothing.jsonl")
    toy.begin()
    assert toy.end() == 1
    assert f"found:  s3://{BUCKET}/nothing.jsonl" in (toy.root / "output/failure").read_text()
    assert "begins at" not in toy.said()


def test_a_clone_is_refused(job, tmp_path):
    toy = job()
    toy.begin(checkout=tmp_path / "checkout")
    assert toy.end() == 1 and "this is a clone" in (toy.root / "output/failure").read_text()
    assert (tmp_path / "checkout/launch/train_toy.sh").is_file()
