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
        signal.signal(number, lambda *_: end(processes))
    return wait(processes)


def of_rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment by which a rank of this machine finds the others."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}


def wait(processes: list[subprocess.Popen]) -> int:
    """Until all have ended; the status of the first that failed, 128 + N for one that signal N ended."""
    failed = 0
    while any(process.poll() is None for process in processes):
        ended = [process.returncode for process in processes if process.returncode]
        if ended:
            failed = ended[0]
            settle(processes)
            break
        time.sleep(0.1)
    failed = failed or next((process.returncode for process in processes if process.returncode), 0)
    return failed if failed >= 0 else 128 - failed


def settle(processes: list[subprocess.Popen]) -> None:
    """The others may be about to say what failed; then SIGTERM, then SIGKILL."""
    for act in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes:
            if act and process.poll() is None:
                act(process)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.1)


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
