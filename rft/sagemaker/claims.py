"""Which job goes on with a run: an ended job is resumed by one other, so that no two write to one folder.

`resumed/JOB` in the run's folder names the job that goes on from JOB. S3's conditional writes let one of two win.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rft.sagemaker.aws import told
from rft.sagemaker.jobs import S3_VARIABLE, known
from rft.sagemaker.places import Place

if TYPE_CHECKING:
    from botocore.client import BaseClient

LOST = ("PreconditionFailed", "ConditionalRequestConflict")
MAKING = timedelta(minutes=10)  # for which a claim may have no job yet; a killed command leaves one without


@contextmanager
def claimed(s3: "BaseClient", sagemaker: "BaseClient", folder: Place, job: str, name: str) -> Iterator[None]:
    """`name` alone goes on with the run of `job`; given back where what is done inside fails.

    Raises:
        ValueError: another one does, or may be about to.
        AwsError: of S3 or SageMaker.
    """
    place = folder / f"resumed/{job}"
    with told():
        mark = written(s3, place, name, IfNoneMatch="*") or taken_over(s3, sagemaker, folder, job, name)
    try:
        yield
    except BaseException:
        with told():
            written(s3, place, "", IfMatch=mark)
        raise


def taken_over(s3: "BaseClient", sagemaker: "BaseClient", folder: Place, job: str, name: str) -> str:
    """The ETag of a claim that was free: given back, or of a job that was never made."""
    place = folder / f"resumed/{job}"
    found = s3.get_object(Bucket=place.bucket, Key=place.key)
    holder = found["Body"].read().decode()
    made = known(sagemaker, holder) if holder else None
    if made and made.get("Environment", {}).get(S3_VARIABLE) == str(folder):
        state = made["TrainingJobStatus"]
        raise ValueError(f"found {job} resumed by {holder}, {state}; wanted one job at a time; resume {holder} instead")
    is_new = holder and datetime.now(UTC) - found["LastModified"] < MAKING
    mark = None if is_new else written(s3, place, name, IfMatch=found["ETag"])
    if not mark:
        raise ValueError(
            f"found another resume of {job} begun, wanted one; in 10 minutes it is made, or can be repeated"
        )
    return mark


def written(s3: "BaseClient", place: Place, text: str, **condition: str) -> str | None:
    """The ETag of what was written; None where the condition did not hold."""
    from botocore.exceptions import ClientError

    try:
        return s3.put_object(Bucket=place.bucket, Key=place.key, Body=text.encode(), **condition)["ETag"]
    except ClientError as error:
        if error.response["Error"]["Code"] in LOST:
            return None
        raise
