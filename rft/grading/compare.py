"""Compare an answer with a label under one of the two profiles."""

import re
from functools import lru_cache

from .extract import last_boxed
from .lenient import alike
from .normalize import normalize
from .strict import same

_PLAIN = re.compile(r"[-+0-9.,/]*|-?\\[dtc]?frac\{[0-9]+\}\{[0-9]+\}")  # nothing that the lenient profile could drop


def equal(answer: str, gold: str, lenient: bool = False) -> bool:
    """Whether ``answer`` states the same as ``gold``: `rft.grading.strict.same`, or with ``lenient``
    `rft.grading.lenient.alike`.

    A gold that holds a ``\\boxed{}`` is what stands in its last one. Neither profile accepts an empty answer.
    """
    gold = answer_of_label(gold)
    normal_gold = _normal_gold(gold)
    if not normal_gold:
        return False
    if same(normalize(answer), normal_gold):
        return True
    return lenient and not (_PLAIN.fullmatch(answer) and _PLAIN.fullmatch(gold)) and alike(answer, gold)


_normal_gold = lru_cache(maxsize=4096)(normalize)  # a label comes back for every sample of its group


def answer_of_label(label: str) -> str:
    """The label itself, or the content of its last complete box."""
    boxed = last_boxed(label)[0] if "\\boxed" in label else None
    return label if boxed is None else boxed
