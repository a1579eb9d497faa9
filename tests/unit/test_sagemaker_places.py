"""Files in S3: names, copies that are not made twice, snapshots that count; names of jobs."""

import json
import re
from datetime import UTC, datetime

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws
from sagemaker_jobs import ROOT

from rft.sagemaker import jobs, places, snapshots
from rft.sagemaker.aws import AwsError

BUCKET = "bucket"
JOB = places.Place(BUCKET, "rft/job")


@pytest.fixture
def s3():
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client


def put(s3, key: str, text: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=text.encode())


@settings(max_examples=30)
@given(st.from_regex(r"s3://[a-z0-9-]{3,9}(/[a-z0-9._-]{1,9}){0,3}", fullmatch=True))
def test_places_are_read_back(url):
    place = places.parse(url)
    assert str(place).rstrip("/") == url and str(place / "x") == f"{url}/x"


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "/data", "https://bucket/key"])
def test_what_is_no_place(url):
    with pytest.raises(ValueError, match="wanted s3://BUCKET/KEY"):
        places.parse(url)


def test_a_file_and_a_folder_are_copied_once(s3, tmp_path):
    put(s3, "data/train.jsonl", "one")
    put(s3, "data/more/test.jsonl", "two")
    put(s3, "data-old/x", "not this one")
    file = places.fetch(s3, f"s3://{BUCKET}/data/train.jsonl", tmp_path)
    assert (file.name, file.read_text()) == ("train.jsonl", "one")
    for url in (f"s3://{BUCKET}/data", f"s3://{BUCKET}/data/"):
        folder = places.fetch(s3, url, tmp_path)
        files = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
        assert folder.name == "data" and files == {"train.jsonl", "more/test.jsonl"}

    (folder / "train.jsonl").write_text("kept as it is")
    put(s3, "data/more/test.jsonl", "changed")
    s3.delete_object(Bucket=BUCKET, Key="data/train.jsonl")
    assert places.fetch(s3, f"s3://{BUCKET}/data/", tmp_path) == folder
    assert (folder / "more/test.jsonl").read_text() == "changed" and not (folder / "train.jsonl").exists()
    put(s3, "data/a", "a")
    (folder / "more/test.jsonl").write_text("not read again")
    places.fetch(s3, f"s3://{BUCKET}/data/", tmp_path)
    assert (folder / "more/test.jsonl").read_text() == "not read again" and (folder / "a").read_text() == "a"


@pytest.mark.parametrize("name", ["../../up", "a/../../up", "/etc/up"])
def test_names_that_lead_out_of_their_folder_are_refused(s3, tmp_path, name):
    put(s3, f"data/{name}", "x")
    with pytest.raises(AwsError, match="out of its folder"):
        places.fetch(s3, f"s3://{BUCKET}/data", tmp_path / "cache")
    assert not list(tmp_path.rglob("up"))


def run_with(place, steps: int):
    """A run's directory with this many checkpoints, and what is not part of it."""
    files = {f"{snapshots.STATES}/global_step{n}/state": f"state {n}" for n in range(1, steps + 1)}
    files |= {"training_metrics.jsonl": "{}\n" * steps, "launch.json": "{}", "samples/step_1.jsonl": "{}"}
    files |= dict.fromkeys(("ray_logs/a", "start_1/run.json", ".hidden", "run.json.7.partial"), "no")
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / snapshots.LATEST).write_text(f"global_step{steps}")
    return place


def test_a_snapshot_holds_its_checkpoint_even_where_the_run_has_gone_on(s3, tmp_path):
    """And brings back what is needed, and no more."""
    run = run_with(tmp_path / "run", 3)
    assert snapshots.upload(s3, run, JOB, "global_step2", "global_step2") == 5
    back = tmp_path / "back"
    assert snapshots.restore(s3, back, JOB) == ("global_step2", [])
    assert snapshots.tag_of(back) == "global_step2"
    found = {file.relative_to(back).as_posix() for file in back.rglob("*") if file.is_file()}
    assert found == {
        "training_metrics.jsonl",
        "launch.json",
        "samples/step_1.jsonl",
        snapshots.LATEST,
        f"{snapshots.STATES}/global_step2/state",
    }


def test_the_newest_whole_snapshot_is_taken_and_others_are_named(s3, tmp_path):
    run = run_with(tmp_path / "run", 10)
    for step in (2, 9, 10):
        snapshots.upload(s3, run, JOB, f"global_step{step}", f"global_step{step}")
    put(s3, "rft/job/snapshots/global_step11/launch.json", "{}")
    s3.delete_object(Bucket=BUCKET, Key="rft/job/snapshots/global_step10/training_metrics.jsonl")
    put(s3, f"rft/job/snapshots/global_step9/{snapshots.STATES}/global_step9/state", "sta")
    put(s3, "rft/job/committed/start-ended.json", json.dumps({"launch.json": 2}))
    name, passed_over = snapshots.restore(s3, tmp_path / "back", JOB)
    assert name == "global_step2"
    assert passed_over == [
        "global_step11: its copy was not finished",
        "global_step10: 1 of 5 files are missing or cut, such as training_metrics.jsonl",
        f"global_step9: 1 of 5 files are missing or cut, such as {snapshots.STATES}/global_step9/state",
    ]


def test_a_snapshot_that_is_written_once_more_does_not_count_meanwhile(s3, tmp_path, monkeypatch):
    run = run_with(tmp_path / "run", 2)
    snapshots.upload(s3, run, JOB, "global_step2", "global_step2")
    files = snapshots.files_of(run, "global_step2")
    monkeypatch.setattr(snapshots, "files_of", lambda *_: [*files, "gone"])  # a file that its run takes away
    with pytest.raises(FileNotFoundError):
        snapshots.upload(s3, run, JOB, "global_step2", "global_step2")
    assert snapshots.restore(s3, tmp_path / "back", JOB) == (None, ["global_step2: its copy was not finished"])


def test_a_checkpoint_that_has_gone_is_no_snapshot(s3, tmp_path):
    """One that newer ones have replaced, or whose name was read while it was written."""
    with pytest.raises(AwsError, match="no global_step7 in"):
        snapshots.upload(s3, run_with(tmp_path / "run", 2), JOB, "global_step7", "global_step7")
    assert places.objects(s3, JOB) == {}


def test_nothing_is_there(s3, tmp_path):
    assert snapshots.restore(s3, tmp_path / "back", JOB) == (None, [])
    assert not (tmp_path / "back").exists()


# What S3 calls an operation -> the right that it takes.
RIGHTS = {"ListObjectsV2": "ListBucket", "HeadObject": "GetObject", "CreateMultipartUpload": "PutObject"}
RIGHTS |= {"UploadPart": "PutObject", "CompleteMultipartUpload": "PutObject"}


def test_the_role_of_a_job_may_do_what_it_does_in_s3_and_no_more(s3, tmp_path):
    called = set()
    s3.meta.events.register("before-call.s3.*", lambda model, **_: called.add(model.name))
    run = run_with(tmp_path / "run", 1)
    (run / "large").write_bytes(bytes(9 << 20))  # goes in parts
    snapshots.upload(s3, run, JOB, "global_step1", "global_step1")
    assert snapshots.restore(s3, tmp_path / "back", JOB)[0] == "global_step1"
    assert (tmp_path / "back/large").stat().st_size == 9 << 20
    policy = json.loads((ROOT / "launch/sagemaker/job_policy.json").read_text())
    actions = {each for part in policy["Statement"] if part["Sid"] in ("Read", "Write") for each in part["Action"]}
    assert {"CreateMultipartUpload", "DeleteObject", "GetObject"} <= called
    assert actions == {f"s3:{RIGHTS.get(name, name)}" for name in called} | {"s3:AbortMultipartUpload"}


NOW = datetime(2026, 11, 23, 14, 40, tzinfo=UTC)


@given(st.text(max_size=80))
def test_a_name_of_a_job_is_one_that_sagemaker_takes_or_is_refused(name):
    taken = bool(re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name)) and len(name) <= 63
    if taken:
        assert jobs.job_name(name, "launch/train_toy.sh", NOW) == name
    elif name:
        with pytest.raises(ValueError, match="--job-name"):
            jobs.job_name(name, "launch/train_toy.sh", NOW)


@settings(max_examples=30)
@given(st.from_regex(r"launch/train_[a-z0-9]+(_[a-z0-9]+){0,20}\.sh", fullmatch=True))
def test_names_that_are_made_are_taken(launcher):
    assert jobs.job_name(None, launcher, NOW).endswith("20261123-144000")
