"""Start `train_direct.py` in a process with the imports made, wait for a moment of it, kill it."""

import contextlib
import os
import runpy
import signal
import time
from pathlib import Path

from ranks import fork_context, run_job

from rft.runs.memory import marked_processes

SCRIPT = Path(__file__).with_name("train_direct.py")
QUICK = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0"}  # as launch/common.sh sets them


class Training:
    """A training run in the background, to be asked as a `subprocess.Popen`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.process = fork_context().Process(target=run_job, args=(runpy.run_path, command, os.environ | QUICK, log))
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutError(f"it still trains after {timeout} s")
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def start(run_dir: Path, checkpoint: Path, *options: str) -> Training:
    """A training run in the background; its output is in `<run_dir>.log`."""
    return Training([str(SCRIPT), str(run_dir), str(checkpoint), *options], run_dir.with_suffix(".log"))


def log_of(run_dir: Path) -> str:
    return run_dir.with_suffix(".log").read_text(errors="replace")


def train(run_dir: Path, checkpoint: Path, *options: str, status: int = 0) -> str:
    """A training run to its end; its output. Fails with the end of it where that is another than with `status`."""
    process = start(run_dir, checkpoint, *options)
    try:
        found = process.wait(timeout=1200)
    finally:
        kill(run_dir, process)
    assert found == status, log_of(run_dir)[-6000:]
    return log_of(run_dir)


def wait_until(moment, process: Training, run_dir: Path, seconds: float = 900) -> None:
    """Until `moment()` is true, looked at every 20 ms; fails when the run ends before."""
    deadline = time.monotonic() + seconds
    while not moment():
        assert process.poll() is None, log_of(run_dir)[-6000:]
        assert time.monotonic() < deadline, log_of(run_dir)[-6000:]
        time.sleep(0.02)


def kill(run_dir: Path, process: Training) -> None:
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
