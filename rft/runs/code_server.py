"""Wait until a code server answers, and say how it isolates programs (docs/code_rewards.md).

    .venv/bin/python -m rft.runs.code_server URL [--seconds 30] [--pid PID --log FILE]     as launch/code_server.sh does

Exit status 0 once it answers; 1 where its process has ended before, or the time is over, with the end of its log.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from rft.code_server.client import Client, CodeServerError
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
    args = parser.parse_args()
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
