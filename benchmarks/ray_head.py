"""A Ray cluster of our own for the length of a `with` block. Imports no torch, which costs seconds."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from benchmarks import GPU, ROOT
from benchmarks.report import log
from rft.runs.memory import MARK

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when ray is imported; see loopback_only in launch/ray.sh


@contextmanager
def ray_head(run_dir: Path, logical_gpus: int = 2):
    """Start a head on free ports and yield its address; stop it, and what its workers started, at the end.

    Args:
        run_dir: made if missing; Ray's logs stay there, in `ray_logs`, when the block raises.
        logical_gpus: registered where there are no GPUs, so that placement groups work.

    Raises:
        RuntimeError: Ray did not start; its log is on standard error then.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    # For Ray's workers and for whatever else is started in the block.
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    count = [] if GPU else [str(logical_gpus)]
    command = ["bash", str(ROOT / "benchmarks" / "ray_head.sh"), *count]
    # The mark of every process of the cluster (rft/runs/memory.py) is on the shell too: who ends all marked processes
    # of a run must not leave it, since what it clears away last would be the next run of that directory.
    environment = os.environ | {"PYTHON": sys.executable, MARK: str(run_dir)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as holder:
        address = holder.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"Ray did not start: {' '.join(command)} ended with {holder.wait()}")
        log(f"Ray head at {address}")
        status = "1\n"
        try:
            yield address
            status = "0\n"
        finally:
            holder.stdin.write(status)
            holder.stdin.close()
            log(f"Ray head stopped, exit status {holder.wait()}")
