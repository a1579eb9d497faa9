"""Grade one response against its label."""

from functools import lru_cache
from typing import NamedTuple

from .compare import answer_of_label, verdicts
from .extract import extract_answer, final_message
from .normalize import normalize

LONG_CHARS = 2_000  # a response of this length without an answer box was probably cut
TAIL = 0.8  # a box that ends behind this share of the response is a final one
STAND_INS = frozenset(("proof", "notfound", "not found", "nan"))  # NuminaMath's, and a missing number as text


class Grade(NamedTuple):
    """Verdict on one response; `correct` is the strict profile, `correct_lenient` the looser one."""

    correct: bool
    correct_lenient: bool
    answer: str | None  # as extracted, before normalisation
    method: float  # 2 boxed, 1 last number, 0 none
    has_boxed: bool  # the graded text has a complete last box
    boxed_in_final: bool  # and it ends in the last 20% of the response
    truncated: bool  # the response appears to be cut
    label_valid: bool  # the label can be parsed; if not, the response is not correct, and should not be counted


def grade(response: str, label: str | None, channel: str | None = None, fallback: bool = True) -> Grade:
    """Grade ``response`` (never with its prompt) against ``label``.

    ``channel`` is the Harmony channel that the prompt left open, None when it left none
    (`rft.grading.extract.open_channel`); ``fallback`` takes the last number where there is no box.
    Source: the exact-match reward of docs/sources.md, hardened against what docs/grading.md lists.
    """
    text, offset, closed = final_message(response, channel)
    if text is None:
        return Grade(False, False, None, 0.0, False, False, bool(response), label_is_valid(label))
    found = extract_answer(text, fallback)
    has_boxed = found.boxed_end >= 0
    valid = label_is_valid(label)
    correct = lenient = False
    if valid and found.answer is not None:
        correct, lenient = (True, True) if found.answer == label else verdicts(found.answer, label)
    return Grade(
        correct=correct,
        correct_lenient=lenient,
        answer=found.answer,
        method=found.method,
        has_boxed=has_boxed,
        boxed_in_final=has_boxed and offset + found.boxed_end >= TAIL * len(response),
        truncated=not closed and _looks_cut(text, len(response), has_boxed, found.open_box),
        label_valid=valid,
    )


@lru_cache(maxsize=4096)  # a label comes back for every sample of its group
def label_is_valid(label: str | None) -> bool:
    """Whether a label states an answer: not blank, not oversized, balanced braces, none of the data sets' stand-ins."""
    if not isinstance(label, str) or not (normal := normalize(answer_of_label(label))):
        return False
    plain = label.replace("\\{", "").replace("\\}", "")
    return plain.count("{") == plain.count("}") and normal.lower() not in STAND_INS


def _looks_cut(text: str, response_chars: int, has_boxed: bool, open_box: bool) -> bool:
    """No closing token was seen: cut if inside a box, long without a box, or in the middle of a sentence."""
    last = text.rstrip()[-1:]
    return (
        open_box
        or (response_chars >= LONG_CHARS and not has_boxed)
        or last.isalpha()
        or last in tuple(",;:([{\\=+-*/<")
    )
