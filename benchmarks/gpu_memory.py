"""Peak GPU memory by process, sampled from nvidia-smi."""

import re
import shutil
import threading

from rft.runs.gpu_processes import command_of, query

INTERVAL_SECONDS = 1.0
ROLES = ("PolicyModelActor", "VLLM::EngineCore", "VLLM::Worker", "LLMRayActor")


class MemoryMeter(threading.Thread):
    """Samples every second until `stop`; does nothing where there is no nvidia-smi.

    `peaks` holds, in MiB by role, the highest sample of each process, and of the device under `device, all processes`.
    A container may hide the processes behind ids of the host; such a process counts as `pid N`.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = {}
        self._done = threading.Event()

    def run(self) -> None:
        while shutil.which("nvidia-smi") and not self._done.wait(INTERVAL_SECONDS):
            samples = compute_apps(query("--query-compute-apps=pid,used_memory") or [])
            samples["device, all processes"] = sum(int(line) for line in query("--query-gpu=memory.used") or [])
            for role, mib in samples.items():
                self.peaks[role] = max(mib, self.peaks.get(role, 0))

    def stop(self) -> None:
        self._done.set()
        self.join()


def compute_apps(lines: list[str]) -> dict[str, int]:
    """MiB by role from `pid, MiB` lines; processes of one role add up. Lines without a number are left out."""
    samples: dict[str, int] = {}
    for line in lines:
        if found := re.fullmatch(r"(\d+),\s*(\d+)", line):
            role = role_of(int(found[1]))
            samples[role] = samples.get(role, 0) + int(found[2])
    return samples


def role_of(pid: int) -> str:
    """What a process is, by its command line: a role of this stack, else its first word, else `pid N`."""
    command = command_of(pid)  # empty: ended meanwhile, or a pid of the host
    named = next((role for role in ROLES if role in command), None)
    return named or (command.split(" ")[0] if command else f"pid {pid}")
