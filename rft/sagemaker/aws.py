"""AWS's clients, and its errors as one message each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.client import BaseClient

CREDENTIALS = "aws configure, or export AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# Code of the service -> what is wrong, what was wanted, what repairs it.
REFUSALS = {
    "ThrottlingException": (
        "AWS answers too many requests slowly",
        "a moment without them",
        "the same again in a minute",
    ),
    "AccessDeniedException": (
        "this user may not do that",
        "the actions of launch/sagemaker/policy.json",
        "attach that policy to the user or role of your credentials",
    ),
    "ExpiredTokenException": ("the credentials have expired", "credentials that are valid", "log in again"),
    "ResourceInUse": ("the name is taken", "a name that no job of this account has had", "another --job-name"),
    "ResourceLimitExceeded": (
        "the account's quota of such instances is used up",
        "a quota above what runs",
        "another --instance-type, or ask for more under Service Quotas, Amazon SageMaker",
    ),
    "NoSuchBucket": ("there is no such bucket", "a bucket of yours", "correct SAGEMAKER_BUCKET, or make it: aws s3 mb"),
    "ValidationException": (
        "SageMaker refuses the request",
        "what its message says",
        "correct the option that it names",
    ),
}
SAME = {"Throttling": "ThrottlingException", "TooManyRequestsException": "ThrottlingException"}
SAME |= {
    "AccessDenied": "AccessDeniedException",
    "403": "AccessDeniedException",
    "ExpiredToken": "ExpiredTokenException",
}
ATTEMPTS = {"retries": {"mode": "standard", "total_max_attempts": 4}}


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
        raise AwsError(message("boto3 is not installed", "no boto3", "the extra sagemaker", "make setup")) from None
    with told():
        return boto3.client(service, config=Config(**ATTEMPTS))


@contextmanager
def told() -> Iterator[None]:
    """Raises AwsError for what botocore raises inside."""
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise AwsError(message("no AWS credentials", error, "credentials of a user", CREDENTIALS)) from None
    except exceptions.NoRegionError as error:
        raise AwsError(
            message("no AWS region", error, "the region of the job", "export AWS_DEFAULT_REGION=…")
        ) from None
    except exceptions.ClientError as error:
        details = error.response.get("Error", {})
        code = details.get("Code", "unknown")
        what, wanted, repair = REFUSALS.get(
            SAME.get(code, code), ("AWS refused the request", "an answer", "correct what the message names")
        )
        found = f"{error.operation_name}: {code}: {details.get('Message', '')}".rstrip(": ")
        raise AwsError(message(what, found, wanted, repair)) from None
    except exceptions.BotoCoreError as error:
        raise AwsError(message("AWS did not answer", error, "a connection", "check network and region")) from None


def message(what: str, found: object, wanted: str, repair: str) -> str:
    """The four lines of a refusal, without `error: `."""
    return f"{what}\n  found:  {found}\n  wanted: {wanted}\n  repair: {repair}"
