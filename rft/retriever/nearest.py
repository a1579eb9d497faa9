"""The nearest vectors by inner product, with faiss: exact over mapped files, or a graph (HNSW). Without torch.

Found passages are scored again in float64, one by one, and ordered by score, then by number: an answer is the same
whichever queries are searched with it.
"""

import os
import time
from pathlib import Path

import faiss
import numpy as np

from rft.retriever.places import Progress

SPARE = 8  # passages beyond those asked for, so that rounding loses none of them
LINKS, EF_CONSTRUCTION, EF_SEARCH = 32, 200, 128  # HNSW: neighbours, and candidates at the build and in a search
ADDED = 4096  # passages at once in the build of a graph
SAVE_SECONDS = 600.0  # between two states of a graph that is being built


class Flat:
    """Exact search."""

    kind = "flat"

    def __init__(self, files: list[np.ndarray]):
        self.files = files

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
        """(score, number of the passage) of the `k` nearest for each row of `queries`, the best first."""
        found, first = [], 0
        for rows in self.files:
            _, numbers = faiss.knn(queries, rows, min(k + SPARE, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
            found.append(numbers + first)
            first += len(rows)
        return ordered(self.files, queries, np.concatenate(found, axis=1), k)


class Hnsw:
    """Search in a graph: some passages are missed, for less time. The graph is in memory, with a copy of the vectors.

    Args:
        files: vectors.
        folder: where the graph is, or is made, with a state every ten minutes that a later start goes on from.
        progress: is told.
    """

    kind = "hnsw"

    def __init__(self, files: list[np.ndarray], folder: Path, progress: Progress):
        self.files, total, dimension = files, sum(map(len, files)), files[0].shape[1]
        file = folder / f"hnsw_{LINKS}_{EF_CONSTRUCTION}.faiss"
        if file.is_file():
            self.graph = faiss.read_index(str(file))
        else:
            self.graph = faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT)
            self.graph.hnsw.efConstruction = EF_CONSTRUCTION
        if self.graph.d != dimension or self.graph.ntotal > total:
            raise ValueError(
                f"{file}: found a graph of {self.graph.ntotal} x {self.graph.d}; wanted {total} x {dimension}; "
                "remove it, and start again: it is made anew"
            )
        if self.graph.ntotal < total:
            self._build(file, total, progress)
        self.graph.hnsw.efSearch = EF_SEARCH

    def _build(self, file: Path, total: int, progress: Progress) -> None:
        saved = time.monotonic()
        while (done := self.graph.ntotal) < total:
            progress("building the graph, passages", done, total)
            self.graph.add(_rows(self.files, done, min(done + ADDED, total)))
            if time.monotonic() > saved + SAVE_SECONDS:
                _write(self.graph, file)
                saved = time.monotonic()
        _write(self.graph, file)

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
        """As `Flat.search`; a passage may be missed."""
        _, numbers = self.graph.search(queries, min(k + SPARE, self.graph.ntotal))
        return ordered(self.files, queries, numbers, k)


def ordered(files: list[np.ndarray], queries: np.ndarray, numbers: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
    """Candidates scored in float64, the `k` best of each row, ties by number.

    Args:
        files: vectors, mapped.
        queries: `(queries, dimension)`.
        numbers: `(queries, candidates)`; -1 is none.
        k: passages for each query.
    """
    height, found = len(files[0]), []
    for query, row in zip(queries.astype(np.float64), numbers, strict=True):
        candidates = np.unique(row[row >= 0])
        vectors = np.stack([files[number // height][number % height] for number in candidates])
        scores = np.array([vector @ query for vector in vectors.astype(np.float64)], dtype=np.float32)
        best = np.lexsort((candidates, -scores))[:k]
        found.append([(float(scores[each]), int(candidates[each])) for each in best])
    return found


def _rows(files: list[np.ndarray], start: int, end: int) -> np.ndarray:
    """Rows `start` to `end`, of at most two files."""
    height = len(files[0])
    first, last = start // height, (end - 1) // height
    parts = [files[each][max(start - each * height, 0) : end - each * height] for each in range(first, last + 1)]
    return np.ascontiguousarray(np.concatenate(parts))


def _write(graph: faiss.Index, file: Path) -> None:
    """A complete file or the one before."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        faiss.write_index(graph, str(partial))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
