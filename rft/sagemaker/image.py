"""The container: built from launch/sagemaker/Dockerfile, pushed to ECR, or run on this machine."""

import base64
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rft.sagemaker.aws import AwsError, message, told

if TYPE_CHECKING:
    from botocore.client import BaseClient

DOCKERFILE = "launch/sagemaker/Dockerfile"


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


def build(root: Path, image: str) -> None:
    docker("build", "--file", str(root / DOCKERFILE), "--tag", image, str(root))


def push(ecr: "BaseClient", image: str) -> None:
    """Log in to the registry and push. The password goes through a pipe, on no command line."""
    with told():
        granted = ecr.get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(granted["authorizationToken"]).decode().partition(":")
    docker("login", "--username", user, "--password-stdin", image.partition("/")[0], stdin=password)
    docker("push", image)


def run_here(image: str, gpus: str, archive: bytes) -> int:
    """A job on this machine, without AWS; its exit status. What it leaves is in the folder that is printed."""
    ml = Path(tempfile.mkdtemp(prefix="rft-sagemaker-"))
    for folder in ("input/config", "input/data/source", "model", "output"):
        (ml / folder).mkdir(parents=True)
    (ml / "input/data/source/source.tar.gz").write_bytes(archive)
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"}
    (ml / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
    print(f"the job's folder: {ml}", flush=True)
    given = ["--gpus", f'"device={gpus}"'] if gpus else []
    return docker("run", "--rm", *given, "--shm-size", "8g", "--volume", f"{ml}:/opt/ml", image, check=False)


def docker(*words: str, stdin: str | None = None, check: bool = True) -> int:
    """Run docker with its output on this terminal; its exit status.

    Raises:
        AwsError: there is no docker, or it failed and `check` is set.
    """
    if not shutil.which("docker"):
        raise AwsError(
            message("there is no docker", "none on PATH", "docker, with which images are made", "install it")
        )
    done = subprocess.run(["docker", *words], input=stdin, text=True)
    if check and done.returncode:
        found = f"docker {words[0]}: exit status {done.returncode}, see above"
        raise AwsError(message(f"docker {words[0]} failed", found, "0", "correct what it says, then the same again"))
    return done.returncode
