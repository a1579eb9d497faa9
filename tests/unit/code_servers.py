"""Code servers in processes of their own, for tests."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import requests
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
ADD = "def add(a, b):\n    return a + b\n"
BOUND = 120  # seconds that only a hang exceeds


class Served(NamedTuple):
    """A server that runs: its address, its process, what it wrote on stderr."""

    url: str
    process: subprocess.Popen
    log: Path

    def ask(self, path: str, body: bytes | str | None = None, **headers: str) -> requests.Response:
        """GET, or POST of a JSON body."""
        named = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        with requests.Session() as session:
            session.trust_env = False
            method = "GET" if body is None else "POST"
            data = body.encode() if isinstance(body, str) else body
            return session.request(method, self.url + path, data=data, headers=named, timeout=BOUND)

    def numbers(self) -> dict:
        """/metrics as (name, labels' values) -> value."""
        families = text_string_to_metric_families(self.ask("/metrics").text)
        return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}

    def connection(self) -> socket.socket:
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname, place.port), timeout=BOUND)


def body(program: object = ADD, tests: object = ("assert add(1, 2) == 3",), **more: object) -> str:
    return json.dumps({"program": program, "tests": tests, **more})


def raw(sent: str) -> bytes:
    """A whole request to test a program."""
    head = "POST /test_program HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(sent)}"
    return "\r\n".join([*head, "", sent]).encode()


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would change a code server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CODE_SERVER_")}
    return ours | {"PYTHONPATH": str(ROOT)} | more


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rft.code_server", *arguments]


@contextmanager
def serving(place: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    """A server at a free port of the loopback, killed at the end if it runs still."""
    log = place / f"server_{time.monotonic_ns()}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            command("--port", "0", *arguments), cwd=ROOT, env=environment(**variables), stderr=sink
        )
    try:
        found = until(lambda: process.poll() is not None or re.search(r"serves at http://\S+:(\d+):", log.read_text()))
        assert process.poll() is None, log.read_text()
        yield Served(f"http://127.0.0.1:{found[1]}", process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(found: Callable) -> object:
    """What `found` gives once it is true; fails after a bound."""
    end = time.monotonic() + BOUND
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {BOUND} s: {found}")


def descendants(pid: int) -> set[tuple[int, str]]:
    """(pid, start time) of every process below one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1]), fields[19]
    below, found = {pid}, set()
    while new := {child for child, (parent, _) in parents.items() if parent in below} - below:
        below |= new
        found |= {(child, parents[child][1]) for child in new}
    return found


def alive(processes: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those that are there still, zombies left out."""
    left = set()
    for pid, start in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == start and fields[0] != "Z":
            left.add((pid, start))
    return left
