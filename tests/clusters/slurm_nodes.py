"""A real Slurm of three nodes, from Debian's packages: fetched and unpacked into .tools/slurm, not installed."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".tools/slurm"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libhwloc15")
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]


def missing() -> str:
    """Why no Slurm can run here; empty where it can."""
    if os.geteuid() != 0:
        return "three nodes need root, for network namespaces"
    if absent := [tool for tool in ("ip", "nsenter", "unshare", "apt-get", "dpkg") if shutil.which(tool) is None]:
        return f"no {', '.join(absent)}; on Debian: apt-get install -y iproute2 util-linux"
    tried = ["sh", "-c", "mount -t tmpfs tmpfs /mnt && ip link add toy type veth peer name yot"]
    done = subprocess.run([*NAMESPACES, *tried], capture_output=True, text=True)
    if done.returncode:
        return f"no namespaces of our own: {done.stderr.strip().splitlines()[-1:]}"
    return fetch()


def fetch() -> str:
    """Unpack the packages into PLACE/root; why that failed, else empty."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with open(PLACE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (PLACE / "complete").exists():
            return ""
        files = PLACE / "packages"
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        download = ["apt-get", "download", "-q", *PACKAGES]
        done = subprocess.run(download, cwd=files, capture_output=True, text=True)
        if done.returncode:  # lists that are missing or old
            subprocess.run(["apt-get", "update", "-q"], capture_output=True)
            done = subprocess.run(download, cwd=files, capture_output=True, text=True)
        if done.returncode:
            return f"Slurm's packages cannot be fetched: {done.stderr.strip()[-300:]}"
        shutil.rmtree(PLACE / "root", ignore_errors=True)
        for file in files.glob("*.deb"):
            subprocess.run(["dpkg", "-x", file, PLACE / "root"], check=True)
        (PLACE / "complete").touch()
    return ""


class Cluster:
    """Three nodes, and the login host on which the methods run commands."""

    def __init__(self, work: Path) -> None:
        self.work = work
        said = work.with_suffix(".out")
        # In the resolved place: .tools may be a link, and namespaces share the files.
        words = ["bash", Path(__file__).with_name("three_nodes.sh"), (PLACE / "root").resolve(), work, ROOT]
        with open(said, "w") as log:
            self.outer = subprocess.Popen(
                [*NAMESPACES, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while "ready\n" not in said.read_text():
            assert self.outer.poll() is None and time.monotonic() < deadline, said.read_text()[-3000:]
            time.sleep(0.1)
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text()
        self.init = children.split()[0]

    def environment(self, **more: str) -> dict[str, str]:
        """What a user of the login host has."""
        return {
            "PATH": f"{self.work}/bin:{os.environ['PATH']}",
            "HOME": str(self.work),
            "USER": "root",
            "SLURM_CONF": f"{self.work}/slurm.conf",
            "LC_ALL": "C.UTF-8",
            "RFT_STACK": "cpu",
        } | more

    def inside(self, *words: object, node: str | None = None) -> list[str]:
        """The command line that runs these words on the login host, or with a node's network and name."""
        into = ["nsenter", "--target", self.init, "--mount", "--net", "--pid", "--uts"]
        more = ["nsenter", f"--net=/run/netns/{node}"] if node else []
        return [*into, *more, *map(str, words)]

    def run(self, *words: object, cwd: Path = ROOT, seconds: int = 240, **environment: str):
        """The finished process of a command on the login host."""
        return subprocess.run(
            self.inside("sh", "-c", 'cd "$0" && exec "$@"', cwd, *words),
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def asked(self, *words: object) -> str:
        """What a command prints that must succeed."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait_for_job(self, job: str, *states: str, seconds: int = 240) -> str:
        """The job's state once it is one of `states` (default: an end)."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        deadline = time.monotonic() + seconds
        while True:
            shown = self.run("scontrol", "show", "job", job).stdout
            found = dict(word.split("=", 1) for word in shown.split() if "=" in word)
            if (state := found.get("JobState", "")) in wanted:
                return state
            assert time.monotonic() < deadline, f"job {job} is {state}, not {wanted}\n{shown}"
            time.sleep(0.2)

    def cut_off(self, node: str) -> None:
        """As a node that loses its power: it answers nothing any more, and what ran there is gone."""
        self.asked("ip", "link", "set", f"to_{node}", "down")
        there = '[ "$(stat -Lc %i $p/ns/net 2>/dev/null)" = "$(stat -Lc %i /run/netns/$0)" ]'
        kill = f"for p in /proc/[0-9]*; do {there} && kill -KILL ${{p#/proc/}}; done; true"
        self.asked("sh", "-c", kill, node)

    def stop(self) -> None:
        """End it with all that it started."""
        self.outer.kill()  # --kill-child: the first process of the namespace ends with it, and so all of them
        self.outer.wait(timeout=60)


if __name__ == "__main__":
    if reason := missing():
        sys.exit(reason)
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    cluster = Cluster(place)
    print(*cluster.inside("bash"), flush=True)
    try:
        cluster.outer.wait()
    finally:
        cluster.stop()
