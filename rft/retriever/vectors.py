"""Vectors of all passages, in mapped files, each complete or absent: an interrupted build goes on where it was."""

from pathlib import Path
from typing import Protocol

import numpy as np

from rft.retriever.places import Corpus, Progress, replace_array

ROWS = 1 << 16  # passages a file: 200 MB at 768 numbers
CHARACTERS = 1 << 16  # of a passage that an encoder is given; it reads some hundred tokens


class Encoder(Protocol):
    """Makes vectors of texts."""

    name: str
    dimension: int
    batch: int  # texts that are encoded at once in a build
    identity: dict  # JSON: what decides its vectors

    def passages(self, texts: list[str]) -> np.ndarray:
        """`(len(texts), dimension)`, float32."""

    def queries(self, texts: list[str]) -> np.ndarray:
        """`(len(texts), dimension)`, float32."""


def built(corpus: Corpus, encoder: Encoder, folder: Path, progress: Progress) -> list[np.ndarray]:
    """The files of vectors, `(rows, dimension)` float32 each, made where they are absent.

    Raises:
        ValueError: a line of the corpus is no passage; a file has another shape than it should.
    """
    files = []
    for first in range(0, len(corpus), ROWS):
        last, file = min(first + ROWS, len(corpus)), folder / f"vectors_{first // ROWS:05d}.npy"
        if not file.is_file():
            made = np.empty((last - first, encoder.dimension), dtype=np.float32)
            for start in range(first, last, encoder.batch):
                progress("encoding passages", start, len(corpus))
                end = min(start + encoder.batch, last)
                made[start - first : end - first] = encoder.passages(corpus.texts(start, end, CHARACTERS))
            replace_array(file, made)
        mapped = np.load(file, mmap_mode="r")
        if mapped.shape != (last - first, encoder.dimension) or mapped.dtype != np.float32:
            raise ValueError(
                f"{file}: found {mapped.dtype} of shape {mapped.shape}; wanted float32 of "
                f"{(last - first, encoder.dimension)}; remove it, and start again: it is made anew"
            )
        files.append(mapped)
    return files
