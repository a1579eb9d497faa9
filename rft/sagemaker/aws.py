"""AWS's clients, and its errors as one message each."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from botocore.client import BaseClient

CREDENTIALS = "export AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure"
QUIET = ("AWS takes no more requests for now", "fewer requests", "the same command again in a minute")
DENIED = (
    "this user or role may not do that",
    "the actions of launch/sagemaker/policy.json; in a job, those of launch/sagemaker/job_policy.json",
    "attach that policy to the user of your credentials, or to the job's role",
)
EXPIRED = ("the credentials are not valid, or not any more", "valid ones", CREDENTIALS)
NO_BUCKET = (
    "there is no such bucket",
    "a bucket of yours",
    "correct SAGEMAKER_BUCKET, or make it: aws s3 mb s3://NAME",
)
# Code of the service -> what is wrong, what was wanted, what repairs it.
REFUSALS = {
    **dict.fromkeys(("ThrottlingException", "Throttling", "TooManyRequestsException", "SlowDown"), QUIET),
    **dict.fromkeys(("AccessDeniedException", "AccessDenied", "403", "UnauthorizedOperation"), DENIED),
    **dict.fromkeys(
        ("ExpiredTokenException", "ExpiredToken", "InvalidClientTokenId", "UnrecognizedClientException"), EXPIRED
    ),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSignatureException"), EXPIRED),
    "ResourceInUse": ("the name is taken", "a name that no job of this account has had", "choose another --job-name"),
    "ResourceLimitExceeded": (
        "the account's quota of such machines is used up",
        "a quota above what runs already",
        "choose another --instance-type, or ask for more under Service Quotas, Amazon SageMaker",
    ),
    "NoSuchBucket": NO_BUCKET,
    "ValidationException": ("SageMaker refuses the request", "what its message says", "correct what it names"),
}
ANY = ("AWS refuses the request", "an answer", "correct what its message names")
# Retries of botocore's own, and no connection that hangs for longer than a job has after SIGTERM.
CONFIG = {"retries": {"mode": "standard", "total_max_attempts": 4}, "connect_timeout": 10, "read_timeout": 30}


class AwsError(RuntimeError):
    """What AWS did not do; the text has found, wanted and repair."""


def client(service: str) -> "BaseClient":
    """A client of a service, in the region of the user's configuration.

    Raises:
        AwsError: boto3 is missing, or no region is configured.
    """
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError:
        raise AwsError(message("boto3 is not installed", "none", "boto3 in .venv", "make setup")) from None
    with told():
        # SageMaker sets AWS_REGION, which boto3 does not read.
        region = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")
        return boto3.client(service, region_name=region, config=Config(**CONFIG))


@contextmanager
def told() -> Iterator[None]:
    """Raises AwsError for what boto3 raises inside."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        refused(error)
    except Boto3Error as error:  # of upload_file and download_file, raised while the service's own was handled
        if isinstance(error.__context__, exceptions.ClientError):
            refused(error.__context__)
        raise AwsError(message("a copy to or from S3 failed", error, "a copy", "the same command again")) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise AwsError(message("no AWS credentials", error, "credentials of a user or role", CREDENTIALS)) from None
    except exceptions.NoRegionError as error:
        found = message("no AWS region", error, "the region of your jobs", "export AWS_DEFAULT_REGION=us-east-1")
        raise AwsError(found) from None
    except exceptions.BotoCoreError as error:
        repair = "check the network, AWS_DEFAULT_REGION and the names"
        raise AwsError(message("AWS did not take the request", error, "an answer", repair)) from None


def refused(error: "Exception") -> NoReturn:
    """Raise the AwsError of a botocore ClientError."""
    details = error.response.get("Error", {})
    code = str(details.get("Code", "unknown"))
    what, wanted, repair = REFUSALS.get(code, ANY)
    said = re.sub(r"\s+", " ", details.get("Message", "")).strip()
    raise AwsError(message(what, f"{error.operation_name}: {code}: {said}".rstrip(": "), wanted, repair)) from None


def message(what: str, found: object, wanted: str, repair: str) -> str:
    """The four lines of a refusal, without `error: `."""
    return f"{what}\n  found:  {found}\n  wanted: {wanted}\n  repair: {repair}"
