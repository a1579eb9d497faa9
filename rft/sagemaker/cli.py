"""Runs as training jobs of AWS SageMaker.

    bash launch/sagemaker.sh submit LAUNCHER [OPENRLHF OPTION …] [--build] [--push] [--job-name NAME] [--spot] …
    bash launch/sagemaker.sh submit --local [--gpus 0,1] LAUNCHER [OPTION …]        here, in the container, without AWS
    bash launch/sagemaker.sh status|stop|resume JOB;  logs JOB [--lines N];  list

The commit that is checked out goes to the job, with the launcher's options and variables (SEED, RECIPE, MODEL, …).
SAGEMAKER_ROLE is the ARN that the job runs as, SAGEMAKER_BUCKET where it writes, SAGEMAKER_REPOSITORY the image's name.
"""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rft.sagemaker import image, jobs, source
from rft.sagemaker.aws import AwsError, client, message, told
from rft.sagemaker.claims import claimed
from rft.sagemaker.places import Place, parse

if TYPE_CHECKING:
    from botocore.client import BaseClient

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 30  # jobs of a list, the newest


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="launch/sagemaker.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = made.add_subparsers(dest="action", required=True, metavar="submit|status|logs|stop|resume|list")
    submit = actions.add_parser("submit", help="a launcher as a job", allow_abbrev=False)
    submit.add_argument("launcher", help="launch/train_….sh; its options follow")
    submit.add_argument("--build", action="store_true", help="make the image of this commit first")
    submit.add_argument("--push", action="store_true", help="and put it into ECR")
    submit.add_argument("--local", action="store_true", help="run it here, by docker")
    submit.add_argument("--gpus", default="all", help="of this machine, for --local: 0,1")
    submit.add_argument("--instance-type", default=jobs.Wanted._field_defaults["instance"])
    submit.add_argument("--instance-count", type=int, default=1, help="machines, each a node of the run's Ray")
    submit.add_argument("--volume-gb", type=int, default=jobs.Wanted._field_defaults["volume_gb"])
    submit.add_argument("--days", type=float, default=jobs.Wanted._field_defaults["days"], help="that it may take")
    submit.add_argument("--image-tag", help="default: the commit, twelve digits")
    submit.add_argument("--description", default="", help="for docs/job_log.md")
    submit.add_argument(
        "--spot", action="store_true", help="on spare capacity: taken away, it goes on from its snapshot"
    )
    resume = actions.add_parser("resume", help="one more job for a run whose job was stopped or has failed")
    resume.add_argument("job")
    for each in (submit, resume):
        each.add_argument("--job-name", help="default: made of launcher or job, and the time")
        each.add_argument("--wait", action="store_true", help="until it has ended; 1 where it is not complete then")
    for name, what in (("status", "what has become of a job"), ("stop", "save, then end"), ("logs", "its output")):
        actions.add_parser(name, help=what).add_argument("job")
    actions.choices["logs"].add_argument("--lines", type=int, default=100)
    actions.add_parser("list", help=f"the {SHOWN} newest jobs of docs/job_log.md, and their states")
    return made


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 for what AWS refuses or a job that failed, 2 for bad use, 130 after Ctrl-C."""
    args, options = parser().parse_known_args(argv)
    if options and args.action != "submit":
        parser().error(f"found {options[0]!r}, wanted nothing more")
    try:
        return globals()[f"{args.action}_job"](args, options)
    except AwsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("no longer waited for; a job that was submitted goes on: bash launch/sagemaker.sh list", file=sys.stderr)
        return 130


def submit_job(args: argparse.Namespace, options: list[str]) -> int:
    require_hosts(args.instance_count, args.launcher, args.local)
    now = datetime.now(UTC)
    name = jobs.job_name(args.job_name, args.launcher, now)
    archive = source.archive(ROOT, args.launcher, options)
    tag = args.image_tag or source.git(ROOT, "rev-parse", "--short=12", "HEAD").decode().strip()
    title = os.environ.get("SAGEMAKER_REPOSITORY") or "rft"
    if args.local:
        address = f"{title}:{tag}"
        if args.build:
            image.build(ROOT, address)
        return image.run_here(address, args.gpus, archive)
    role, bucket = (setting(each) for each in ("SAGEMAKER_ROLE", "SAGEMAKER_BUCKET"))
    ecr, s3, sagemaker = (client(each) for each in ("ecr", "s3", "sagemaker"))
    address = f"{image.repository(ecr, title)}:{tag}"
    if args.build:
        image.build(ROOT, address)
    if args.push:
        image.push(ecr, address)
    image.require(ecr, title, tag)
    folder = Place(bucket, f"rft/{name}")
    # Of this submission alone: one that is refused since its name is taken must not change that job's archive.
    origin = folder / f"{jobs.SOURCE}/{now:%Y%m%dT%H%M%S}"
    machine = (args.instance_type, args.volume_gb, args.days, args.spot, args.instance_count)
    job = jobs.Wanted(name, address, role, folder, origin, *machine)
    place = origin / "source.tar.gz"
    with told():
        s3.put_object(Bucket=place.bucket, Key=place.key, Body=archive)
        sagemaker.create_training_job(**jobs.request(job))
    jobs.record(ROOT, name, args.launcher, args.description or " ".join(options), now)
    return submitted(sagemaker, name, str(folder), args.wait)


def require_hosts(count: int, launcher: str, local: bool) -> None:
    """Raises ValueError where a launcher cannot run on so many hosts."""
    if count < 1:
        raise ValueError(f"found --instance-count {count}, wanted 1 or more; correct it")
    if count > 1 and local:
        raise ValueError(
            f"found --local --instance-count {count}, wanted 1: hosts meet in S3, and --local has none; take it out"
        )
    if count > 1 and Path(launcher).name.startswith(("sft_", "train_sft_")):
        raise ValueError(
            f"found {launcher} --instance-count {count}, wanted 1: its ranks are of one machine; "
            "take a larger --instance-type"
        )


def resume_job(args: argparse.Namespace, _: list[str]) -> int:
    sagemaker, now = client("sagemaker"), datetime.now(UTC)
    name = jobs.job_name(args.job_name, args.job, now)
    request = jobs.again(jobs.describe(sagemaker, args.job), name)
    folder = parse(request["Environment"][jobs.S3_VARIABLE])
    with claimed(client("s3"), sagemaker, folder, args.job, name), told():
        sagemaker.create_training_job(**request)
    jobs.record(ROOT, name, f"resumes {args.job}", "", now)
    return submitted(sagemaker, name, str(folder), args.wait)


def submitted(sagemaker: "BaseClient", name: str, folder: str, waits: bool) -> int:
    """Say where a job is, and wait for its end where that is wanted; the exit status."""
    print(f"submitted: {name}\nS3: {folder}\nbash launch/sagemaker.sh status {name}")
    if not waits:
        return 0
    found = jobs.wait(sagemaker, name)
    print("\n".join(jobs.summary(found)))
    return int(found["TrainingJobStatus"] != "Completed")


def status_job(args: argparse.Namespace, _: list[str]) -> int:
    print("\n".join(jobs.summary(jobs.describe(client("sagemaker"), args.job))))
    return 0


def stop_job(args: argparse.Namespace, _: list[str]) -> int:
    with told():
        client("sagemaker").stop_training_job(TrainingJobName=args.job)
    print(f"asked to stop: {args.job}; it has 120 s to save what it trained")
    return 0


def logs_job(args: argparse.Namespace, _: list[str]) -> int:
    lines = jobs.log_lines(client("logs"), args.job, args.lines)
    print("\n".join(lines) if lines else f"{args.job} has printed nothing yet")
    return 0


def list_job(_: argparse.Namespace, __: list[str]) -> int:
    rows = jobs.recorded(ROOT)[:SHOWN]
    sagemaker = client("sagemaker") if rows else None
    for name, launcher, description, submitted in rows:
        found = jobs.known(sagemaker, name)
        state = found["TrainingJobStatus"] if found else "not in this account and region"
        print(f"{name:<64} {state:<12} {submitted}  {launcher}  {description}")
    if not rows:
        print(f"no job in {jobs.LOG}")
    return 0


def setting(name: str) -> str:
    """A variable of the environment that a submission needs. Raises AwsError without it."""
    if value := os.environ.get(name):
        return value
    wanted = {"SAGEMAKER_ROLE": "the ARN that the job runs as", "SAGEMAKER_BUCKET": "the bucket that it writes to"}[
        name
    ]
    raise AwsError(message(f"{name} is not set", f"no {name}", wanted, f"export {name}=…"))
