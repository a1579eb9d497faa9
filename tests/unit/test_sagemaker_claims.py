"""A job is resumed by one other: against moto's S3 and SageMaker, which has no such jobs."""

from datetime import timedelta

import boto3
import pytest
from moto import mock_aws

from rft.sagemaker import claims
from rft.sagemaker.claims import claimed
from rft.sagemaker.places import Place

FOLDER = Place("bucket", "rft/first")


@pytest.fixture
def aws():
    with mock_aws():
        found = [boto3.client(service, region_name="us-east-1") for service in ("s3", "sagemaker")]
        found[0].create_bucket(Bucket=FOLDER.bucket)
        yield found


def holder(s3) -> str:
    return s3.get_object(Bucket=FOLDER.bucket, Key="rft/first/resumed/first")["Body"].read().decode()


def test_who_comes_second_is_refused(aws):
    """While the first makes its job, and for ten minutes behind it; that S3 lets one of two at once win is S3's own."""
    refused = pytest.raises(ValueError, match="found another resume of first begun")
    with claimed(*aws, FOLDER, "first", "second"), refused, claimed(*aws, FOLDER, "first", "third"):
        pass
    assert holder(aws[0]) == "second"


def test_who_reads_a_claim_that_changes_then_is_refused(aws, monkeypatch):
    """Two take over what a killed command left: the one whose reading is out of date writes nothing."""
    with claimed(*aws, FOLDER, "first", "killed"):
        pass
    monkeypatch.setattr(claims, "MAKING", timedelta(0))

    def late(*_: object) -> None:
        monkeypatch.setattr(claims, "known", lambda *_: None)
        with claimed(*aws, FOLDER, "first", "other"):
            pass

    monkeypatch.setattr(claims, "known", late)
    with pytest.raises(ValueError, match="begun"), claimed(*aws, FOLDER, "first", "third"):
        pass
    assert holder(aws[0]) == "other"


def test_what_fails_gives_it_back(aws):
    with pytest.raises(RuntimeError), claimed(*aws, FOLDER, "first", "second"):
        raise RuntimeError("no quota")
    assert holder(aws[0]) == ""
    with claimed(*aws, FOLDER, "first", "third"):
        pass
    assert holder(aws[0]) == "third"


def test_a_claim_whose_command_was_killed_is_taken_over_later(aws, monkeypatch):
    with claimed(*aws, FOLDER, "first", "killed"):
        pass  # and no job was made
    with pytest.raises(ValueError, match="in 10 minutes"), claimed(*aws, FOLDER, "first", "third"):
        pass
    monkeypatch.setattr(claims, "MAKING", timedelta(0))
    with claimed(*aws, FOLDER, "first", "third"):
        pass
    assert holder(aws[0]) == "third"


def test_each_job_of_a_chain_has_its_own(aws):
    for job, name in (("first", "second"), ("second", "third")):
        with claimed(*aws, FOLDER, job, name):
            pass
    assert holder(aws[0]) == "second"
