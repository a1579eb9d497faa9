"""The nearest vectors by inner product, with faiss: exact over mapped files, or a graph (HNSW). Without torch.

Found passages are scored again in float64, one by one, and ordered by score, then by number: an answer is the same
whichever queries are searched with it.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np

from rft.retriever.places import Progress

SPARE = 8  # passages beyond those asked for, so that rounding loses none of them
LINKS, EF_CONSTRUCTION, EF_SEARCH = 32, 200, 128  # HNSW: neighbours, and candidates at the build and in a search
ADDED = 4096  # passages at once in the build of a graph
PART = 1 << 14  # passages that a thread searches at once
BLOCK = 32  # queries whose candidates are scored at once
CORES = len(os.sched_getaffinity(0))
SAVE_SECONDS = 600.0  # between two states of a graph that is being built


class Flat:
    """Exact search."""

    kind = "flat"

    def __init__(self, files: list[np.ndarray]):
        self.files = files
        self._threads = threads()
        # Queries times dimension from which on it multiplies matrices. At its own 128,000, which few batches reach, a
        # batch takes eight times as long.
        faiss.cvar.distance_compute_blas_threshold = 4 * files[0].shape[1]
        self._parts, first = [], 0
        for rows in files:
            self._parts += [(first + start, rows[start : start + PART]) for start in range(0, len(rows), PART)]
            first += len(rows)

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
        """(score, number of the passage) of the `k` nearest for each row of `queries`, the best first."""

        def nearest(first: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            scores, places = faiss.knn(queries, rows, min(k + SPARE, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
            return scores, places + first

        found = list(self._threads.map(nearest, *zip(*self._parts, strict=True)))
        scores, numbers = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : k + SPARE]
        return ordered(self.files, queries, np.take_along_axis(numbers, best, axis=1), k)


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
        self.graph.hnsw.efSearch, self._threads = EF_SEARCH, threads()

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

        def nearest(some: np.ndarray) -> np.ndarray:
            return self.graph.search(some, min(k + SPARE, self.graph.ntotal))[1]

        shares = np.array_split(queries, min(CORES, len(queries)))
        return ordered(self.files, queries, np.concatenate(list(self._threads.map(nearest, shares))), k)


def threads() -> ThreadPoolExecutor:
    """Threads of ours, a core each: those of faiss wait in a loop for each other, which a busy machine pays for."""
    return ThreadPoolExecutor(CORES, "faiss", initializer=faiss.omp_set_num_threads, initargs=(1,))


def ordered(files: list[np.ndarray], queries: np.ndarray, numbers: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
    """Candidates scored in float64, the `k` best of each row, ties by number.

    Args:
        files: vectors, mapped.
        queries: `(queries, dimension)`.
        numbers: `(queries, candidates)`; -1 is none.
        k: passages for each query.
    """
    found = []
    for start in range(0, len(queries), BLOCK):
        rows = numbers[start : start + BLOCK]
        vectors = _gathered(files, np.maximum(rows, 0)).astype(np.float64)
        # Along the last axis, a pair by itself: a product of matrices would round by the shapes of both.
        scores = (vectors * queries[start : start + BLOCK, None].astype(np.float64)).sum(-1)
        found += merged(rows, np.where(rows < 0, -np.inf, scores).astype(np.float32), k)
    return found


def merged(numbers: np.ndarray, scores: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
    """(score, number) of the `k` best of each row, ties by number; a number of -1 is none.

    Args:
        numbers, scores: `(queries, candidates)`.
        k: passages for each query.
    """
    best = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return [
        [(float(scores[row, each]), int(numbers[row, each])) for each in places if numbers[row, each] >= 0]
        for row, places in enumerate(best)
    ]


def _gathered(files: list[np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """The vectors of these numbers, `(*numbers.shape, dimension)`; all files but the last have the same height."""
    found = np.empty((*numbers.shape, files[0].shape[1]), dtype=np.float32)
    places, rows = np.divmod(numbers, len(files[0]))
    for place in np.unique(places):
        here = places == place
        found[here] = files[place][rows[here]]
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
