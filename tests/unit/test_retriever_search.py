"""What indexes find, against brute force: all of it where they are exact, whichever queries are searched together."""

import bm25s
import numpy as np
import pytest
from retrievers import corpus_of

from rft.retriever.bm25 import TOKENIZER, Bm25
from rft.retriever.cards import Cards
from rft.retriever.nearest import Flat, Hnsw, merged
from rft.retriever.places import open_corpus


def ignored(*_: object) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def vectors():
    """1,500 unit vectors in three files, the last one shorter; 100 of them twice, and some a rounding apart."""
    made = np.random.default_rng(0).standard_normal((1300, 48)).astype(np.float32)
    made = np.concatenate([made, made[:100], made[:100] * np.float32(1 + 1e-7)])
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return [made[:600], made[600:1200], made[1200:]]


@pytest.fixture(scope="module")
def queries(vectors):
    drawn = np.random.default_rng(1).standard_normal((70, 48)).astype(np.float32)
    return np.concatenate([drawn / np.linalg.norm(drawn, axis=1, keepdims=True), vectors[0][:10]])


def brute_force(files: list[np.ndarray], queries: np.ndarray, k: int) -> list[list[int]]:
    """Numbers of the best, by float64 rounded to float32, ties by number."""
    scores = (queries.astype(np.float64) @ np.concatenate(files).astype(np.float64).T).astype(np.float32)
    numbers = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return np.lexsort((numbers, -scores), axis=1)[:, :k].tolist()


def numbers_of(found: list[list[tuple[float, int]]]) -> list[list[int]]:
    return [[number for _, number in each] for each in found]


EXACT = {
    "flat": Flat,
    "torch, a part": lambda files: Cards(files, ignored, ["cpu"]),
    "torch, three parts": lambda files: Cards(files, ignored, ["cpu"] * 3),
    "torch, more parts than passages of one": lambda files: Cards(files, ignored, ["cpu"] * 7),
}


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())
@pytest.mark.parametrize("k", [1, 3, 100])
def test_exact_search_is_brute_force(vectors, queries, make, k):
    found = make(vectors).search(queries, k)
    assert numbers_of(found) == brute_force(vectors, queries, k)
    assert all(scores == sorted(scores, reverse=True) for scores in ([s for s, _ in each] for each in found))


@pytest.mark.parametrize("make", [Flat, EXACT["torch, three parts"]])
def test_more_than_there_are_gives_all(vectors, queries, make):
    few = [vectors[0][:2], vectors[1][:1]]
    assert [sorted(each) for each in numbers_of(make(few).search(queries, 100))] == [[0, 1, 2]] * len(queries)


def test_more_cards_than_passages(vectors, queries):
    few = [vectors[0][:2]]
    assert numbers_of(Cards(few, ignored, ["cpu"] * 5).search(queries, 3)) == brute_force(few, queries, 3)


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())
def test_a_query_alone_finds_what_it_finds_among_others(vectors, queries, make):
    index = make(vectors)
    together = index.search(queries, 5)
    assert [index.search(queries[n : n + 1], 5)[0] for n in range(len(queries))] == together


def test_parts_are_merged_by_score_then_number():
    scores = np.array([[0.5, 0.9, 0.9, 0.1]], dtype=np.float32)
    assert merged(np.array([[7, 30, 2, 1]]), scores, 3) == [
        [(pytest.approx(0.9), 2), (pytest.approx(0.9), 30), (0.5, 7)]
    ]


def test_a_graph_finds_nearly_all_and_goes_on_where_it_was(tmp_path, vectors, queries, monkeypatch):
    def stop(what: str, done: int, of: int) -> None:
        if done >= 600:
            raise KeyboardInterrupt

    monkeypatch.setattr("rft.retriever.nearest.ADDED", 300)
    monkeypatch.setattr("rft.retriever.nearest.SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        Hnsw(vectors, tmp_path, stop)
    assert len(list(tmp_path.iterdir())) == 1
    told = []
    graph = Hnsw(vectors, tmp_path, lambda what, done, of: told.append(done))
    assert told == [600, 900, 1200]
    found, wanted = numbers_of(graph.search(queries, 3)), brute_force(vectors, queries, 3)
    recall = np.mean([len(set(a) & set(b)) / 3 for a, b in zip(found, wanted, strict=True)])
    assert recall > 0.9
    again = Hnsw(vectors, tmp_path, stop)
    assert again.search(queries, 3) == graph.search(queries, 3)
    with pytest.raises(ValueError, match=r"found a graph of 1500 x 48; wanted 600 x 48; remove it"):
        Hnsw(vectors[:1], tmp_path, ignored)


def test_words_are_found_as_bm25s_finds_them(tmp_path):
    corpus = open_corpus(corpus_of(tmp_path), tmp_path / "index", ignored)
    index = Bm25(corpus, tmp_path / "index", ignored)
    texts = corpus.texts(0, len(corpus))
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    theirs.index(bm25s.tokenize(texts, return_ids=False, show_progress=False, **TOKENIZER), show_progress=False)
    for query in ("mark7", "baran dosel mark12", "Title 30 the LUTOK", "nothing of that"):
        words = bm25s.tokenize(query, return_ids=False, show_progress=False, **TOKENIZER)[0]
        scores = theirs.get_scores(words) if words else np.zeros(len(corpus))
        found = index.search([query], 5)[0]
        order = np.lexsort((np.arange(len(scores)), -np.round(scores, 4)))[:5]
        assert sorted(np.round(scores[order], 4), reverse=True) == [
            pytest.approx(score, abs=1e-3) for score, _ in found
        ]
        assert found == Bm25(corpus, tmp_path / "index", ignored).search(["mark3", query, "kitok"], 5)[1]
    assert index.search(["mark123"], 1)[0][0][1] == 123
    assert index.search(["?!"], 2)[0] == [(0.0, 0), (0.0, 1)]
    assert len(index.search(["mark1"], 1000)[0]) == len(corpus)
