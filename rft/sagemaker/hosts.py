"""The hosts of a job, as SageMaker tells each of its containers, and what one host has."""

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from rft.sagemaker.aws import message

FILE = "input/config/resourceconfig.json"
ADDRESS_SECONDS = 60.0  # until a host has its address
MOST_CPUS = 32  # that Ray is told of, which starts a process for each


class Hosts(NamedTuple):
    """The hosts of a job.

    Args:
        here: name of this one.
        names: of all, in an order that is the same on each.
        interface: this one's, to the others; empty where SageMaker does not say.
    """

    here: str = "local"
    names: tuple[str, ...] = ("local",)
    interface: str = ""

    @property
    def head(self) -> str:
        """The host that launches, and writes the run's files."""
        return self.names[0]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.here)


def read(root: Path) -> Hosts:
    """The hosts of the job whose /opt/ml is `root`; one without a name where SageMaker has written none."""
    file = root / FILE
    if not file.is_file():
        return Hosts()
    told = json.loads(file.read_text())
    names = tuple(sorted(told.get("hosts") or ["local"]))
    here = told.get("current_host", names[0])
    if here not in names:
        raise ValueError(message("this host is none of the job's", here, ", ".join(names), f"see {file}"))
    return Hosts(here, names, told.get("network_interface_name") or "")


def address(hosts: Hosts, seconds: float = ADDRESS_SECONDS) -> str:
    """This host's IPv4 address on the network to the others: of its interface, else of its name.

    Neither need be there yet when a container begins, so both are asked for some time. NODE_ADDRESS goes before them.

    Raises:
        ValueError: none within `seconds`.
    """
    if given := os.environ.get("NODE_ADDRESS"):
        return given
    until = time.monotonic() + seconds
    while True:
        found = of_interface(hosts.interface) or of_name(hosts.here)
        if found and not ipaddress.IPv4Address(found).is_loopback:
            return found
        if time.monotonic() > until:
            raise ValueError(
                message(
                    "this host has no address for the others",
                    f"{found or 'none'}, of interface {hosts.interface or '(not named)'} and name {hosts.here}",
                    f"an IPv4 address within {seconds:g} s",
                    "submit again; where it stays so, give the job subnets and a security group of its own",
                )
            )
        time.sleep(min(1.0, seconds / 10))


def of_interface(name: str) -> str | None:
    """The IPv4 address of an interface of this host, or None."""
    import psutil

    found = psutil.net_if_addrs().get(name, [])
    return next((each.address for each in found if each.family == socket.AF_INET), None)


def of_name(name: str) -> str | None:
    """The IPv4 address of a host, or None where nobody knows it."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def gpus() -> int:
    """GPUs of this host: those found, or NODE_GPUS where that is set."""
    if given := os.environ.get("NODE_GPUS"):
        return int(given)
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def node_environment(own: str, port: int) -> dict[str, str]:
    """What launch/node.sh reads of this host, whose address is `own`, and of its head's port."""
    cpus = os.environ.get("NODE_CPUS") or str(min(os.cpu_count() or 1, MOST_CPUS))
    return {"NODE_ADDRESS": own, "RAY_PORT": str(port), "NODE_CPUS": cpus}
