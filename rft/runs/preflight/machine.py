"""The machine and the accounts: ports, Ray, Hugging Face's offline switches, W&B, git."""

import netrc
import os
import re
import socket
import subprocess
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from rft.overlay.installer import pip_install
from rft.runs.manifest import ROOT
from rft.runs.memory import marked_processes
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines

PORTS_WANTED = 200  # Ray's workers, process groups of actor and engines, vLLM's sockets; generously
KEY = re.compile(r"\S{32,}")  # what `true` or any other stand-in is not


def check_ports() -> list[Line]:
    """Ports that the system can give out, and MASTER_PORT where the environment fixes it."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    used = {port for table in ("tcp", "tcp6") for port in local_ports(Path("/proc/net", table))}
    free = high - low + 1 - sum(low <= port <= high for port in used)
    faults = []
    if free < PORTS_WANTED:
        measured = f"{free} ports free between {low} and {high}, about {PORTS_WANTED} wanted"
        faults.append(Line("ports", NO_GO, measured, "sysctl -w net.ipv4.ip_local_port_range='20000 60999'"))
    fixed = os.environ.get("MASTER_PORT")
    if fixed and fixed.isdigit() and not can_bind(int(fixed)):
        faults.append(Line("ports", NO_GO, f"MASTER_PORT={fixed} is taken", "unset MASTER_PORT"))
    return lines("ports", faults, f"{free:,} free")


def local_ports(table: Path) -> list[int]:
    """Local ports in a table of /proc/net."""
    rows = table.read_text().splitlines()[1:] if table.is_file() else []
    return [int(row.split()[1].rpartition(":")[2], 16) for row in rows]


def can_bind(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def check_ray(run_dir: Path) -> list[Line]:
    """RAY_ADDRESS answers, and no other cluster shares the machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:([0-9]+)", address)
    if found and not answers(found[1], int(found[2])):
        return [Line("Ray", NO_GO, f"RAY_ADDRESS={address}: nothing answers", "unset RAY_ADDRESS, or correct it")]
    own = set(marked_processes(str(run_dir.absolute())))
    others = [pid for pid in ray_heads() if pid not in own]
    # A cluster that RAY_ADDRESS names and that this launch has not started is the one to be used.
    foreign = others[1:] if address and not os.environ.get("RFT_RAY_LOGS") else others
    if foreign:
        pids = ", ".join(map(str, foreign))
        measured = f"another cluster runs here (process {pids}) and shares memory and GPUs"
        return [Line("Ray", WARN, measured, f"stop it where it began; ps -p {foreign[0]} -o pid,user,lstart,args")]
    return [Line("Ray", GO, f"cluster at {address}" if address else "no cluster yet; the launcher starts one")]


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def ray_heads() -> list[int]:
    """Ids of the processes that are the head (GCS server) of a Ray cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program = (entry / "cmdline").read_bytes().split(b"\0")[0]
            except OSError:  # it ended meanwhile
                continue
            if program.endswith(b"/gcs/gcs_server"):
                found.append(int(entry.name))
    return sorted(found)


def check_offline() -> list[Line]:
    """Nothing is looked up on the hub: models and data are files here, and a look-up only waits for a network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    online = [name for name in names if os.environ.get(name, "").upper() not in ("1", "TRUE", "YES", "ON")]
    if online:
        measured = f"{' and '.join(online)} off: loading asks the network"
        return [Line("Hugging Face", WARN, measured, "export " + " ".join(f"{name}=1" for name in online))]
    return [Line("Hugging Face", GO, "offline")]


def check_wandb(args: Namespace) -> list[Line]:
    """A key where W&B is asked for, not in the command line; its value is never shown."""
    if not args.use_wandb:
        return [Line("W&B", GO, "not used")]
    if not find_spec("wandb"):
        repair = f"{pip_install()} wandb, or leave it out"
        return [Line("W&B", NO_GO, "--use_wandb, but wandb is not installed", repair)]
    if KEY.fullmatch(args.use_wandb):
        measured = "the key is in the command line, which run.json and the process list show"
        return [Line("W&B", WARN, measured, "export WANDB_API_KEY=…, and --use_wandb true")]
    mode = os.environ.get("WANDB_MODE", "online")
    if mode in ("offline", "disabled", "dryrun"):
        return [Line("W&B", GO, f"WANDB_MODE={mode}")]
    if os.environ.get("WANDB_API_KEY") or stored_key():
        return [Line("W&B", GO, "key found")]
    return [Line("W&B", NO_GO, "online, without a key", "export WANDB_MODE=offline, or .venv/bin/wandb login")]


def stored_key() -> bool:
    """Whether `wandb login` has left a key for its host in ~/.netrc."""
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    try:
        return path.is_file() and netrc.netrc(path).authenticators(host) is not None
    except netrc.NetrcParseError:
        return False


def check_git(root: Path = ROOT) -> list[Line]:
    """The commit can be found again: nothing uncommitted, and a tag on it."""
    commit, changes = git(root, "rev-parse", "--short=12", "HEAD"), git(root, "status", "--porcelain")
    if commit is None or changes is None:
        return [Line("git", WARN, "no checkout: the code of this run cannot be found again", "git clone")]
    if changes:
        measured = f"{commit} and {len(changes.splitlines())} uncommitted changes"
        return [Line("git", WARN, measured, "git commit, then git tag attempt-XX-start")]
    tags = (git(root, "tag", "--points-at", "HEAD") or "").split()
    if not tags:
        return [Line("git", WARN, f"{commit} has no tag", "git tag attempt-XX-start")]
    return [Line("git", GO, f"{commit}, {' '.join(tags)}")]


def git(root: Path, *command: str) -> str | None:
    """Output of a git command, None where there is no git or it fails."""
    if which("git") is None:
        return None
    done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
