"""A run's samples as files: their names, their order, and a reader of both forms, gzipped and plain."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TRAINING, EVALUATION = "samples", "eval_samples"  # kinds
NAME = re.compile(r"(?P<kind>samples|eval_samples)_step(?P<step>\d+)\.jsonl(?P<packed>\.gz)?")


class SampleFile(NamedTuple):
    """The samples of one step."""

    step: int  # that trained on them, from 1; of an evaluation: after which, 0 for the base model
    kind: str  # TRAINING or EVALUATION
    path: Path


def file_name(kind: str, step: int) -> str:
    """The name under which samples are written: `samples_step12.jsonl.gz`. Older runs have them without `.gz`."""
    return f"{kind}_step{step}.jsonl.gz"


def sample_files(directory: Path) -> list[SampleFile]:
    """The files of a folder of samples (`rft.record.readers.samples_dir(run)`) by step, evaluations before training.

    Of a step that is there in both forms the gzipped one. Empty where the folder is not there.
    """
    found = {}
    for path in sorted(directory.glob("*.jsonl*")):  # x.jsonl before x.jsonl.gz
        if match := NAME.fullmatch(path.name):
            found[int(match["step"]), match["kind"]] = path
    return [SampleFile(step, kind, path) for (step, kind), path in sorted(found.items())]


def sample_file(directory: Path, kind: str, step: int) -> Path:
    """The file of one step in the form in which it is there; the name that it would have where it is not."""
    packed = directory / file_name(kind, step)
    plain = packed.with_suffix("")
    return plain if plain.is_file() and not packed.is_file() else packed


def read_samples(path: Path) -> Iterator[dict]:
    """The samples of a file one by one, keys as `rft.hooks.samples.write_samples` says.

    A plain file's last line without a newline, which a kill leaves, is dropped.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: a line is not JSON, or the gzipped file is cut or damaged; the message names file and line.
    """
    for number, line in enumerate(sample_lines(path), 1):
        try:
            sample = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        yield sample


def sample_lines(path: Path) -> Iterator[str]:
    """The complete lines of a file without their newlines, as text; bytes that are not UTF-8 are replaced.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: the gzipped file is cut or damaged, after the lines before that place.
    """
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1].decode("utf-8", "replace")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: a damaged gzip file ({error})") from None
