"""Append-only samples on disk: a killed evaluation keeps what it has drawn, and grading needs no engine.

One file a stream; a stream is everything that decides a sample except prompt and index: base weights, adapter, sampling
parameters, engine. Its first line describes it, each further line is one sample. Verdicts are never stored.
"""

import hashlib
import json
from pathlib import Path

from rft.record.files import append_lines
from rft.record.readers import read_jsonl

Samples = dict[tuple[str, int], dict]  # (prompt digest, index) to its sample


def stream_file(cache: Path, identity: dict) -> Path:
    """The file of a stream, named by the content of `identity` (plain JSON values)."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache / f"{digest[:32]}.jsonl"


def read_samples(file: Path) -> tuple[dict | None, Samples]:
    """What a stream's first line says of it, and its samples; (None, {}) where there is no file.

    An incomplete last line, left by a kill, is skipped. A sample that two processes drew counts once, the first.

    Raises:
        ValueError: a complete line that is not one of ours, with file and line.
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
    """Append samples, under a lock, complete lines or nothing; the header first where the file is new.

    Raises:
        OSError: the disk is full or the file cannot be written. The file is then as it was before, and can be read.
    """
    rows = (json.dumps(row) + "\n" for row in lines)
    append_lines(file, "".join(rows), header=json.dumps(header) + "\n")
