"""Training jobs of SageMaker: what is asked for, and what has become of it."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.record.files import append_lines
from rft.sagemaker.aws import AwsError, told
from rft.sagemaker.places import Place

if TYPE_CHECKING:
    from botocore.client import BaseClient

NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")  # CreateTrainingJob's own
LONGEST_NAME = 63
SOURCE = "source"  # the channel that brings the archive
S3_VARIABLE = "RFT_SAGEMAKER_S3"  # of the container: the job's folder
DAY = 24 * 3600
LOG = "docs/job_log.md"
LOG_HEADER = "| Job | Launcher | Description | Submitted |\n|---|---|---|---|\n"
ENDED = ("Completed", "Failed", "Stopped")
UNFINISHED = ("Stopped", "Failed")
# What a job that goes on has from the one before it.
COPIED = ("AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig", "ResourceConfig")
COPIED += ("StoppingCondition", "EnableManagedSpotTraining", "Environment")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
HOST = re.compile(r"/(algo-\d+)")  # in a log stream's name


class Wanted(NamedTuple):
    """A job that is to be made.

    Args:
        name: see `job_name`.
        image: address of the container in ECR.
        role: ARN that the job runs as.
        folder: of the job in S3.
        source: there, below which its archive is, and nothing of another submission.
        instance, volume_gb: its machine and disk.
        days: after which SageMaker ends it.
        spot: on capacity that may be taken away; it then begins anew, and goes on from its last snapshot.
        hosts: machines of that kind.
    """

    name: str
    image: str
    role: str
    folder: Place
    source: Place
    instance: str = "ml.p4de.24xlarge"
    volume_gb: int = 200
    days: float = 5
    spot: bool = False
    hosts: int = 1


def job_name(given: str | None, launcher: str, now: datetime) -> str:
    """A name as SageMaker takes it: `given`, or the launcher's with the time.

    Raises:
        ValueError: letters, digits and single `-` between them, 63 at most.
    """
    name = given or f"{Path(launcher).stem.replace('_', '-')[:44]}-{now:%Y%m%d-%H%M%S}"
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"found --job-name {name!r}, wanted letters, digits and - between them, {LONGEST_NAME} at most; correct it"
        )
    return name


def request(job: Wanted) -> dict:
    """The arguments of `create_training_job`. The command is in the archive: no option or key stands here."""
    seconds = round(job.days * DAY)
    stopping = {"MaxRuntimeInSeconds": seconds} | ({"MaxWaitTimeInSeconds": 2 * seconds} if job.spot else {})
    source = {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            "S3Uri": str(job.source),
            "S3DataDistributionType": "FullyReplicated",
        }
    }
    return {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {"TrainingImage": job.image, "TrainingInputMode": "File"},
        "RoleArn": job.role,
        "InputDataConfig": [{"ChannelName": SOURCE, "DataSource": source}],
        "OutputDataConfig": {"S3OutputPath": str(job.folder / "output")},
        "ResourceConfig": {"InstanceType": job.instance, "InstanceCount": job.hosts, "VolumeSizeInGB": job.volume_gb},
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": job.spot,
        "Environment": {S3_VARIABLE: str(job.folder)},
    }


def again(found: dict, name: str) -> dict:
    """The arguments of `create_training_job` for a job that goes on with the run of a described one, in its folder.

    Raises:
        ValueError: it has not ended, is complete, or has no folder.
    """
    state, folder = found["TrainingJobStatus"], found.get("Environment", {}).get(S3_VARIABLE)
    if state not in UNFINISHED or not folder:
        said = f"found {found['TrainingJobName']} {state}, with {folder or 'no folder of ours'}"
        raise ValueError(f"{said}; wanted a job of ours that has {' or '.join(UNFINISHED)}; name another one")
    return {key: found[key] for key in COPIED if key in found} | {"TrainingJobName": name}


def record(root: Path, name: str, launcher: str, description: str, now: datetime) -> None:
    """A row of docs/job_log.md."""
    words = " ".join(description.split()).replace("|", "/")
    append_lines(root / LOG, f"| {name} | {launcher} | {words} | {now:%Y-%m-%d %H:%M} |\n", LOG_HEADER)


def recorded(root: Path) -> list[list[str]]:
    """The rows of docs/job_log.md, the newest first: job, launcher, description, submitted."""
    file = root / LOG
    lines = file.read_text().splitlines()[2:] if file.is_file() else []
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in reversed(lines)]
    return [row for row in rows if len(row) == 4]


def describe(sagemaker: "BaseClient", name: str) -> dict:
    with told():
        return sagemaker.describe_training_job(TrainingJobName=name)


def known(sagemaker: "BaseClient", name: str) -> dict | None:
    """The described job; None where this account and region have none of that name."""
    try:
        return describe(sagemaker, name)
    except AwsError as error:
        if "ValidationException" in str(error) or "not found" in str(error):
            return None
        raise


def summary(found: dict) -> list[str]:
    """A described job in lines."""
    lines = [
        f"{found['TrainingJobName']}: {found['TrainingJobStatus']}, {found.get('SecondaryStatus', '')}".rstrip(", ")
    ]
    resources = found.get("ResourceConfig", {})
    if "InstanceType" in resources:
        count = resources.get("InstanceCount", 1)
        lines.append(f"machine: {f'{count} x ' if count > 1 else ''}{resources['InstanceType']}")
    begun, ended = found.get("TrainingStartTime"), found.get("TrainingEndTime")
    if begun:
        hours = ((ended or datetime.now(UTC)) - begun).total_seconds() / 3600
        lines.append(f"since {begun:%Y-%m-%d %H:%M}, {hours:.1f} hours")
    lines += [f"S3: {found['Environment'][S3_VARIABLE]}"] if S3_VARIABLE in found.get("Environment", {}) else []
    return lines + ([f"reason: {found['FailureReason']}"] if found.get("FailureReason") else [])


def wait(sagemaker: "BaseClient", name: str, seconds: float = 30.0) -> dict:
    """The described job once it has ended; each change of its state is printed."""
    before = None
    while True:
        found = describe(sagemaker, name)
        state = (found["TrainingJobStatus"], found.get("SecondaryStatus"))
        if state != before:
            print(f"{datetime.now(UTC):%H:%M:%S} {', '.join(filter(None, state))}", flush=True)
        if state[0] in ENDED:
            return found
        before = state
        time.sleep(seconds)


def log_lines(logs: "BaseClient", name: str, last: int) -> list[str]:
    """The last lines that a job's hosts have printed, of several in order of time and with the host's name."""
    from botocore.exceptions import ClientError

    lines: list[tuple[int, str]] = []
    with told():
        try:
            streams = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
            return []
        for stream in streams:
            got = logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream["logStreamName"], limit=last)
            host = HOST.search(stream["logStreamName"]) if len(streams) > 1 else None
            begin = f"{host[1]}: " if host else ""
            lines += [(event["timestamp"], f"{begin}{event['message']}") for event in got["events"]]
    return [line for _, line in sorted(lines, key=lambda each: each[0])][-last:]
