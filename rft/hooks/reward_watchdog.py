"""A process beside a rollout engine that ends it when a reward function holds Python's interpreter lock for too long.

A regular expression that backtracks forever, or a power of a million digits, is one step of the interpreter: no other
thread runs, no event loop, no timer. Only another process can end that, and say which sample it was. This file is both
sides, `begin` and `end` here and `main` there; standard library only, for the process starts beside every engine.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from itertools import count

GRACE_SECONDS = 10.0  # beyond the limit: a function that lets other threads run is named by `rft.hooks.rewards` before

_lock, _numbers = threading.Lock(), count()
_process: subprocess.Popen | None = None


def begin(seconds: float, message: str) -> int:
    """A number for a call: unless `end` gets it in time, this process is killed, with `message` last on its stderr."""
    call = next(_numbers)
    _tell({"call": call, "seconds": seconds + GRACE_SECONDS, "message": message})
    return call


def end(call: int) -> None:
    """The call has ended, or something else has taken notice of it."""
    _tell({"call": call})


def _tell(news: dict) -> None:
    global _process
    with _lock:
        if _process is None:
            command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
            _process = subprocess.Popen(command, stdin=subprocess.PIPE)
        os.write(_process.stdin.fileno(), json.dumps(news).encode() + b"\n")


def main(watched_pid: int) -> None:
    """Read calls from standard input until it ends with the watched process, which is ended when one takes too long."""
    deadlines: dict[int, tuple[float, str]] = {}
    unread = b""
    while True:
        first = min(deadlines.values(), default=None)
        wait = None if first is None else max(0.0, first[0] - time.monotonic())
        if not select.select([0], [], [], wait)[0]:
            print(first[1], file=sys.stderr, flush=True)
            if os.getppid() == watched_pid:
                os.kill(watched_pid, signal.SIGKILL)
            return
        read = os.read(0, 1 << 16)
        if not read:
            return
        *lines, unread = (unread + read).split(b"\n")
        for news in map(json.loads, lines):
            deadlines.pop(news["call"], None)
            if "seconds" in news:
                deadlines[news["call"]] = (time.monotonic() + news["seconds"], news["message"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
