"""A Ray cluster of several hosts as a user makes it, by launch/node.sh on each."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from host_network import Host, network

ROOT = Path(__file__).resolve().parents[2]
JOB = 17
PORT = 20000 + JOB * 10  # as launch/nodes.sh derives it


class Cluster:
    """Hosts, each with its part of one Ray cluster; `said[i]` is the file of what the part of host i prints."""

    def __init__(self, hosts: list[Host], place: Path, local: Path) -> None:
        self.hosts, self.place = hosts, place
        self.said = [place / f"{host.name}.out" for host in hosts]
        self.address = f"{hosts[0].address}:{PORT}"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(place), "RFT_STACK": "cpu", "JOB_ID": str(JOB)}
        self.environment |= {"NODE_TMP": str(local), "NODE_CPUS": "4", "NODE_GPUS": "1"}
        roles = [["head"], *[["worker", self.address]] * (len(hosts) - 1)]
        self.parts = [self.node(index, *role) for index, role in enumerate(roles)]

    def node(self, index: int, *words: str) -> subprocess.Popen:
        """`launch/node.sh WORDS` in the background on a host, its output behind what that host said before."""
        with self.said[index].open("ab") as out:
            return self.hosts[index].start(
                ["bash", "launch/node.sh", *words],
                cwd=ROOT,
                env=self.environment | {"NODE_ADDRESS": self.hosts[index].address},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def drive(self, command: list[str], out: Path, **variables: str) -> subprocess.Popen:
        """A command in the background on the head's host, once all nodes are there."""
        words = ["bash", "launch/node.sh", "driver", str(len(self.hosts)), self.address, *command]
        with out.open("wb") as file:
            return self.hosts[0].start(
                words, cwd=ROOT, env=self.environment | variables, stdout=file, stderr=subprocess.STDOUT
            )


@contextlib.contextmanager
def cluster(place: Path, count: int = 2) -> Iterator[Cluster]:
    """A cluster of `count` hosts, each with one logical GPU, which ends with the block."""
    local = Path("/tmp/rft-disk")  # short: AF_UNIX paths end at 107 bytes
    with network(count, local=local) as hosts:
        yield Cluster(hosts, place, local)


def wait_until(moment, process: subprocess.Popen, out: Path, seconds: float = 900) -> None:
    """Until `moment()`; fails with the end of `out` where the process ends before."""
    deadline = time.monotonic() + seconds
    while not moment():
        assert process.poll() is None and time.monotonic() < deadline, out.read_text()[-6000:]
        time.sleep(0.1)
