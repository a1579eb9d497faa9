"""The container: built from launch/sagemaker/Dockerfile, pushed to ECR, or run on this machine."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rft.sagemaker.aws import AwsError, message, told
from rft.sagemaker.jobs import SOURCE
from rft.sagemaker.source import tracked

if TYPE_CHECKING:
    from botocore.client import BaseClient

DOCKERFILE = "launch/sagemaker/Dockerfile"
# Of the user, for a job on this machine: by name, so that no value stands on a command line.
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION")


def repository(ecr: "BaseClient", name: str) -> str:
    """The address of a repository of the account, made where there is none."""
    from botocore.exceptions import ClientError

    with told():
        try:
            return ecr.describe_repositories(repositoryNames=[name])["repositories"][0]["repositoryUri"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "RepositoryNotFoundException":
                raise
        made = ecr.create_repository(repositoryName=name, imageScanningConfiguration={"scanOnPush": True})
        return made["repository"]["repositoryUri"]


def require(ecr: "BaseClient", name: str, tag: str) -> None:
    """Raise AwsError where a repository has no image of this tag."""
    from botocore.exceptions import ClientError

    with told():
        try:
            ecr.describe_images(repositoryName=name, imageIds=[{"imageTag": tag}])
            return
        except ClientError as error:
            if error.response["Error"]["Code"] != "ImageNotFoundException":
                raise
    repair = (
        "submit with --build --push, or with --image-tag TAG of an older commit whose packages and patches are the same"
    )
    raise AwsError(message("there is no image of this commit", f"no {name}:{tag} in ECR", "one", repair))


def build(root: Path, image: str) -> None:
    """Make the image of the commit that is checked out: nothing else of this folder gets into it."""
    docker("build", "--file", DOCKERFILE, "--tag", image, "-", stdin=tracked(root).getvalue())


def push(ecr: "BaseClient", image: str) -> None:
    """Log in to the registry and push. The password goes through a pipe, on no command line."""
    with told():
        granted = ecr.get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(granted["authorizationToken"]).decode().partition(":")
    docker("login", "--username", user, "--password-stdin", image.partition("/")[0], stdin=password.encode())
    docker("push", image)


def run_here(image: str, gpus: str, archive: bytes) -> int:
    """A job on this machine, without AWS; its exit status. What it leaves is in the folder that is printed."""
    ml = Path(tempfile.mkdtemp(prefix="rft-sagemaker-"))
    channel = ml / "input/data" / SOURCE
    for folder in (ml / "input/config", channel):
        folder.mkdir(parents=True)
    (channel / "source.tar.gz").write_bytes(archive)
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"}
    (ml / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
    print(f"the job's folder: {ml}", flush=True)
    words = ["--gpus", "all" if gpus == "all" else f'"device={gpus}"'] if gpus else []
    words += [word for name in CREDENTIALS if os.environ.get(name) for word in ("--env", name)]
    words += ["--shm-size", "8g", "--volume", f"{ml}:/opt/ml"]
    return docker("run", "--rm", *words, image, "train", check=False)


def docker(*words: str, stdin: bytes | None = None, check: bool = True) -> int:
    """Run docker with its output on this terminal; its exit status.

    Raises:
        AwsError: there is no docker, or it failed and `check` is set.
    """
    if not shutil.which("docker"):
        raise AwsError(
            message("there is no docker", "none on PATH", "docker, with which images are made", "install it")
        )
    done = subprocess.run(["docker", *words], input=stdin)
    if check and done.returncode:
        found = f"docker {words[0]}: exit status {done.returncode}, see above"
        raise AwsError(message(f"docker {words[0]} failed", found, "0", "correct what it says, then the same again"))
    return done.returncode
