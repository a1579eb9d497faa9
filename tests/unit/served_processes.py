"""Servers of ours in processes of their own, for tests."""

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
BOUND = 120  # seconds that only a hang exceeds
VARIABLES = ("CODE_SERVER_", "RETRIEVER_")


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


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would change a server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    return ours | {"PYTHONPATH": str(ROOT)} | more


@contextmanager
def process_of(command: list[str], place: Path, said: str, **variables: str) -> Iterator[Served]:
    """A server that has said its address in its log, ended with the block if it runs still.

    Args:
        command: that starts it.
        place: a folder for its log.
        said: what stands before its address.
        variables: of the environment.
    """
    log = place / f"server_{time.monotonic_ns()}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(**variables), stderr=sink)
    try:
        found = until(lambda: process.poll() is not None or re.search(rf"{said} (http://\S+?:\d+):", log.read_text()))
        assert process.poll() is None, log.read_text()
        yield Served(found[1].replace("0.0.0.0", "127.0.0.1"), process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def module(name: str, *arguments: str) -> list[str]:
    """The command of a module."""
    return [sys.executable, "-m", name, *arguments]


def until(found: Callable) -> object:
    """What `found` gives once it is true; fails after a bound."""
    end = time.monotonic() + BOUND
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {BOUND} s: {found}")
