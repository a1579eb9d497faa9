"""Queries to passages: an index over a corpus, opened or made."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rft.retriever.manifest import only_one, require_same
from rft.retriever.places import Corpus, Progress, open_corpus, require_corpus

WORDLLAMA = "wordllama"
KINDS = ("flat", "hnsw", "torch")


@dataclass(frozen=True)
class Options:
    """What is searched, and how."""

    corpus: Path
    index: str  # dense, bm25
    encoder: str = WORDLLAMA  # or a folder
    kind: str = "flat"  # of a dense index: one of KINDS
    index_dir: Path | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    command: tuple[str, ...] = ()  # that was called, for repairs

    @property
    def folder(self) -> Path:
        """Where the index is: beside the corpus, unless the options say."""
        dense = f"dense-{Path(self.encoder).resolve().name}"
        return self.index_dir or self.corpus.with_suffix(f".{dense if self.index == 'dense' else self.index}")


class Hit(NamedTuple):
    """A passage that was found."""

    score: float
    document: dict[str, str]  # id, contents, title, text


class Engine(NamedTuple):
    """What answers."""

    corpus: Corpus
    index: str  # for people: bm25, dense/flat
    encoder: str | None  # its name
    find: Callable[[list[str], int], list[list[tuple[float, int]]]]  # queries and k to (score, number) for each

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """The `k` best passages for each query, the best first; all where the corpus has fewer."""
        found = self.find(queries, min(k, len(self.corpus)))
        return [[Hit(score, self.corpus.document(number)) for score, number in each] for each in found]


def open_engine(options: Options, progress: Progress, opened: Callable[[Corpus], None] | None = None) -> Engine:
    """Open the index, or make what of it is absent.

    Args:
        options: what is searched.
        progress: is told how far it is.
        opened: is given the corpus, before an index is made.

    Raises:
        ValueError: corpus, encoder or index are not what they should be; found, wanted, repair.
        OSError: a file cannot be read or written.
    """
    require_corpus(options.corpus)
    folder = options.folder
    with only_one(folder, progress):
        corpus = open_corpus(options.corpus, folder, progress)
        if opened is not None:
            opened(corpus)
        identity = {"format": 1, "index": options.index, "corpus": corpus.sha256, "passages": len(corpus)}
        if options.index == "bm25":
            from rft.retriever import bm25

            require_same(folder, identity | {"words": bm25.identity()}, list(options.command))
            return Engine(corpus, "bm25", None, bm25.Bm25(corpus, folder, progress).search)
        return _dense(options, corpus, identity, progress)


def _dense(options: Options, corpus: Corpus, identity: dict, progress: Progress) -> Engine:
    from rft.retriever.vectors import ROWS, built

    progress("loading the encoder", 0, 1)
    if options.encoder == WORDLLAMA:
        from rft.retriever.wordllama import WordLlama

        encoder = WordLlama()
    else:
        from rft.retriever.transformer import Transformer

        encoder = Transformer(Path(options.encoder), options.query_prefix, options.passage_prefix)
    shape = {"shape": [len(corpus), encoder.dimension], "rows_per_file": ROWS}
    require_same(options.folder, identity | {"encoder": encoder.identity} | shape, list(options.command))
    files = built(corpus, encoder, options.folder, progress)
    if options.kind == "torch":
        from rft.retriever.cards import Cards

        nearest = Cards(files, progress)
    else:
        from rft.retriever.nearest import Flat, Hnsw

        nearest = Flat(files) if options.kind == "flat" else Hnsw(files, options.folder, progress)
    return Engine(corpus, f"dense/{nearest.kind}", encoder.name, lambda q, k: nearest.search(encoder.queries(q), k))
