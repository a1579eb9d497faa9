"""What an index was made from: one of another corpus, encoder or kind is refused, with the command that repairs it."""

import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rft.record.files import replace_json
from rft.retriever.places import SUMMARY, TABLE, Progress

FILE, LOCK = "manifest.json", "lock"
WAIT_SECONDS = 0.2


def require_same(folder: Path, wanted: dict, command: list[str]) -> None:
    """Write the manifest of a new index, or compare that of an old one, which may be incomplete.

    One of which nothing is made, as after a corpus that was refused, is a new one.

    Args:
        folder: of the index.
        wanted: what identifies it: JSON values.
        command: that was called, for the repair.

    Raises:
        ValueError: the folder holds an index of something else.
    """
    file = folder / FILE
    if not file.is_file() or {each.name for each in folder.iterdir()} <= {FILE, LOCK, TABLE, SUMMARY}:
        replace_json(file, wanted)
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {}
    differ = [
        f"{name}: found {found.get(name)!r}, wanted {wanted.get(name)!r}"
        for name in {**wanted, **found}
        if found.get(name) != wanted.get(name)
    ]
    if differ:
        raise ValueError(
            f"{folder} holds another index ({'; '.join(differ)}); pass another --index-dir, or make it anew: "
            f"{again(folder, command)}"
        )


def again(folder: Path, command: list[str]) -> str:
    """The command that makes an index anew."""
    return f"rm -r {shlex.quote(str(folder))} && {shlex.join(['.venv/bin/python', '-m', 'rft.retriever', *command])}"


@contextmanager
def only_one(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock; waits for another process that makes or opens the same index."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("waiting for another process that makes this index", 0, 1)
                time.sleep(WAIT_SECONDS)
        yield
    finally:
        os.close(descriptor)
