"""What AWS does not do is one message: what was found, what was wanted, and the repair."""

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber
from moto import mock_aws
from s3_server import KEYS

from rft.sagemaker import cli, jobs, places
from rft.sagemaker.aws import REFUSALS, AwsError, told


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user without configuration, and no machine of Amazon's to ask."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in (*KEYS, "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def parts(error: str) -> list[str]:
    lines = error.splitlines()
    assert [line[:10] for line in lines[1:]] == ["  found:  ", "  wanted: ", "  repair: "], error
    assert all(line.partition(":")[2].strip() for line in lines[1:])
    return lines


def test_no_region_and_no_credentials(nobody, monkeypatch, capsys):
    assert cli.main(["status", "first"]) == 1
    assert parts(capsys.readouterr().err)[0] == "error: no AWS region"
    monkeypatch.setenv("AWS_REGION", "us-east-1")  # as in a job
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert cli.main(["status", "first"]) == 1
    said = parts(capsys.readouterr().err)
    assert said[0] == "error: no AWS credentials" and "aws configure" in said[3]
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert cli.main(["status", "first"]) == 1
    assert "nobody" in parts(capsys.readouterr().err)[1]


CODES = [
    ("ThrottlingException", "Rate exceeded", "in a minute"),
    ("AccessDeniedException", "User is not authorized to perform: sagemaker:DescribeTrainingJob", "attach that policy"),
    ("ExpiredTokenException", "The security token included in the request is expired", "aws configure"),
    ("UnrecognizedClientException", "The security token included in the request is invalid.", "aws configure"),
    ("ResourceInUse", "Training job names must be unique within an AWS account and region", "another --job-name"),
    ("ResourceLimitExceeded", "The account-level service limit 'ml.p4de.24xlarge' is 0", "Service Quotas"),
    ("ValidationException", "1 validation error detected: Could not assume role", "correct what it names"),
    ("SomethingNew", "", "correct what its message names"),
]


@pytest.mark.parametrize(("code", "text", "repair"), CODES)
def test_refusals_of_aws(monkeypatch, capsys, code, text, repair):
    with mock_aws():
        sagemaker = boto3.client("sagemaker", region_name="us-east-1")
        monkeypatch.setattr(cli, "client", lambda service: sagemaker)
        with Stubber(sagemaker) as stub:
            stub.add_client_error("describe_training_job", code, text)
            assert cli.main(["status", "first"]) == 1
    said = parts(capsys.readouterr().err)
    assert f"DescribeTrainingJob: {code}" in said[1] and text in said[1] and repair in said[3]


def test_every_code_has_another_text_than_the_general_one():
    assert len({what for what, _, _ in REFUSALS.values()}) == 7


def test_a_bucket_that_is_not_there_and_a_connection_that_is_not(tmp_path):
    """upload_file and download_file wrap what the service said."""
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        file = tmp_path / "file"
        file.write_text("text")
        with pytest.raises(AwsError, match="there is no such bucket"), told():
            s3.upload_file(str(file), "nowhere-at-all", "key")
        with pytest.raises(AwsError, match="there is no such bucket"):
            places.objects(s3, places.Place("nowhere-at-all", "key"))
        with pytest.raises(AwsError, match="AWS did not take the request"), told():
            raise EndpointConnectionError(endpoint_url="https://sagemaker.nowhere.amazonaws.com")


def test_logs_of_another_fault_than_none(monkeypatch, capsys):
    with mock_aws():
        logs = boto3.client("logs", region_name="us-east-1")
        assert jobs.log_lines(logs, "first", 3) == []
        monkeypatch.setattr(cli, "client", lambda service: logs)
        with Stubber(logs) as stub:
            stub.add_client_error("describe_log_streams", "AccessDeniedException", "not you")
            assert cli.main(["logs", "first"]) == 1
    assert "not you" in parts(capsys.readouterr().err)[1]
