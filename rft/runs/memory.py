"""Record the memory of everything a run started, sampled every two seconds, detached processes included.

    .venv/bin/python -m rft.runs.memory RUN_DIR        until it is stopped

Writes RUN_DIR/memory.json, the host's peak, and RUN_DIR/memory_timeline.json: what trainer, engine and the others held
on the host and on each GPU, over time and by phase of a step (`rft.runs.timeline`). Sees the machine it runs on.

Processes are recognised by `RFT_RUN_DIR` in their environment, since Ray's daemons leave the launcher's process tree.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from rft.record.files import replace_json
from rft.record.names import MEMORY_FILE, PHASE_FILE, TIMELINE_FILE
from rft.runs.gpu_processes import GpuMeter, role_of
from rft.runs.timeline import Timeline, total

MARK = "RFT_RUN_DIR"
INTERVAL_SECONDS = 2.0
SAMPLES_A_WRITE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (run_dir / PHASE_FILE).unlink(missing_ok=True)  # of an earlier part of the run, which was killed
    timeline, gpus, samples, launcher = Timeline.read(run_dir / TIMELINE_FILE), GpuMeter(), 0, os.getppid()
    peak = max((total(held["host_gb"]) for held in timeline.peaks.values()), default=0.0)
    try:
        while os.getppid() == launcher:  # a launcher that was killed must not leave its meter running
            point, processes = sample(run_dir, gpus)
            timeline.add(point)
            if total(point["host_gb"]) > peak:
                peak = total(point["host_gb"])
                replace_json(run_dir / MEMORY_FILE, {"peak_gb": peak, "processes": processes})
            if samples % SAMPLES_A_WRITE == 0:
                timeline.write(run_dir / TIMELINE_FILE)
            samples += 1
            time.sleep(INTERVAL_SECONDS)
    finally:
        timeline.write(run_dir / TIMELINE_FILE)
        (run_dir / PHASE_FILE).unlink(missing_ok=True)


def sample(run_dir: Path, gpus: GpuMeter) -> tuple[dict, int]:
    """(a point of the timeline, number of processes) of the moment."""
    found = {pid: used for pid in marked_processes(str(run_dir)) if (used := proportional_bytes(pid))}
    host: dict[str, float] = {}
    for pid, used in found.items():
        role = role_of(pid)
        host[role] = host.get(role, 0.0) + used / 1e9
    try:
        phase = (run_dir / PHASE_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        phase = ""
    point = {"time": round(time.time(), 1), "seconds": INTERVAL_SECONDS, "phases": {phase: INTERVAL_SECONDS}}
    point["host_gb"] = {role: round(gb, 3) for role, gb in sorted(host.items())}
    return point | {"gpu_mib": gpus.read(found)}, len(found)


def marked_processes(run_dir: str) -> list[int]:
    """Ids of the processes whose environment names this run directory, this process excepted."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and environment_of(pid).get(MARK) == run_dir]


def environment_of(pid: int) -> dict[str, str]:
    """A process's environment as it was started with; {} when it is gone, or belongs to somebody else."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in (each.partition(b"=") for each in entries)}


def proportional_bytes(pid: int) -> int:
    """Pss of one process: memory shared by n processes counts 1/n in each of them. 0 when the process is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main()
