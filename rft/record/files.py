"""Files that a kill or a full disk leaves complete: replaced in one step, or grown by complete lines."""

import errno
import fcntl
import json
import os
from pathlib import Path

BLOCK = 1 << 16


def replace_bytes(file: Path, content: bytes) -> None:
    """Write a complete file or nothing: its former content stays where that fails. The folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def replace_text(file: Path, text: str) -> None:
    """`replace_bytes` with UTF-8."""
    replace_bytes(file, text.encode())


def replace_json(file: Path, content: object) -> None:
    """`replace_text` with indented JSON."""
    replace_text(file, json.dumps(content, indent=1) + "\n")


def append_lines(file: Path, lines: str, header: str = "") -> None:
    """Append complete lines, each with its newline, by one write under a lock: several processes may append.

    An incomplete last line, left by a kill, is cut off first, or it would become a broken line inside the file.

    Args:
        header: lines that come first where the file is new or empty.

    Raises:
        OSError: the disk is full or the file cannot be written; it is as before then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _lock(descriptor)
        size = _cut_torn_tail(descriptor)
        data = (lines if size else header + lines).encode()
        try:
            if os.write(descriptor, data) < len(data):  # what still fitted was written, and no error raised
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise OSError(error.errno, os.strerror(error.errno), str(file)) from None
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Wait for the lock. A file system without locks goes without: one write in append mode stays in one piece."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise


def _cut_torn_tail(descriptor: int) -> int:
    """Cut what a kill left of a last line, and return the size in bytes."""
    size = end = os.fstat(descriptor).st_size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        block = os.pread(descriptor, min(end, BLOCK), max(0, end - BLOCK))
        end += block.rfind(b"\n") + 1 - len(block)
    if end != size:
        os.ftruncate(descriptor, end)
    return end
