"""Find training questions that an evaluation set asks too, and how many of its answers training has taught.

A question is short, many are made from one template, and another name in it makes another question. So what is alike
needs an answer in common where problems of mathematics may have the same numbers (`rft.data.decontaminate`, whose index
this is).
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rft.data.canonical import canonical_text, canonical_words_text, hash_text, numbers, words
from rft.data.decontaminate import (
    BANDS,
    CONTAINMENT,
    PERMUTATIONS,
    SHORT,
    EvalIndex,
    Match,
    build_index,
    jaccard,
    ngrams,
    shingles,
    similar,
)
from rft.data.published import Problem
from rft.data.search.questions import Question
from rft.grading.short_answer import normalized

JACCARD_ANSWER = 0.6  # of a near duplicate with an answer in common
JACCARD_ALONE = 0.9  # of one with other answers and the same numbers: the same question, answered by others
SAY_NOTHING = frozenset({"yes", "no"})  # in common to questions that have nothing else in common


class QuestionIndex(NamedTuple):
    """What evaluation questions are looked up by."""

    texts: EvalIndex
    answers: list[frozenset[str]]  # normalised, of each question


def settings() -> dict[str, float]:
    """The bounds, for a manifest."""
    return {
        "words": SHORT,
        "containment_same_answer": CONTAINMENT,
        "jaccard_same_answer": JACCARD_ANSWER,
        "jaccard_other_answers": JACCARD_ALONE,
        "minhash_permutations": PERMUTATIONS,
        "minhash_bands": BANDS,
    }


def index_of(questions: Iterable[Question]) -> QuestionIndex:
    """Index evaluation questions. Half a minute for fifty thousand."""
    questions = list(questions)
    texts = build_index(Problem(each.id, each.text, None, each.datasource, None, None) for each in questions)
    return QuestionIndex(texts, [telling_answers(each) for each in questions])


def find_copy(question: Question, index: QuestionIndex) -> Match | None:
    """The evaluation question that a training question asks too, or None.

    Reasons: "exact", equal canonical text; "8-gram", one holds all 8-word runs of the other, or half of them and an
    answer; "near-duplicate", alike by `settings`.
    """
    words_text = canonical_words_text(question.text)
    exact = index.texts.hashes.get(hash_text(canonical_text(words_text)))
    if exact is not None:
        return Match("exact", index.texts.problems[exact].id, 1.0)
    listed = words(words_text)
    answers = telling_answers(question)
    return _shared_runs(listed, answers, index) or _near_duplicate(words_text, listed, answers, index)


def telling_answers(question: Question) -> frozenset[str]:
    """The normalised answers that say something about a question: all but yes and no."""
    return frozenset(map(normalized, question.answers)) - SAY_NOTHING


def answer_overlap(training: Iterable[Question], evaluated: dict[str, list[Question]]) -> dict[str, dict]:
    """How many questions of each evaluation set have an answer that some training question has too.

    Such an answer can be remembered without a search (Lewis et al. 2021, arXiv 2008.02637). It is no copy, so nothing
    is removed for it.

    Returns:
        By set `questions` (with an answer other than yes and no), `known` of them, and their share `rate`.
    """
    taught = {answer for question in training for answer in telling_answers(question)}
    found = {}
    for name, questions in evaluated.items():
        counts = Counter(not answers.isdisjoint(taught) for q in questions if (answers := telling_answers(q)))
        total = counts.total()
        found[name] = {"questions": total, "known": counts[True], "rate": round(counts[True] / max(total, 1), 4)}
    return found


def _shared_runs(listed: list[str], answers: frozenset[str], index: QuestionIndex) -> Match | None:
    """A question that holds the other whole, or half of it and an answer: "8-gram"."""
    own, best = ngrams(listed, SHORT), None
    shared = Counter(n for gram in own if gram in index.texts.short_grams for n in index.texts.short_grams[gram])
    for number, count in shared.items():
        share = max(count / index.texts.short_counts[number], count / len(own))
        least = CONTAINMENT if not answers.isdisjoint(index.answers[number]) else 1.0
        if share >= least and (best is None or share > best.score):
            best = Match("8-gram", index.texts.problems[number].id, round(share, 4))
    return best


def _near_duplicate(words_text: str, listed: list[str], answers: frozenset[str], index: QuestionIndex) -> Match | None:
    codes, own_numbers, best = shingles(listed), numbers(words_text), None
    for number in similar(codes, index.texts):
        same_answer = not answers.isdisjoint(index.answers[number])
        if not (same_answer or own_numbers == index.texts.numbers[number]):
            continue
        likeness = jaccard(codes, index.texts.shingles[number])
        if likeness >= (JACCARD_ANSWER if same_answer else JACCARD_ALONE) and (best is None or likeness > best.score):
            best = Match("near-duplicate", index.texts.problems[number].id, round(likeness, 4))
    return best
