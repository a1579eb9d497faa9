"""Append-only samples on disk: a killed evaluation keeps what it has drawn, and grading needs no engine.

One file a stream; a stream is everything that decides a sample except prompt and index: base weights, adapter, sampling
parameters, engine. Its first line describes it, each further line is one sample. Verdicts are never stored.
"""

import errno
import fcntl
import hashlib
import json
import os
from pathlib import Path

from rft.runs.metrics import read_jsonl

Samples = dict[tuple[str, int], dict]  # (prompt digest, index) to its sample


def stream_file(cache: Path, identity: dict) -> Path:
    """The file of a stream, named by the content of `identity` (plain JSON values)."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache / f"{digest[:32]}.jsonl"


def read_samples(file: Path) -> tuple[dict | None, Samples]:
    """What a stream's first line says of it, and its samples; (None, {}) where there is no file.

    A torn last line is what a kill leaves, and is not there. A sample that two processes drew counts once, the first.

    Raises:
        ValueError: a whole line that is not one of ours, with file and line.
    """
    try:
        lines = read_jsonl(file)
    except ValueError as error:
        raise ValueError(f"{error}; wanted one sample a line; delete that line, or the file to sample again") from None
    samples: Samples = {}
    for number, line in enumerate(lines[1:], 2):
        if not isinstance(line, dict) or not {"prompt", "index", "response", "tokens", "finish"} <= line.keys():
            raise ValueError(f"{file}, line {number}: not a sample; delete that line, or the file to sample again")
        samples.setdefault((line["prompt"], line["index"]), line)
    return (lines[0] if lines else None), samples


def append(file: Path, header: dict, lines: list[dict]) -> None:
    """Append samples, under a lock, whole lines or nothing; the header first where the file is new.

    Raises:
        OSError: the disk is full or the file cannot be written. The file is then as it was before, and can be read.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = _whole_lines(descriptor)
        rows = lines if size else [header, *lines]
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise OSError(error.errno, os.strerror(error.errno), str(file)) from None
    finally:
        os.close(descriptor)


def _whole_lines(descriptor: int) -> int:
    """Cut what a kill left of a last line, and return the size in bytes."""
    size = end = os.fstat(descriptor).st_size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        block = os.pread(descriptor, min(end, 1 << 16), max(0, end - (1 << 16)))
        place = block.rfind(b"\n")
        end = end - len(block) + place + 1
    if end != size:
        os.ftruncate(descriptor, end)
    return end
