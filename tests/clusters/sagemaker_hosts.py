"""A job of SageMaker on several hosts: the container's entry point on each, on a disk of its own, S3 on the first."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from host_network import Host, network
from s3_server import listening
from sagemaker_jobs import BUCKET, ROOT, image

from rft.sagemaker.jobs import S3_VARIABLE, SOURCE

NAMES = ("algo-1", "algo-2")
DISK = Path("/tmp/rft-disk")  # of each host; short: AF_UNIX paths end at 107 bytes
MACHINE = DISK / "ml"  # /opt/ml of each container


class Hosts:
    """The containers of a job, which have begun; `said[i]` is the file of what host i prints."""

    def __init__(
        self, hosts: list[Host], place: Path, archive: bytes, folder: str, environment: dict[str, str]
    ) -> None:
        place.mkdir()
        self.hosts, self.run = hosts, MACHINE / "runs" / folder
        self.said = [place / host.name for host in hosts]
        self.containers = []
        given = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | environment
        given |= {S3_VARIABLE: f"s3://{BUCKET}/rft/{folder}", "TRAINING_JOB_NAME": folder, "NODE_TMP": str(DISK)}
        command = [sys.executable, "-m", "rft.sagemaker.container", "train", "--root", str(MACHINE)]
        for index, host in enumerate(hosts):
            root = self.disk(index) / "ml"
            (root / "input/data" / SOURCE).mkdir(parents=True)
            (root / "input/data" / SOURCE / "source.tar.gz").write_bytes(archive)
            (root / "input/config").mkdir()
            told = {"current_host": host.name, "hosts": list(NAMES), "network_interface_name": "eth0"}
            (root / "input/config/resourceconfig.json").write_text(json.dumps(told))
            image(self.disk(index) / "image", DISK / "image")
            with self.said[index].open("wb") as out:
                # The actor's second rank and the engine share the second host.
                own = given | {"NODE_GPUS": str(index + 1), "NODE_CPUS": "4"}
                started = host.start(
                    [*command, "--checkout", str(DISK / "image")], cwd=ROOT, env=own, stdout=out, stderr=out
                )
                self.containers.append(started)

    def disk(self, index: int) -> Path:
        """The disk of a host, as this process reaches it."""
        return Path(f"/proc/{self.hosts[index].holder.pid}/root{DISK}")

    def text(self, index: int) -> str:
        return self.said[index].read_text(errors="replace")

    def until(self, index: int, text: str, seconds: float = 900) -> None:
        """Wait for what a host says."""
        deadline = time.monotonic() + seconds
        while text not in self.text(index):
            running = all(each.poll() is None for each in self.containers)
            assert running and time.monotonic() < deadline, self.everything()
            time.sleep(0.05)

    def end(self) -> list[int]:
        """The containers' statuses, once all have ended by themselves."""
        return [each.wait(timeout=1500) for each in self.containers]

    def signal(self, number: int) -> None:
        """To all containers at once, as SageMaker ends a job."""
        for each in self.containers:
            each.send_signal(number)

    def everything(self) -> str:
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-6000:]}" for file in self.said)

    def copy_run(self, to: Path) -> Path:
        """The run as it is on the head's disk."""
        found = self.disk(0) / self.run.relative_to(DISK)
        shutil.copytree(found, to, symlinks=True)
        return to


@contextlib.contextmanager
def job(place: Path, archive: bytes, folder: str, **environment: str) -> Iterator[Hosts]:
    """Two containers of one job, on empty disks, that are gone with the block.

    Args:
        place: a new folder for what they print.
        folder: of the job, below `rft/` in S3.
    """
    with network(len(NAMES), NAMES, local=DISK) as hosts, listening(hosts[0]) as found:
        yield Hosts(hosts, place, archive, folder, found | environment)


LAUNCHER = """\
# The tiny sums, with model and problems that exist: what a launcher makes by itself is on the head's disk alone.
export RFT_STACK=cpu
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
REWARD=reward_func_em.py
use tasks/tiny
use models/tiny
use clusters/cpu
RUN_INPUTS=()
experiment "$@"
"""


def clone_with_launcher(place: Path) -> Path:
    """A clone of the commit that is checked out here, with a commit more: launch/train_given.sh."""
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", place], check=True)
    (place / "launch/train_given.sh").write_text(f"#!/usr/bin/env bash\n{LAUNCHER}")
    for command in (["add", "."], ["commit", "-q", "-m", "a launcher"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=place, check=True)
    return place


def make_inputs(place: Path, problems: int) -> Path:
    """`model` and `data` of the tiny sums."""
    data, cache = place / "data", ROOT / ".cache/rft/warmstart"
    made = [[ROOT / "data/prepare_arithmetic.py", "--out", data, "--task", "sums", "--train", problems]]
    warm = ["-m", "rft.tiny.warmstart", "--task", "sums", "--data", data / "warm.jsonl", "--seed", 0]
    made.append([*warm, "--cache", cache if cache.is_dir() else place / "cache", "--out", place / "model"])
    for words in made:
        subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return place
