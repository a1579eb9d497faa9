"""Labels of code tasks: how a program is tested, as a JSON string, for lists of mixed types break Arrow's schemas.

{"kind": "mbpp", "setup": "import math", "tests": ["assert f(1) == 2"], "entry_point": "f"}
"""

import json
import re
from functools import lru_cache
from typing import NamedTuple

STDIO, HUMANEVAL = "stdio", "humaneval"  # the kinds that are treated in their own way; all others are as "mbpp"
MAX_TESTS = 360  # of a request to the code server, which gives all tests together 1,800 s: 5 each
MAX_CHARACTERS = 1 << 20  # of a test or the setup there
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELDS = {"kind", "setup", "tests", "entry_point"}


class Label(NamedTuple):
    """How a program is tested."""

    kind: str  # "mbpp", "humaneval", "stdio", or a name of one's own
    setup: str  # Python that runs before the tests
    tests: tuple  # Python source, each a test; of kind "stdio" {"input": text, "output": text}
    entry_point: str | None  # the function that the tests call


def is_code_label(text: object) -> bool:
    """Whether a label is meant as one of a code task: a JSON object with `kind` and `tests`, sound or not."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return False
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.keys() >= {"kind", "tests"}


@lru_cache(maxsize=4096)  # a label comes back for every sample of its group
def parse(text: str) -> Label:
    """The label that a text states.

    Raises:
        ValueError: it is none, or the code server would refuse it: no test or too many, NUL, a name that is none.
    """
    try:
        fields = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"found the label {_shown(text)}, wanted JSON ({error})") from None
    if not isinstance(fields, dict) or not fields.keys() >= {"kind", "tests"}:
        raise ValueError(f'found the label {_shown(text)}, wanted {{"kind": …, "setup": …, "tests": […], …}}')
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"found {unknown} in a label, wanted no other fields than {sorted(_FIELDS)}")
    kind, setup, entry_point = fields["kind"], fields.get("setup") or "", fields.get("entry_point")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"found the kind {_shown(kind)} in a label, wanted a name such as 'mbpp'")
    if entry_point is not None and not (isinstance(entry_point, str) and _is_name(entry_point)):
        raise ValueError(f"found the entry_point {_shown(entry_point)} in a label, wanted the name of a function")
    tests = fields["tests"]
    if not isinstance(tests, list) or not 1 <= len(tests) <= MAX_TESTS:
        count = len(tests) if isinstance(tests, list) else _shown(tests)
        raise ValueError(f"found {count} tests in a label, wanted a list of 1 to {MAX_TESTS}")
    _check_python(setup, "setup")
    for number, test in enumerate(tests, 1):
        _check_pair(test, number) if kind == STDIO else _check_python(test, f"test {number}")
    return Label(kind, setup, tuple(tests), entry_point)


def runnable(label: Label, program: str) -> str:
    """The program as it is tested.

    A HumanEval prompt begins with the imports and helpers that its function may use, and a chat model often leaves them
    out of its answer: they stand in front, as in every published evaluation. What the model defines anew counts.
    """
    if label.kind != HUMANEVAL or not label.setup:
        return program
    lines = program.split("\n")
    future = [line for line in lines if line.startswith("from __future__ import ")]  # these must come first
    rest = [line for line in lines if not line.startswith("from __future__ import ")]
    return "\n".join([*future, label.setup, "", *rest])


def _check_python(text: object, what: str) -> None:
    if not isinstance(text, str) or "\0" in text or not _is_text(text):
        raise ValueError(
            f"found {_shown(text)} as {what} of a label, wanted Python source of at most {MAX_CHARACTERS} characters"
        )
    if what != "setup" and not text.strip():
        raise ValueError(f"found an empty {what} in a label, wanted Python such as 'assert f(1) == 2'")


def _check_pair(test: object, number: int) -> None:
    if not isinstance(test, dict) or test.keys() != {"input", "output"} or not all(map(_is_text, test.values())):
        raise ValueError(f'found {_shown(test)} as test {number} of a label, wanted {{"input": …, "output": …}}')


def _is_text(value: object) -> bool:
    """Whether it can be sent: no lone surrogates, not too long."""
    return isinstance(value, str) and len(value) <= MAX_CHARACTERS and not _SURROGATE.search(value)


def _is_name(text: str) -> bool:
    return text.isidentifier() and len(text) <= 200


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
