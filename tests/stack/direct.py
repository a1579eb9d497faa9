"""Start `train_direct.py`, wait for a moment of it, kill it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rft.runs.memory import marked_processes

SCRIPT = Path(__file__).with_name("train_direct.py")
QUICK = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0"}  # as launch/common.sh sets them


def start(run_dir: Path, checkpoint: Path, *options: str) -> subprocess.Popen:
    """A training run in the background; its output is in `<run_dir>.log`."""
    log = run_dir.with_suffix(".log").open("a")
    command = [sys.executable, str(SCRIPT), str(run_dir), str(checkpoint), *options]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | QUICK)


def log_of(run_dir: Path) -> str:
    return run_dir.with_suffix(".log").read_text(errors="replace")


def train(run_dir: Path, checkpoint: Path, *options: str) -> str:
    """A training run to its end; its output. Fails with the end of it when training fails."""
    process = start(run_dir, checkpoint, *options)
    try:
        status = process.wait(timeout=1200)
    finally:
        kill(run_dir, process)
    assert status == 0, log_of(run_dir)[-6000:]
    return log_of(run_dir)


def wait_until(moment, process: subprocess.Popen, run_dir: Path, seconds: float = 900) -> None:
    """Until `moment()` is true, looked at every 20 ms; fails when the run ends before."""
    deadline = time.monotonic() + seconds
    while not moment():
        assert process.poll() is None, log_of(run_dir)[-6000:]
        assert time.monotonic() < deadline, log_of(run_dir)[-6000:]
        time.sleep(0.02)


def kill(run_dir: Path, process: subprocess.Popen) -> None:
    """SIGKILL to every process of a run, until none is left."""
    process.kill()
    process.wait()
    while left := marked_processes(str(run_dir)):
        signal_all(left, signal.SIGKILL)
        time.sleep(0.1)


def signal_all(processes: list[int], number: signal.Signals) -> None:
    """A signal to each process that still exists."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
