"""Several hosts on one machine: network namespaces with a name, an address and a loopback of their own on one switch.

    with network(2) as hosts:
        hosts[0].run(["ip", "addr"]); server = hosts[1].start([...]); hosts[1].power_off()

Nothing of the machine's own network changes, two networks do not see each other, and all of it is gone with the process
that made it. Needs root and the programs `ip`, `unshare`, `nsenter`: `missing` names what is not there.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PREFIX = "10.77.0"
SPACES = ("--net", "--uts", "--mount")


@cache
def missing() -> str:
    """Why there can be no network of namespaces here, for a skip; empty where there can."""
    absent = [name for name in ("ip", "unshare", "nsenter", "mount") if not shutil.which(name)]
    if absent:
        return f"no program {', '.join(absent)}"
    tried = "ip link add v0 type veth peer name v1 && ip link add b0 type bridge && mount --make-rprivate /"
    done = subprocess.run(["unshare", *SPACES, "sh", "-c", tried], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no network namespaces: {done.stderr.strip()}"


class Host:
    """One host. `name` is its hostname, which all of them resolve; `address` its IPv4 address, on interface eth0."""

    def __init__(self, name: str, address: str, holder: subprocess.Popen) -> None:
        self.name, self.address, self.holder = name, address, holder
        self.space = Path(f"/proc/{holder.pid}/ns/net").readlink()

    def command(self, command: list[str]) -> list[str]:
        """The command that runs `command` on this host."""
        return ["nsenter", f"--target={self.holder.pid}", *SPACES, "--wd=.", *map(str, command)]

    def run(self, command: list[str], **options) -> subprocess.CompletedProcess:
        """As `subprocess.run`, on this host."""
        return subprocess.run(self.command(command), **options)

    def start(self, command: list[str], **options) -> subprocess.Popen:
        """As `subprocess.Popen`, on this host. `nsenter` becomes the command: its process id is the command's."""
        return subprocess.Popen(self.command(command), **options)

    def processes(self) -> list[int]:
        """Ids of all processes on this host."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (place / "ns/net").readlink() == self.space and int(place.name) != self.holder.pid:
                    found.append(int(place.name))
        return found

    def unplug(self) -> None:
        """Cut the cable: processes live, nothing arrives any more."""
        self.run(["ip", "link", "set", "eth0", "down"], check=True)

    def power_off(self) -> None:
        """SIGKILL to all processes of this host, and no packet leaves it: others learn of it as of a dead machine."""
        self.unplug()
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@contextlib.contextmanager
def network(count: int, names: tuple[str, ...] = (), local: Path | None = None) -> Iterator[list[Host]]:
    """`count` hosts that reach each other; their processes are ended with the block.

    Args:
        names: their names, else n1, n2, …
        local: a folder of which each host sees one of its own, as a node has its own disk; the rest is shared.
    """
    names = names or tuple(f"n{i + 1}" for i in range(count))
    addresses = [f"{PREFIX}.{i + 1}" for i in range(count)]
    table = "".join(f"{a} {n}\n" for a, n in zip(["127.0.0.1", *addresses], ["localhost", *names], strict=True))
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_held("ip link add br0 type bridge && ip link set br0 up"))
        hosts = []
        for index, (name, address) in enumerate(zip(names, addresses, strict=True)):
            holder = stack.enter_context(_held(_host(name, table, local)))
            cable = f"ip link add p{index} type veth peer name eth0 netns {holder.pid}"
            cable += f" && ip link set p{index} master br0 up"
            subprocess.run(["nsenter", f"--target={switch.pid}", "--net", "sh", "-c", cable], check=True)
            hosts.append(Host(name, address, holder))
            hosts[-1].run(["ip", "addr", "add", f"{address}/24", "dev", "eth0"], check=True)
            hosts[-1].run(["ip", "link", "set", "eth0", "up"], check=True)
        try:
            yield hosts
        finally:
            for host in hosts:
                host.power_off()


def _host(name: str, table: str, local: Path | None) -> str:
    """What makes a namespace a host: its name, the names of all, its disk."""
    hosts_file = f"mkdir -p /run/rft-host && mount -t tmpfs none /run/rft-host && printf %s {shlex.quote(table)}"
    hosts_file += " >/run/rft-host/hosts && mount --bind /run/rft-host/hosts /etc/hosts"
    steps = ["mount --make-rprivate /", f"hostname {name}", "ip link set lo up", hosts_file]
    if local:
        steps.append(f"mkdir -p {shlex.quote(str(local))} && mount -t tmpfs none {shlex.quote(str(local))}")
    return " && ".join(steps)


@contextlib.contextmanager
def _held(steps: str) -> Iterator[subprocess.Popen]:
    """A process in namespaces of its own, in which `steps` are done. It ends with this process, whose pipe it reads."""
    script = f"{{ {steps}; }} && echo ready && exec cat >/dev/null"
    holder = subprocess.Popen(
        ["unshare", *SPACES, "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "ready\n", f"no host could be made by: {steps}"
        yield holder
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
