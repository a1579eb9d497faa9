"""A corpus by the number of its passage: a table of places on disk, of which a row is read when it is asked for."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rft.record.files import replace_json
from rft.retriever.corpus import document_of

BLOCK = 1 << 24  # bytes that are read at once
TABLE, SUMMARY = "places.npy", "corpus.json"
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


class Corpus:
    """A corpus of JSON lines that need not fit into memory.

    Args:
        path: the file, `.jsonl`.
        places: byte at which each line begins, and the file's size, `(passages + 1,)`.
        sha256: of the file.
    """

    def __init__(self, path: Path, places: np.ndarray, sha256: str):
        self.path, self.places, self.sha256 = path, places, sha256
        self._file = os.open(path, os.O_RDONLY)  # the same content as long as this runs, if the file is replaced

    def __len__(self) -> int:
        return len(self.places) - 1

    def document(self, number: int) -> dict[str, str]:
        """`id`, `contents`, `title` and `text` of a passage.

        Raises:
            ValueError: the line is no passage; or the file was cut.
        """
        start, end = int(self.places[number]), int(self.places[number + 1])
        line = os.pread(self._file, end - start, start)
        try:
            return document_of(line, str(number))
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number + 1}: {error}") from None

    def texts(self, start: int, end: int, characters: int | None = None) -> list[str]:
        """What is searched of passages `start` to `end`: title in quotes, line end, text, as wiki-18 has it.

        Of a long one only its first `characters`, so that thousands of them fit into memory.
        """
        return [self.document(number)["contents"][:characters] for number in range(start, end)]


def open_corpus(path: Path, folder: Path, progress: Progress) -> Corpus:
    """A corpus with its table of places in `folder`, which is made anew where the file has changed since.

    Raises:
        ValueError: the file is empty.
    """
    state = path.stat()
    known = {"bytes": state.st_size, "mtime_ns": state.st_mtime_ns}
    summary = _read(folder / SUMMARY)
    if not all(summary.get(name) == value for name, value in known.items()) or not (folder / TABLE).is_file():
        places, sha256 = _scanned(path, progress)
        replace_array(folder / TABLE, places)
        summary = known | {"sha256": sha256, "passages": len(places) - 1}
        replace_json(folder / SUMMARY, summary)
    return Corpus(path, np.load(folder / TABLE, mmap_mode="r"), summary["sha256"])


def require_corpus(path: Path) -> None:
    """Before anything is made for it. Raises ValueError: no such file, or one that is packed."""
    if not path.is_file():
        raise ValueError(f"found no file {path}; wanted a corpus, a passage a line; correct --corpus")
    if path.suffix != ".jsonl":
        raise ValueError(f"found {path}; wanted a file .jsonl, which is read by its places; unpack or rename it")


def replace_array(file: Path, array: np.ndarray) -> None:
    """Write a complete .npy or nothing. The folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            np.save(stream, array)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _scanned(path: Path, progress: Progress) -> tuple[np.ndarray, str]:
    """Places of all lines, and the sha256 of the file, in one reading."""
    size, digest, found, end = path.stat().st_size, hashlib.sha256(), [np.zeros(1, dtype=np.int64)], 0
    last = b"\n"
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            progress("reading the corpus, bytes", end, size)
            digest.update(block)
            found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + (end + 1))
            end, last = end + len(block), block[-1:]
    places = np.concatenate(found)
    if last != b"\n":
        places = np.append(places, end)
    if len(places) < 2:
        raise ValueError(f"found {path} empty; wanted a passage a line; fetch or make the file again")
    return places, digest.hexdigest()


def _read(file: Path) -> dict:
    """The JSON object of a file, {} where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
