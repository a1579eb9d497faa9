"""A job is resumed by one other: against moto's S3 and SageMaker, which has no such jobs."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

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


def test_one_of_many_at_once_wins(aws):
    together, count = Barrier(8), 8

    def resume(number: int) -> bool:
        together.wait()
        try:
            with claimed(*aws, FOLDER, "first", f"job-{number}"):
                return True
        except ValueError as error:
            assert "found another resume of first begun" in str(error)
            return False

    with ThreadPoolExecutor(count) as pool:
        won = list(pool.map(resume, range(count)))
    assert won.count(True) == 1 and holder(aws[0]) == f"job-{won.index(True)}"


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
