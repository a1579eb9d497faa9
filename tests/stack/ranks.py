"""Run a script as one process a rank, as Ray would start them."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_ranks(script: str, ranks: int, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    """Run `tests/stack/SCRIPT ARGUMENTS…` on every rank; their standard outputs. Fails when one of them does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(environment or {})}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    return outputs
