"""Wait until a server that a run asks is ready; end the run when its own one has ended or hangs: launch/service.sh."""

import argparse
import asyncio
import http.client
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rft.json_client import JsonClient, Service
from rft.runs import guard, stopped
from rft.runs.guard import stat

PERIOD_SECONDS = 1.0  # between two tries
SHOWN_LINES = 15  # of the log of a server that did not start
ASKED_SECONDS = 10.0  # between two questions of the watch, and for each answer
SILENT = 6  # questions in a row without an answer, by which a server hangs: counted, since a suspended run asks nothing


@dataclass(frozen=True)
class Server:
    """A kind of server.

    Args:
        service: its names, as its client has them.
        client: makes one, as `rft.json_client.JsonClient` without its service.
        seconds: that it may take until it is ready.
        describe: what it is, of its health, in words.
        progress: what it still does before it is ready, of its health, in words; empty once it is ready.
    """

    service: Service
    client: Callable[..., JsonClient]
    seconds: float
    describe: Callable[[dict], str]
    progress: Callable[[dict], str] = lambda _: ""

    def cause(self, hangs: bool) -> str:
        """In the place of a rule's name, where it has ended a run: its process runs and answers nothing, or is gone."""
        return f"{self.service.name.replace(' ', '_')}_{'hung' if hangs else 'died'}"


def parser(server: Server, description: str) -> argparse.ArgumentParser:
    """The options that every kind has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("url", help="http://HOST:PORT")
    made.add_argument(
        "--seconds", type=float, default=server.seconds, help=f"that it may take (default: {server.seconds:g})"
    )
    made.add_argument("--pid", type=int, help="its process: one that has ended is not waited for")
    made.add_argument("--log", type=Path, help="its log, whose end is shown where it does not answer")
    made.add_argument(
        "--watch", type=Path, metavar="RUN_DIR", help="end the launch of this run if the server ends or hangs"
    )
    return made


def main(server: Server, args: argparse.Namespace, accept: Callable[[dict], None] = lambda _: None) -> int:
    """The exit status of a command line of `parser`; prints what it found.

    Args:
        accept: looks at each health, also of one that is not ready, and raises ValueError where it must not be asked.
    """
    if args.watch:
        return watch(server, args.url, args.watch, args.pid, args.log)
    try:
        found = wait(server, args.url, args.seconds, args.pid, accept, Told(server.service.name))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except server.service.error as error:
        if args.log and args.log.is_file():
            print(*args.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], sep="\n", file=sys.stderr)
        print(
            f"error: no {server.service.name}\n  found:  {error}\n  wanted: an answer of {args.url}/health within "
            f"{args.seconds:g} s\n  repair: {repair(server.service, args.log)}",
            file=sys.stderr,
        )
        return 1
    print(f"{server.service.name}: {args.url}, {server.describe(found)}")
    return 0


def wait(
    server: Server,
    url: str,
    seconds: float,
    pid: int | None = None,
    accept: Callable[[dict], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict:
    """The server's health once it is ready, asked for every second.

    Args:
        url: `http://HOST:PORT`.
        seconds: the time that it may take.
        pid: its process; once that has ended nothing is waited for.
        accept: looks at each health, and raises ValueError where the server must not be asked.
        tell: takes what the server still does.

    Raises:
        RuntimeError: the service's: it does not answer, is not ready in time, or its process has ended.
        ValueError: the URL is none, or of `accept`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = asyncio.run(health(server, url))
            accept(found)
            doing = server.progress(found)
            if not doing:
                return found
            tell(doing)
            fault = server.service.error(f"it is not ready: {doing}")
        except server.service.error as error:
            fault = error
            if pid is None:  # somebody else's, which may be long in coming
                tell("no answer yet")
        if pid is not None and not stat(pid)[0]:
            raise server.service.error(f"its process {pid} has ended") from fault
        if time.monotonic() + PERIOD_SECONDS > deadline:
            raise fault
        time.sleep(PERIOD_SECONDS)


class Told:
    """Prints what a server still does, every ten seconds, and at once where it does something else.

    Args:
        name: of the server.
    """

    SECONDS = 10.0

    def __init__(self, name: str) -> None:
        self.name, self.at, self.what = name, 0.0, ""

    def __call__(self, doing: str) -> None:
        what = doing.partition(":")[0]
        if what != self.what or time.monotonic() > self.at + self.SECONDS:
            self.at, self.what = time.monotonic(), what
            print(f"{self.name}: {doing}", flush=True)


def watch(server: Server, url: str, run_dir: Path, pid: int, log: Path) -> int:
    """Until the server or the launcher is gone, or the server is silent for a minute.

    If it is the server: say it, note it in run.json, end the launcher. A busy one is left alone: any status is an
    answer, and /health waits for nothing that is searched or judged.
    """
    launcher, silent, next_question = os.getppid(), 0, time.monotonic() + ASKED_SECONDS
    while stat(pid)[0] and silent < SILENT:
        time.sleep(PERIOD_SECONDS)
        if os.getppid() != launcher:
            return 0
        if time.monotonic() >= next_question:
            next_question = time.monotonic() + ASKED_SECONDS
            silent = 0 if answers(url) else silent + 1
    hangs = bool(stat(pid)[0])
    what = f"has not answered for {SILENT * ASKED_SECONDS:g} s" if hangs else "has ended"
    reason = f"the {server.service.name}, process {pid} on {socket.gethostname()}, {what}"
    command = shlex.join(["bash", "launch/resume.sh", str(run_dir)])
    guard.say(run_dir, guard.ended(reason, f"read the end of {log}, then {command}"))
    stopped.note(run_dir, server.cause(hangs), reason, 1)
    guard.end(launcher, guard.ENDED_BY_GUARD)
    return 1


def answers(url: str) -> bool:
    """Whether a server of this machine answers `GET /health` in time, with whatever status. Asks without a proxy."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ASKED_SECONDS)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


async def health(server: Server, url: str) -> dict:
    """One try: what `GET /health` answers. Raises the service's error."""
    async with server.client(url, patience=0, read_timeout=10) as client:
        return await client.health()


def repair(service: Service, log: Path | None) -> str:
    """What to do about a server that does not answer."""
    if log is None:
        return f"start it there, or unset {service.variable}, so that the launcher starts one"
    return f"correct what its log says ({log}), then launch again"
