"""Start the ranks of a training on this machine, and end them together.

    .venv/bin/python -m rft.runs.ranks N MODULE [OPTION …]

Each rank is a process of MODULE with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The first that fails
ends the others, and its status is this one's. Not torchrun: its agent holds a store that listens on every interface
(docs/security.md), answers every failure with status 1, and writes a traceback of its own.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

GRACE_SECONDS = 10.0  # what the others have to end by themselves, and then after SIGTERM


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("module")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.ranks < 1:
        parser.error(f"found {args.ranks} ranks, wanted 1 or more")
    command = [sys.executable, "-m", args.module, *args.options]
    port = free_port()
    processes = [
        subprocess.Popen(command, env=os.environ | of_rank(rank, args.ranks, port)) for rank in range(args.ranks)
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: [process.terminate() for process in processes])
    return wait(processes)


def of_rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment by which a rank of this machine finds the others."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}


def wait(processes: list[subprocess.Popen]) -> int:
    """Until all have ended; the status of the first that failed, 128 + N for one that signal N ended."""
    while running(processes) and not failures(processes):
        time.sleep(0.1)
    status = next(iter(failures(processes)), 0)  # before those that are ended here
    settle(processes)
    return status if status >= 0 else 128 - status


def failures(processes: list[subprocess.Popen]) -> list[int]:
    return [process.returncode for process in processes if process.poll()]


def running(processes: list[subprocess.Popen]) -> bool:
    return any(process.poll() is None for process in processes)


def settle(processes: list[subprocess.Popen]) -> None:
    """The others may be about to say what failed; then SIGTERM, then SIGKILL."""
    for act in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes if act else ():
            act(process)
        deadline = time.monotonic() + GRACE_SECONDS
        while running(processes) and time.monotonic() < deadline:
            time.sleep(0.1)


def free_port() -> int:
    """One of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
