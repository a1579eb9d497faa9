"""Search by words: bm25s, with the scores of its index mapped. Without torch."""

import logging
import shutil
from importlib.metadata import version
from pathlib import Path

import bm25s
import numpy as np

from rft.retriever.places import Corpus, Progress

NAME = "bm25s"
TOKENIZER = {"lower": True, "stopwords": "english", "stemmer": None}
BATCH = 4096
FOLDER = "bm25s"
logging.getLogger(NAME).setLevel(logging.WARNING)  # its import sets DEBUG


def identity() -> dict:
    """What decides its scores: JSON."""
    return {"name": NAME, "version": version(NAME), "tokenizer": TOKENIZER, "method": "lucene", "k1": 1.5, "b": 0.75}


class Bm25:
    """An index, made where it is absent: complete or not at all, in memory (some 12 bytes a word)."""

    def __init__(self, corpus: Corpus, folder: Path, progress: Progress):
        place = folder / FOLDER
        if not place.is_dir():
            partial = folder / f"{FOLDER}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _built(corpus, progress).save(str(partial), show_progress=False)
            partial.rename(place)
        self._index = bm25s.BM25.load(str(place), mmap=True, show_progress=False)
        self._passages = len(corpus)
        if self._index.scores["num_docs"] != self._passages:
            raise ValueError(
                f"{place}: found an index of {self._index.scores['num_docs']:,} passages; wanted {self._passages:,}; "
                "remove it, and start again: it is made anew"
            )

    def search(self, queries: list[str], k: int) -> list[list[tuple[float, int]]]:
        """(score, number of the passage) of the `k` best for each query, ties by number; 0.0 where no word is there."""
        words = bm25s.tokenize(queries, return_ids=False, show_progress=False, **TOKENIZER)
        return [self._best(each, k) for each in words]

    def _best(self, words: list[str], k: int) -> list[tuple[float, int]]:
        arrays, scores = self._index.scores, np.zeros(self._passages, dtype=np.float32)
        for number in sorted(self._index.get_tokens_ids(words)):  # one order of adding, whatever the query's
            start, end = arrays["indptr"][number], arrays["indptr"][number + 1]
            scores[arrays["indices"][start:end]] += arrays["data"][start:end]  # a passage once in each word's list
        numbers = np.flatnonzero(scores)  # the zeros left out: they make a partition a hundred times slower
        if len(numbers) > k:
            values = scores[numbers]
            least = np.partition(values, -k)[-k]
            above, ties = numbers[values > least], numbers[values == least]
            numbers = np.concatenate([above, ties[: k - len(above)]])
        elif len(numbers) < k:
            numbers = np.concatenate([numbers, np.flatnonzero(scores == 0)[: k - len(numbers)]])
        best = numbers[np.lexsort((numbers, -scores[numbers]))]
        return [(float(scores[each]), int(each)) for each in best]


def _built(corpus: Corpus, progress: Progress) -> bm25s.BM25:
    ids, vocabulary = [], {}
    for start in range(0, len(corpus), BATCH):
        progress("reading words, passages", start, len(corpus))
        texts = corpus.texts(start, min(start + BATCH, len(corpus)))
        for words in bm25s.tokenize(texts, return_ids=False, show_progress=False, **TOKENIZER):
            ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
    progress("scoring words", 0, 1)
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index((ids, vocabulary or {"": 0}), show_progress=False)
    return index
