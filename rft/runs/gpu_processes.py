"""GPU memory by process, from nvidia-smi. Where that is absent, broken or slow, nothing is known, nothing raised."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

SECONDS = 5.0  # that long nvidia-smi may take
RETRY_SECONDS = 60.0  # after it failed
ROLES = {  # part of a command line -> role
    "PolicyModelActor": "trainer",
    "ReferenceModelActor": "reference",
    "VLLM::": "engine",
    "LLMRayActor": "engine",
    "PPOTrainer": "controller",
    "train_ppo_ray": "driver",
}
OTHER = "other"  # processes of the run that are none of these
UNKNOWN = "unknown"  # on a GPU: another run's, or one that a container shows by the host's id
ALL = "all processes"  # on a GPU: the device's total, where no process is listed

Used = dict[str, dict[str, int]]  # MiB by role, by GPU


def query(what: str) -> list[str] | None:
    """Lines of an nvidia-smi query about the devices in use here, MiB without units; None where it fails."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits", *(["-i", visible] if visible else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else None


def command_of(pid: int) -> str:
    """A process's command line; empty when it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def role_of(pid: int) -> str:
    """What a process of the run does: trainer, reference, engine, controller, driver, other."""
    command = command_of(pid)
    return next((role for part, role in ROLES.items() if part in command), OTHER)


class GpuMeter:
    """Asks nvidia-smi once a `read`: for the processes, or, where none was listed the time before, for the devices."""

    def __init__(self) -> None:
        self.indices: dict[str, str] = {}  # by UUID
        self.totals: Used = {}
        self.devices_next = True
        self.not_before = 0.0 if shutil.which("nvidia-smi") else float("inf")

    def read(self, ours: Iterable[int]) -> Used:
        """MiB by role and GPU index. `ours` are the ids of the run's processes. {} where nothing is known."""
        if time.monotonic() < self.not_before:
            return {}
        devices = self.devices_next
        fields = "--query-gpu=index,uuid,memory.used" if devices else "--query-compute-apps=gpu_uuid,pid,used_memory"
        lines = query(fields)
        if lines is None:
            self.not_before = time.monotonic() + RETRY_SECONDS
            return {}
        if devices:
            self.indices, self.totals = by_device(lines)
        used = {} if devices else by_process(lines, self.indices, set(ours))
        self.devices_next = not devices and not used
        return used or self.totals


def by_device(lines: list[str]) -> tuple[dict[str, str], Used]:
    """(index by UUID, MiB by GPU) from `index, uuid, MiB` lines; MIG devices, which have no number, are left out."""
    found = [match for line in lines if (match := re.fullmatch(r"(\d+), (\S+), (\d+)", line))]
    return {one[2]: one[1] for one in found}, {one[1]: {ALL: int(one[3])} for one in found}


def by_process(lines: list[str], indices: dict[str, str], ours: set[int]) -> Used:
    """MiB by role and GPU from `uuid, pid, MiB` lines; lines without a number, or of another GPU, are left out."""
    used: Used = {}
    for line in lines:
        match = re.fullmatch(r"(\S+), (\d+), (\d+)", line)
        if match and match[1] in indices:
            roles, pid = used.setdefault(indices[match[1]], {}), int(match[2])
            role = role_of(pid) if pid in ours else UNKNOWN
            roles[role] = roles.get(role, 0) + int(match[3])
    return used
