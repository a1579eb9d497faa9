"""Run a script as one process a rank, as Ray would start them, with the stack's imports done.

A rank works for a second and imports for ten: ranks are forked from a process that has imported what they share.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ports import free_port

SHARED = ["pytest", "torch", "transformers", "datasets", "peft", "deepspeed", "ray", "vllm", "vllm.sampling_params"]
OF_THE_CALLER = ("METRICS_LOG_DIR", "SPIKE_LOG_PATH")


def fork_context() -> multiprocessing.context.BaseContext:
    """Makes processes that have imported `SHARED`: by a server, or from this process where it is such a one itself."""
    if multiprocessing.parent_process():
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SHARED)
    return context


def begin_fork(output: Path) -> None:
    """First in a fork: what it prints, errors included, goes to the file, and what was imported before is not garbage.

    DeepSpeed collects ten times as it starts: half a second each with all that is imported.
    """
    gc.freeze()
    file = output.open("w", buffering=1)
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    sys.stdout = sys.stderr = file  # a fork of pytest has pytest's own


def run_ranks(script: str, ranks: int, *arguments: object, environment: dict[str, str] | None = None) -> None:
    """Run `tests/stack/SCRIPT ARGUMENTS…` on every rank; fails with the last of its output when one of them does."""
    command = [str(Path(__file__).with_name(script)), *map(str, arguments)]
    for status, output in _run([(runpy.run_path, command, own | (environment or {})) for own in world(ranks)]):
        if status != 0:  # no assertion: a rank that dies of a missing name proves nothing of what a test asserts
            raise RuntimeError(f"{script}: exit status {status}\n{output[-4000:]}")


def world(ranks: int) -> list[dict[str, str]]:
    """The environment of each rank of a process group on this machine, at a free port."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_module(
    module: str, *arguments: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """`python -m MODULE ARGUMENTS…`; its output, errors included."""
    command = [module, *map(str, arguments)]
    ((status, output),) = _run([(runpy.run_module, command, environment or {})])
    return subprocess.CompletedProcess(command, status, output)


def _run(jobs: list[tuple]) -> list[tuple[int | None, str]]:
    """Run (function of runpy, command, environment) side by side; exit status, None at the time limit, and output."""
    deadline = time.monotonic() + 600
    with tempfile.TemporaryDirectory() as place:
        outputs = [Path(place, str(number)) for number in range(len(jobs))]
        processes = []
        try:
            for job, output in zip(jobs, outputs, strict=True):
                process = fork_context().Process(target=run_job, args=(*job, output))
                process.start()
                processes.append(process)
            for process in processes:
                process.join(deadline - time.monotonic())
            return [(p.exitcode, o.read_text(errors="replace")) for p, o in zip(processes, outputs, strict=True)]
        finally:
            for process in processes:
                process.kill()


def run_job(function: Callable, command: list[str], environment: dict[str, str], output: Path) -> None:
    """In a process of `fork_context`: call a function of runpy as if `command` had been started."""
    begin_fork(output)
    for name in OF_THE_CALLER:
        os.environ.pop(name, None)
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, str(Path(__file__).parent))
    function(command[0], run_name="__main__")
