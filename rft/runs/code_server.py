"""Wait until a code server answers, and say how it isolates programs (docs/code_rewards.md); or end a run without it.

    .venv/bin/python -m rft.runs.code_server URL [--seconds 30] [--pid PID --log FILE]     as launch/code_server.sh does
    .venv/bin/python -m rft.runs.code_server URL --pid PID --log FILE --watch RUN_DIR      until the server has ended

Exit status 0 once it answers; 1 where its process has ended before, or the time is over, with the end of its log. With
--watch the launcher, which is the parent, is ended within seconds of its server, whatever the training does just then.
"""

import argparse
import asyncio
import os
import shlex
import socket
import sys
import time
from pathlib import Path

from rft.code_server.client import Client, CodeServerError
from rft.runs import guard, stopped
from rft.runs.guard import stat

SECONDS = 30.0  # that a server may take to answer
PERIOD_SECONDS = 1.0  # between two tries
SHOWN_LINES = 15  # of the log of a server that did not start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that long it may take to answer (default: 30)")
    parser.add_argument("--pid", type=int, help="its process: one that has ended is not waited for")
    parser.add_argument("--log", type=Path, help="its log, whose end is shown where it does not answer")
    parser.add_argument("--watch", type=Path, metavar="RUN_DIR", help="end the launch of this run with the server")
    args = parser.parse_args()
    if args.watch:
        return watch(args.watch, args.pid, args.log)
    try:
        found = wait(args.url, args.seconds, args.pid)
    except (CodeServerError, ValueError) as error:
        if args.log and args.log.is_file():
            print(*args.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], sep="\n", file=sys.stderr)
        print(
            f"error: no code server\n  found:  {error}\n  wanted: an answer of {args.url}/health within "
            f"{args.seconds:g} s\n  repair: {repair(args.log)}",
            file=sys.stderr,
        )
        return 1
    print(f"code server: {args.url}, isolation {found['isolation']}")
    return 0


def wait(url: str, seconds: float, pid: int | None = None) -> dict:
    """The server's health, asked for every second.

    Args:
        url: `http://HOST:PORT`.
        seconds: the time that it may take.
        pid: its process; once that has ended nothing is waited for.

    Raises:
        CodeServerError: it does not answer, or its process has ended.
        ValueError: the URL is none.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return asyncio.run(health(url))
        except CodeServerError as error:
            if pid is not None and not stat(pid)[0]:
                raise CodeServerError(f"its process {pid} has ended") from error
            if time.monotonic() + PERIOD_SECONDS > deadline:
                raise
            time.sleep(PERIOD_SECONDS)


def watch(run_dir: Path, pid: int, log: Path) -> int:
    """Until the server or the launcher is gone. If the server: say it, note it in run.json, end the launcher."""
    launcher = os.getppid()
    while stat(pid)[0]:
        time.sleep(PERIOD_SECONDS)
        if os.getppid() != launcher:
            return 0
    reason = f"the code server, process {pid} on {socket.gethostname()}, has ended"
    repair = f"read the end of {log}, then {shlex.join(['bash', 'launch/resume.sh', str(run_dir)])}"
    guard.say(run_dir, guard.ended(reason, repair))
    stopped.note(run_dir, "code_server_died", reason, 1)
    guard.end(launcher, guard.ENDED_BY_GUARD)
    return 1


async def health(url: str) -> dict:
    """One try: what `GET /health` answers. Raises CodeServerError."""
    async with Client(url, patience=0, read_timeout=10) as client:
        return await client.health()


def repair(log: Path | None) -> str:
    """What to do about a server that does not answer."""
    if log is None:
        return "start it there, or unset CODE_SERVER_URL, so that the launcher starts one"
    return f"correct what its log says ({log}), then launch again"


if __name__ == "__main__":
    sys.exit(main())
