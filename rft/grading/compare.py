"""Compare an answer with a label under one of the two profiles."""

import re

from .extract import last_boxed
from .lenient import alike
from .normalize import normalize
from .strict import same

_PLAIN = re.compile(r"[-+0-9.,/]*|-?\\[dtc]?frac\{[0-9]+\}\{[0-9]+\}")  # nothing that the lenient profile could drop


def equal(answer: str, gold: str, lenient: bool = False) -> bool:
    """Whether ``answer`` states the same as ``gold``: `rft.grading.strict.same`, or with ``lenient``
    `rft.grading.lenient.alike`.

    A gold that holds a ``\\boxed{}`` is what its last one contains. Neither profile accepts an empty answer.
    """
    return verdicts(answer, gold)[1] if lenient else _strict(answer, answer_of_label(gold))


def verdicts(answer: str, gold: str) -> tuple[bool, bool]:
    """The strict and the lenient verdict; whatever the strict profile accepts, the lenient one does."""
    gold = answer_of_label(gold)
    if _strict(answer, gold):
        return True, True
    if not normalize(gold) or (_PLAIN.fullmatch(answer) and _PLAIN.fullmatch(gold)):
        return False, False
    return False, alike(answer, gold)


def _strict(answer: str, gold: str) -> bool:
    return same(normalize(answer), normalize(gold))


def answer_of_label(label: str) -> str:
    """The label itself, or the content of its last complete box."""
    boxed = last_boxed(label)[0] if "\\boxed" in label else None
    return label if boxed is None else boxed
