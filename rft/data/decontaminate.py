"""Find training problems that an evaluation set holds: exact copies, shared n-grams, formulas, near duplicates.

Four tests, cheap ones first. Exact: equal canonical text. N-grams: a 13-word run in common (GPT-3, arXiv 2005.14165,
appendix C) *and* half of one problem's 8-word runs in the other. Either alone misleads: "where m and n are relatively
prime positive integers, find m + n" is a 13-gram of many AIME problems. Formulas: of short problems with one answer,
which another verb hides from n-grams. Near duplicates: Jaccard similarity of
character 5-grams, found by MinHash, then computed exactly.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rft.data.canonical import canonical_formulas, canonical_text, canonical_words_text, hash_text, numbers, words
from rft.data.published import Problem
from rft.grading import equal

LONG, SHORT = 13, 8  # words in an n-gram
CONTAINMENT = 0.5  # share of a problem's 8-grams, where a 13-gram is shared
SHORT_CONTAINMENT = 0.8  # the same for evaluation problems below 13 words, which have no 13-gram
JACCARD = 0.7  # of a near duplicate with the same numbers or the same answer
JACCARD_BOTH = 0.5  # with the same numbers and the same answer
# Bands of 4: MinHash finds a pair at Jaccard 0.5 with probability 0.87, at 0.7 with 0.9998.
PERMUTATIONS, BANDS = 128, 32
FORMULA_WORDS = 2 * LONG  # words of a training problem whose formulas are compared with short evaluation problems'
# A drawing that is not closed before the next ends at a blank line; where there is none its text stays, since the
# problem may follow.
_DRAWING = re.compile(
    r"\[asy\](?:(?:(?!\[asy\]).)*?\[/asy\]|(?:(?!\[asy\]).)*?\n[ \t\r]*\n)?",
    re.DOTALL,
)


class EvalIndex(NamedTuple):
    """What evaluation problems are looked up by; the values are indices into `problems`."""

    problems: list[Problem]
    hashes: dict[str, int]
    long_grams: dict[str, list[int]]
    short_grams: dict[str, list[int]]
    short_counts: list[int]  # distinct 8-grams of each problem
    word_counts: list[int]
    shingles: list[np.ndarray]  # sorted distinct 5-grams of each problem, as uint64
    numbers: list[list[str]]
    formulas: dict[str, list[int]]  # problems below 13 words by `canonical_formulas`
    bands: dict[bytes, list[int]]  # problems by part of their MinHash signature
    empty: object  # datasketch.MinHash to copy


class Match(NamedTuple):
    """Why a training problem is rejected."""

    reason: str  # "exact", "13-gram", "8-gram", "formulas" or "near-duplicate"
    against: str  # id of the evaluation problem
    score: float  # 1, containment, or Jaccard similarity


def settings() -> dict[str, float]:
    """The bounds above, for a manifest."""
    return {
        "words_long": LONG,
        "words_short": SHORT,
        "containment": CONTAINMENT,
        "containment_short_problems": SHORT_CONTAINMENT,
        "formula_words": FORMULA_WORDS,
        "jaccard": JACCARD,
        "jaccard_same_numbers_and_answer": JACCARD_BOTH,
        "minhash_permutations": PERMUTATIONS,
        "minhash_bands": BANDS,
    }


def build_index(problems: Iterable[Problem]) -> EvalIndex:
    """Index evaluation problems. Seconds for a few thousand."""
    from datasketch import MinHash

    empty = MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=int, scheme="affine32")
    index = EvalIndex(list(problems), {}, {}, {}, [], [], [], [], {}, {}, empty)
    for number, problem in enumerate(index.problems):
        text = canonical_words_text(problem.text)
        index.hashes.setdefault(hash_text(canonical_text(text)), number)
        listed = words(without_drawings(text))
        short = ngrams(listed, SHORT)
        for gram in ngrams(listed, LONG):
            index.long_grams.setdefault(gram, []).append(number)
        for gram in short:
            index.short_grams.setdefault(gram, []).append(number)
        index.short_counts.append(len(short))
        index.word_counts.append(len(listed))
        codes = shingles(listed)
        index.shingles.append(codes)
        index.numbers.append(numbers(without_drawings(text)))
        if len(listed) < LONG and (formulas := canonical_formulas(without_drawings(problem.text))):
            index.formulas.setdefault(formulas, []).append(number)
        for band in _bands(codes, empty):
            index.bands.setdefault(band, []).append(number)
    return index


def find_match(problem: str, words_text: str, identity: str, label: str, index: EvalIndex) -> Match | None:
    """The evaluation problem that a training problem copies, or None.

    Args:
        problem: the training problem.
        words_text: its `canonical_words_text`.
        identity: its `content_hash`.
        label: its answer. A near duplicate with other numbers *and* another answer is a variant, and is kept.
        index: from `build_index`.
    """
    exact = index.hashes.get(identity)
    if exact is not None:
        return Match("exact", index.problems[exact].id, 1.0)
    text = without_drawings(words_text)
    listed = words(text)
    return (
        _ngram_match(listed, index)
        or _formula_match(problem, listed, text, label, index)
        or _near_duplicate(listed, text, label, index)
    )


def without_drawings(text: str) -> str:
    """`text` without Asymptote code, which is long and much alike, and which some copies of a problem lack."""
    return _DRAWING.sub(" ", text) if "[asy]" in text else text


def ngrams(listed: list[str], n: int) -> set[str]:
    """Distinct runs of `n` words."""
    return {" ".join(listed[i : i + n]) for i in range(len(listed) - n + 1)}


def shingles(listed: list[str]) -> np.ndarray:
    """Sorted distinct 5-grams of the joined words' UTF-8 bytes, each packed in a uint64, so without collisions."""
    raw = np.frombuffer(" ".join(listed).encode("utf-8", "surrogatepass").ljust(5), dtype=np.uint8).astype(np.uint64)
    codes = np.zeros(len(raw) - 4, dtype=np.uint64)
    for i in range(5):
        codes = (codes << np.uint64(8)) | raw[i : len(raw) - 4 + i]
    return np.unique(codes)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Jaccard similarity of two arrays of distinct values."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


def _bands(codes: np.ndarray, empty) -> list[bytes]:
    """The MinHash signature of a set, cut in `BANDS` parts: similar sets share one. (datasketch's MinHashLSH keeps
    the same table behind a slower look-up.)"""
    minhash = empty.copy()
    minhash.update_batch(((codes ^ (codes >> np.uint64(9))) & np.uint64(0xFFFFFFFF)).tolist())
    raw = minhash.hashvalues.tobytes()
    width = len(raw) // BANDS
    return [bytes((band,)) + raw[band * width : (band + 1) * width] for band in range(BANDS)]


def similar(codes: np.ndarray, index: EvalIndex) -> list[int]:
    """Indices of the evaluation problems whose `shingles` may be similar, by MinHash, in their order."""
    return sorted({number for band in _bands(codes, index.empty) for number in index.bands.get(band, ())})


def _ngram_match(listed: list[str], index: EvalIndex) -> Match | None:
    short = ngrams(listed, SHORT)
    shared = Counter(number for gram in short if gram in index.short_grams for number in index.short_grams[gram])
    if not shared:
        return None
    long = ngrams(listed, LONG)
    hits = {number for gram in long if gram in index.long_grams for number in index.long_grams[gram]}
    best = None
    for number, count in shared.items():
        of_eval = count / index.short_counts[number]
        if number in hits:
            share, least, reason = max(of_eval, count / len(short)), CONTAINMENT, "13-gram"
        elif index.word_counts[number] < LONG:
            share, least, reason = of_eval, SHORT_CONTAINMENT, "8-gram"
        else:
            continue
        if share >= least and (best is None or share > best.score):
            best = Match(reason, index.problems[number].id, round(share, 4))
    return best


def _formula_match(problem: str, listed: list[str], text: str, label: str, index: EvalIndex) -> Match | None:
    """A short evaluation problem with the same formulas, the same answer, and no number that this one lacks."""
    if len(listed) >= FORMULA_WORDS:
        return None
    for number in index.formulas.get(canonical_formulas(without_drawings(problem)), ()):
        other = index.problems[number]
        same_answer = other.label is None or equal(label, other.label)
        if same_answer and not Counter(index.numbers[number]) - Counter(numbers(text)):
            return Match("formulas", other.id, 1.0)
    return None


def _near_duplicate(listed: list[str], text: str, label: str, index: EvalIndex) -> Match | None:
    codes, own_numbers = shingles(listed), numbers(text)
    best = None
    for number in similar(codes, index):
        problem = index.problems[number]
        same_answer = problem.label is None or equal(label, problem.label)
        same_numbers = own_numbers == index.numbers[number]
        if not (same_answer or same_numbers):
            continue  # a variant
        similarity = jaccard(codes, index.shingles[number])
        least = JACCARD_BOTH if same_answer and same_numbers else JACCARD
        if similarity >= least and (best is None or similarity > best.score):
            best = Match("near-duplicate", problem.id, round(similarity, 4))
    return best
