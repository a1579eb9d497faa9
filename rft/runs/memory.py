"""Record the peak host memory of everything a run started, sampled every two seconds, detached processes included.

    .venv/bin/python -m rft.runs.memory RUN_DIR        until it is stopped; writes RUN_DIR/memory.json

Processes are recognised by `RFT_RUN_DIR` in their environment, since Ray's daemons leave the launcher's process tree.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from rft.record.files import replace_json

MARK = "RFT_RUN_DIR"
INTERVAL_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    peak, launcher = 0, os.getppid()
    while os.getppid() == launcher:  # a launcher that was killed must not leave its meter running
        found = {pid: used for pid in marked_processes(str(run_dir)) if (used := proportional_bytes(pid))}
        if sum(found.values()) > peak:
            peak = sum(found.values())
            replace_json(run_dir / "memory.json", {"peak_gb": peak / 1e9, "processes": len(found)})
        time.sleep(INTERVAL_SECONDS)


def marked_processes(run_dir: str) -> list[int]:
    """Ids of the processes whose environment names this run directory, this process excepted."""
    wanted = f"{MARK}={run_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
        if wanted in environment:
            found.append(int(entry.name))
    return found


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
