"""Code servers in processes of their own, for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from served_processes import BOUND, ROOT, Served, environment, module, process_of, until

__all__ = ["ADD", "BOUND", "ROOT", "alive", "body", "command", "descendants", "environment", "raw", "serving", "until"]
ADD = "def add(a, b):\n    return a + b\n"


def body(program: object = ADD, tests: object = ("assert add(1, 2) == 3",), **more: object) -> str:
    return json.dumps({"program": program, "tests": tests, **more})


def raw(sent: str) -> bytes:
    """A whole request to test a program."""
    head = "POST /test_program HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(sent)}"
    return "\r\n".join([*head, "", sent]).encode()


def command(*arguments: str) -> list[str]:
    return module("rft.code_server", *arguments)


@contextmanager
def serving(place: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    """A server at a free port of the loopback, killed at the end if it runs still."""
    with process_of(command("--port", "0", *arguments), place, "serves at", **variables) as served:
        yield served


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
