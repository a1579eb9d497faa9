"""The client's commands: SageMaker, S3, ECR and CloudWatch are moto's, docker is a program that notes its words."""

import io
import json
import re
import tarfile
import tempfile
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws
from sagemaker_jobs import ROOT, toy

from rft.sagemaker import cli, jobs
from rft.sagemaker.claims import claimed
from rft.sagemaker.source import COMMAND

ROLE, BUCKET = "arn:aws:iam::123456789012:role/rft", "bucket"
DOCKER = """#!/bin/bash
printf '%q ' "$@" >>"$(dirname "$0")/calls"; echo >>"$(dirname "$0")/calls"
case $1 in build | login) cat >"$(dirname "$0")/stdin_$1" ;; run) exit 10 ;; esac
[[ ! -e $(dirname "$0")/fails ]]
"""


class World:
    """An account, a checkout and a docker."""

    def __init__(self, place: Path) -> None:
        self.checkout, self.docker, self.called = toy(place / "checkout"), place / "bin", set()
        self.docker.mkdir()
        (self.docker / "docker").write_text(DOCKER)
        (self.docker / "docker").chmod(0o755)
        boto3.setup_default_session(region_name="us-east-1")
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        # By its own events: what the commands ask of AWS.
        boto3.DEFAULT_SESSION.events.register("before-call.*.*", self.note)

    def note(self, model, **_: object) -> None:
        service = {"cloudwatch logs": "logs"}.get(
            model.service_model.service_id.lower(), model.service_model.service_id
        )
        self.called.add(f"{service.lower()}:{model.name}")

    def calls(self) -> list[str]:
        file = self.docker / "calls"
        return file.read_text().splitlines() if file.is_file() else []


def put_image(tag: str) -> None:
    """What docker would push."""
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:0"}, "layers": []})
    boto3.client("ecr").put_image(repositoryName="rft", imageManifest=manifest, imageTag=tag)


def with_image(tag: str) -> None:
    """A repository that has an image."""
    boto3.client("ecr").create_repository(repositoryName="rft")
    put_image(tag)


@pytest.fixture
def world(tmp_path, monkeypatch):
    with mock_aws():
        made = World(tmp_path)
        monkeypatch.setattr(cli, "ROOT", made.checkout)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("PATH", f"{made.docker}:/usr/bin:/bin")
        for name, value in (("ROLE", ROLE), ("BUCKET", BUCKET), ("REPOSITORY", "")):
            monkeypatch.setenv(f"SAGEMAKER_{name}", value)
        yield made
    boto3.DEFAULT_SESSION = None


def submit(*words: str) -> int:
    return cli.main(["submit", "launch/train_toy.sh", "--job-name", "first", *words])


def command_in(content: bytes) -> dict:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert "launch/train_toy.sh" in archive.getnames()
        return json.load(archive.extractfile(COMMAND))


def test_submit_status_logs_and_list(world, monkeypatch, capsys):
    with_image("old")
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
    words = ("--steps", "4", "--image-tag", "old", "--spot", "--description", "a | b", "--days", "2", "--wait")
    words += ("--instance-count", "2")
    assert submit(*words) == 0
    assert "Completed" in capsys.readouterr().out

    found = boto3.client("sagemaker").describe_training_job(TrainingJobName="first")
    assert found["RoleArn"] == ROLE and found["EnableManagedSpotTraining"]
    assert found["AlgorithmSpecification"]["TrainingImage"].endswith("/rft:old")
    assert found["StoppingCondition"] == {"MaxRuntimeInSeconds": 172800, "MaxWaitTimeInSeconds": 345600}
    assert found["ResourceConfig"]["InstanceCount"] == 2 and "HyperParameters" not in found
    (channel,) = found["InputDataConfig"]
    place = channel["DataSource"]["S3DataSource"]["S3Uri"]
    assert re.fullmatch(rf"s3://{BUCKET}/rft/first/source/\d{{8}}T\d{{6}}", place)
    key = f"{place.removeprefix(f's3://{BUCKET}/')}/source.tar.gz"
    stored = boto3.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
    command = command_in(stored)
    assert (command["options"], command["environment"]) == (["--steps", "4"], {"SEED": "3"})
    assert b"hf_" not in stored and len(command["commit"]) == 40

    assert cli.main(["status", "first"]) == 0
    assert capsys.readouterr().out.startswith("first: Completed")
    assert cli.main(["logs", "first"]) == 0
    assert capsys.readouterr().out == "first has printed nothing yet\n"
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName=jobs.LOG_GROUP)
    logs.create_log_stream(logGroupName=jobs.LOG_GROUP, logStreamName="first/algo-1-17")
    lines = [{"timestamp": jobs.time.time_ns() // 1000000 + n, "message": f"line {n}"} for n in range(3)]
    logs.put_log_events(logGroupName=jobs.LOG_GROUP, logStreamName="first/algo-1-17", logEvents=lines)
    assert cli.main(["logs", "first", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "line 1\nline 2\n"
    # Of two hosts.
    logs.create_log_stream(logGroupName=jobs.LOG_GROUP, logStreamName="first/algo-2-17")
    second = [{"timestamp": lines[0]["timestamp"] + n, "message": f"of the second {n}"} for n in range(2)]
    logs.put_log_events(logGroupName=jobs.LOG_GROUP, logStreamName="first/algo-2-17", logEvents=second)
    assert cli.main(["logs", "first", "--lines", "3"]) == 0
    assert capsys.readouterr().out == "algo-1: line 1\nalgo-2: of the second 1\nalgo-1: line 2\n"

    assert "| first | launch/train_toy.sh | a / b |" in (world.checkout / jobs.LOG).read_text()
    with (world.checkout / jobs.LOG).open("a") as file:
        file.write("| gone | launch/train_toy.sh | | 2026-01-01 00:00 |\n")
    assert cli.main(["list"]) == 0
    gone, first = capsys.readouterr().out.splitlines()
    assert re.match(r"gone +not in this account", gone) and re.match(r"first +Completed ", first)
    # The list of jobs is no change of the code.
    assert cli.main(["submit", "launch/train_toy.sh", "--job-name", "second", "--image-tag", "old"]) == 0


def test_an_image_is_made_of_the_commit_and_pushed(world, capsys):
    (world.checkout / "not_committed").write_text("local")
    assert submit("--build", "--push") == 1  # this docker pushes nothing
    assert "there is no image of this commit" in capsys.readouterr().err
    build, login, push = world.calls()
    address = push.split()[1]
    assert re.fullmatch(r"123456789012\.dkr\.ecr\.us-east-1\.amazonaws\.com/rft:[0-9a-f]{12}", address)
    assert build.split() == ["build", "--file", "launch/sagemaker/Dockerfile", "--tag", address, "-"]
    with tarfile.open(world.docker / "stdin_build") as context:
        assert set(context.getnames()) == {"launch", *(f"launch/{name}.sh" for name in ("train_toy", "resume", "node"))}
    assert login.split()[:2] == ["login", "--username"] and "--password-stdin" in login
    password = (world.docker / "stdin_login").read_text()
    assert password and password not in login


def test_a_docker_that_fails_or_is_not_there_ends_it(world, monkeypatch, capsys):
    (world.docker / "fails").touch()
    assert submit("--build") == 1
    assert "error: docker build failed" in capsys.readouterr().err
    (world.docker / "docker").unlink()
    assert submit("--local") == 1
    assert "error: there is no docker" in capsys.readouterr().err


def test_a_job_on_this_machine_needs_no_account(world, monkeypatch, capsys):
    for name in ("SAGEMAKER_ROLE", "SAGEMAKER_BUCKET"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    world.called.clear()
    assert submit("--local", "--gpus", "0,1", "--image-tag", "mine", "--steps", "1") == 10
    (call,) = world.calls()
    assert call.startswith('run --rm --gpus \\"device=0\\,1\\" ') and call.endswith("rft:mine train ")
    assert "--env AWS_SECRET_ACCESS_KEY" in call and "s3cret" not in call
    folder = Path(capsys.readouterr().out.splitlines()[0].removeprefix("the job's folder: "))
    assert f"{folder}:/opt/ml" in call
    content = (folder / "input/data/source/source.tar.gz").read_bytes()
    assert command_in(content)["options"] == ["--steps", "1"] and not world.called


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launch/train_toy.sh", "--instance-count", "0"], "found --instance-count 0, wanted 1 or more"),
        (["launch/train_toy.sh", "--local", "--instance-count", "2"], "wanted 1: hosts meet in S3"),
        (["launch/sft_20b.sh", "--instance-count", "2"], "wanted 1: its ranks are of one machine"),
        (["launch/train_no.sh"], "found 'launch/train_no.sh'"),
        (["launch/resume.sh"], "wanted a launcher"),
        (["launch/train_toy.sh", "--job-name", "under_score"], "found --job-name 'under_score'"),
        (["launch/train_toy.sh", "--use_wandb=hf_" + "a" * 34], "found a key in --use_wandb,"),
        (["launch/train_toy.sh", "--use_wandb", "0123456789" * 4], "found a key in the options,"),
    ],
)
def test_what_is_refused_before_aws_is_asked(world, words, message, capsys):
    assert cli.main(["submit", *words]) == 2
    assert message in capsys.readouterr().err and not world.called


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("OUTPUT_ROOT=/data/out", "unset OUTPUT_ROOT"),
        ("MODEL=/models/20b", "s3://BUCKET/"),
        ("WANDB_PROJECT=AKIA" + "A" * 16, "found a key in WANDB_PROJECT,"),
    ],
)
def test_variables_that_cannot_travel_are_refused(world, monkeypatch, variable, message, capsys):
    monkeypatch.setenv(*variable.split("=", 1))
    assert submit() == 2
    assert message in capsys.readouterr().err and not world.called


WORDS = ["--seed", "3", "-1e-3", "--kl=0.1", "q_proj", "--flag", "a b", "", "s3://bucket/a,b.jsonl", "--builds"]


@given(st.lists(st.sampled_from(WORDS)), st.booleans())
def test_options_of_the_launcher_keep_their_order(words, ours_first):
    ours = ["--spot", "--days", "2"]
    more = [*ours, "launch/train_toy.sh", *words] if ours_first else ["launch/train_toy.sh", *words, *ours]
    args, options = cli.parser().parse_known_args(["submit", *more])
    assert (args.launcher, args.spot, args.days, options) == ("launch/train_toy.sh", True, 2, words)


def test_no_option_of_ours_is_one_of_the_trainer():
    text = (ROOT / "rft/options/openrlhf_options.txt").read_text()
    theirs = set(re.findall(r"""add_argument\(\s*['"](--\w+)""", text))
    ours = set(re.findall(r"--[a-z-]+", (ROOT / "rft/sagemaker/cli.py").read_text()))
    assert "--instance-count" in ours and "--lora_rank" in theirs and not ours & theirs


def test_changes_that_no_commit_holds_are_refused(world, capsys):
    (world.checkout / "launch/resume.sh").write_text("other")
    assert submit() == 2
    assert "M launch/resume.sh" in capsys.readouterr().err


def test_settings_that_are_missing_are_named(world, monkeypatch, capsys):
    for name in ("SAGEMAKER_ROLE", "SAGEMAKER_BUCKET"):
        monkeypatch.setenv(name, "")
        assert submit() == 1
        assert f"export {name}=" in capsys.readouterr().err
        monkeypatch.setenv(name, ROLE)


def test_stop(world, monkeypatch, capsys):
    """moto has no stop_training_job."""
    sagemaker = boto3.client("sagemaker")
    monkeypatch.setattr(cli, "client", lambda service: {"sagemaker": sagemaker}[service])
    with Stubber(sagemaker) as stub:
        stub.add_response("stop_training_job", {}, {"TrainingJobName": "first"})
        assert cli.main(["stop", "first"]) == 0
        stub.assert_no_pending_responses()
    assert "120 s" in capsys.readouterr().out


def described(status: str, secondary: str, **more: object) -> dict:
    """An answer of describe_training_job, which has more in it than is read."""
    now = jobs.datetime.now(jobs.UTC)
    return {
        "TrainingJobName": "first",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/first",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/model"},
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "ml.p4de.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100},
        "StoppingCondition": {},
        "CreationTime": now,
        **more,
    }


def test_wait_walks_through_the_states_of_a_spot_job(world, capsys):
    walk = [("InProgress", "Starting"), ("InProgress", "Training"), ("InProgress", "Training")]
    walk += [("InProgress", "Interrupted"), ("InProgress", "Training"), ("Failed", "Failed")]
    sagemaker = boto3.client("sagemaker")
    with Stubber(sagemaker) as stub:
        for status, secondary in walk:
            reason = {"FailureReason": "error: no luck"} if status == "Failed" else {}
            stub.add_response("describe_training_job", described(status, secondary, **reason))
        found = jobs.wait(sagemaker, "first", seconds=0)
        stub.assert_no_pending_responses()
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "InProgress, Starting",
        "InProgress, Training",
        "InProgress, Interrupted",
        "InProgress, Training",
        "Failed, Failed",
    ]
    assert jobs.summary(found)[-1] == "reason: error: no luck"


def test_who_no_longer_waits_is_told_that_the_job_goes_on(world, capsys):
    def ctrl_c(**_: object) -> None:
        raise KeyboardInterrupt

    with_image("old")
    boto3.DEFAULT_SESSION.events.register("before-call.sagemaker.DescribeTrainingJob", ctrl_c)
    assert submit("--image-tag", "old", "--wait") == 130
    assert "goes on" in capsys.readouterr().err


def test_resume_goes_on_in_the_folder_of_a_job_that_was_stopped(world, monkeypatch, capsys):
    """moto keeps no environment of a job and stops none, so its answers are AWS's here."""
    sagemaker = boto3.client("sagemaker")
    clients = {"sagemaker": sagemaker, "s3": boto3.client("s3")}
    monkeypatch.setattr(cli, "client", clients.__getitem__)
    job = jobs.Wanted(
        "first", "image:tag", ROLE, cli.Place(BUCKET, "rft/first"), cli.Place(BUCKET, "rft/first/source/1")
    )
    assert jobs.request(job)["ResourceConfig"]["InstanceCount"] == 1
    asked = jobs.request(job._replace(spot=True, hosts=2))
    stopped = described("Stopped", "MaxRuntimeExceeded", **asked)
    with Stubber(sagemaker) as stub:
        stub.add_response("describe_training_job", stopped, {"TrainingJobName": "first"})
        answer = {"TrainingJobArn": stopped["TrainingJobArn"]}
        stub.add_response("create_training_job", answer, asked | {"TrainingJobName": "second"})
        assert cli.main(["resume", "first", "--job-name", "second"]) == 0
        for name, state in (("first", stopped), ("second", described("InProgress", "Training", **asked))):
            stub.add_response("describe_training_job", state, {"TrainingJobName": name})
        assert cli.main(["resume", "first", "--job-name", "third"]) == 2
        for state in ("InProgress", "Completed"):
            stub.add_response("describe_training_job", described(state, state, **asked))
            assert cli.main(["resume", "first"]) == 2
        stub.add_response("describe_training_job", described("Failed", "Failed"))
        assert cli.main(["resume", "first"]) == 2
        stub.assert_no_pending_responses()
    shown = capsys.readouterr()
    assert f"S3: s3://{BUCKET}/rft/first\n" in shown.out
    assert "found first resumed by second, InProgress; wanted one job at a time; resume second" in shown.err
    assert "machine: 2 x ml.p4de.24xlarge" in jobs.summary(stopped)
    assert "found first InProgress" in shown.err and "found first Failed, with no folder of ours" in shown.err
    assert "| second | resumes first |" in (world.checkout / jobs.LOG).read_text()


# Docker's own requests to the registry, and what SageMaker asks on behalf of who makes a job.
NOT_OURS = {f"ecr:{name}" for name in ("BatchCheckLayerAvailability", "CompleteLayerUpload", "InitiateLayerUpload")}
NOT_OURS |= {"ecr:PutImage", "ecr:UploadLayerPart", "iam:PassRole"}


def test_the_policy_allows_what_the_commands_call_and_no_more(world):
    assert submit("--build", "--push") == 1  # makes the repository, and finds no image
    put_image("old")
    boto3.client("logs").create_log_group(logGroupName=jobs.LOG_GROUP)
    boto3.client("logs").create_log_stream(logGroupName=jobs.LOG_GROUP, logStreamName="first/a")
    world.called.clear()
    assert submit("--build", "--push", "--image-tag", "old", "--wait") == 0
    for words in (["status", "first"], ["logs", "first"], ["list"]):
        assert cli.main(words) == 0
    with pytest.raises(NotImplementedError):  # by moto, which has been asked
        cli.main(["stop", "first"])
    world.called.add("ecr:CreateRepository")
    aws = (cli.client("s3"), cli.client("sagemaker"), cli.Place(BUCKET, "rft/first"))
    with claimed(*aws, "first", "second"), pytest.raises(ValueError), claimed(*aws, "first", "third"):
        pass
    policy = json.loads((ROOT / "launch/sagemaker/policy.json").read_text())
    allowed = {name for part in policy["Statement"] for name in listed(part["Action"])}
    assert allowed - NOT_OURS == world.called and allowed >= NOT_OURS


def listed(actions: str | list[str]) -> list[str]:
    return [actions] if isinstance(actions, str) else actions
