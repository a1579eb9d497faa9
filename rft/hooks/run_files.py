"""Small JSON files of a run, written by the training processes so that a kill or a full disk spoils none of them."""

import errno
import json
import os
from pathlib import Path


def run_dir() -> Path | None:
    """The directory of the run that this process belongs to; None where neither launcher nor user has set one."""
    place = os.environ.get("RFT_RUN_DIR") or os.environ.get("METRICS_LOG_DIR")
    return Path(place) if place else None


def replace_json(file: Path, content: dict) -> None:
    """Write a file whole or not at all: a kill leaves the former content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(file)


def forget_stop() -> None:
    """Take `stopped` out of run.json: the training goes on, or has come to its normal end."""
    place = run_dir()
    file = place / "run.json" if place else None
    if file and file.is_file():
        manifest = json.loads(file.read_text())
        if manifest.pop("stopped", None):
            replace_json(file, manifest)


def append_line(file: Path, line: str) -> None:
    """Append a line, newline last, by a single write: a kill leaves at most a torn tail, never a mixed line.

    A torn tail that a kill has left is cut off first, or it would become a broken line in the middle of the file.

    Raises:
        OSError: the disk is full; the file is as before.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = file.read_bytes().rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        data = line.encode()
        if os.write(descriptor, data) < len(data):  # what still fitted was written, and no error raised
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    finally:
        os.close(descriptor)
