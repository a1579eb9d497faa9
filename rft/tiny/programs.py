"""Python functions of two steps, as chat problems with tests: `x plus 47 then times y` is `(x + 47) * y`.

The tiny code task. Answers for the warm start come in two styles, see `worked_turn`; tests are graded by the code
server, as those of MBPP.
"""

import itertools
import json
import operator
import random
import re
from pathlib import Path

from rft.tiny.task import SIZES, STYLES, read_labelled

NAMES = ("x", "y", "z")
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
RESULTS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
# A product and a sum or difference, in one of both orders: the first two need brackets.
STEPS = (("plus", "times"), ("minus", "times"), ("times", "plus"), ("times", "minus"))
CONSTANTS = range(10, 100)  # two digits, so that all prompts have one length in tokens
HEAD = "Write a Python function f(x, y, z): "
WORDS = re.compile(rf"{re.escape(HEAD)}(\w+) (\w+) (\w+) then (\w+) (\w+)")
TESTS = 3  # asserts of a problem
SOURCE = "two_steps"

Terms = tuple[str, str, str, str, str]  # operand, word, operand, word, operand


def terms_of(text: str) -> Terms:
    """The three operands and two words of a problem's text. Raises ValueError for any other text."""
    found = WORDS.fullmatch(text)
    if not found or found[2] not in SIGNS or found[4] not in SIGNS:
        raise ValueError(f"found {text!r}, wanted {HEAD + 'x plus 47 then times y'!r} or the like")
    return found.groups()


def result(terms: Terms, arguments: dict[str, int]) -> int:
    """What the function returns for these arguments, by name."""
    a, first, b, second, c = terms
    a, b, c = (arguments[name] if name in arguments else int(name) for name in (a, b, c))
    return RESULTS[second](RESULTS[first](a, b), c)


def identity(terms: Terms) -> int:
    """Equal for problems that ask for the same function: a polynomial of small coefficients, at distant places."""
    return result(terms, dict(zip(NAMES, (10**4, 10**9, 10**15), strict=True)))


def problem_of(terms: Terms) -> dict:
    """The problem as `openrlhf.cli.train_ppo_ray` reads it; its tests follow from its text alone."""
    a, first, b, second, c = terms
    text = f"{HEAD}{a} {first} {b} then {second} {c}"
    draw, tests = random.Random(text), []
    for _ in range(TESTS):
        values = draw.sample(range(2, 10), len(NAMES))  # all different: a wrong name is a wrong result
        wanted = result(terms, dict(zip(NAMES, values, strict=True)))
        tests.append(f"assert f({', '.join(map(str, values))}) == {wanted}")
    label = {"kind": "mbpp", "setup": "", "tests": tests, "entry_point": "f"}
    return {
        "input": [{"role": "user", "content": text}],
        "label": json.dumps(label),
        "id": f"{SOURCE}/{'_'.join(terms)}",
        "datasource": SOURCE,
    }


def make_splits(seed: int = 0, sizes: dict[str, int] = SIZES) -> dict[str, list[dict]]:
    """Sets of problems, deterministic by seed, none in two of them: for each name in `sizes`, that many.

    Raises ValueError for sizes that do not fit the distinct problems.
    """
    every = [
        (*(a, first, b, second, c),)
        for names in itertools.permutations(NAMES, 2)
        for place in range(3)
        for number in CONSTANTS
        for first, second in STEPS
        for a, b, c in [(*names[:place], str(number), *names[place:])]
    ]
    random.Random(seed).shuffle(every)
    distinct = {identity(terms): terms for terms in every}.values()
    bracketed, plain = ([terms for terms in distinct if (terms[3] == "times") == needed] for needed in (True, False))
    problems = [terms for pair in zip(bracketed, plain, strict=False) for terms in pair]  # half need brackets
    if min(sizes.values()) < 1 or sum(sizes.values()) > len(problems):
        raise ValueError(f"found sizes {sizes}, wanted at least 1 each and at most {len(problems)} in all")
    pool = iter(problems)
    return {name: [problem_of(next(pool)) for _ in range(size)] for name, size in sizes.items()}


def worked_turn(problem: dict, style: str) -> tuple[str, str]:
    """Analysis and final text of an answer, in one of two styles.

    The analysis is the chain `x + 47 * y`, without brackets. "careful" sets them where Python needs them; "careless"
    never does, and is right for the half of the problems that need none. The warm start teaches both, so that GRPO has
    a better habit to find.
    """
    if style not in STYLES:
        raise ValueError(f"found style {style!r}, wanted one of {STYLES}")
    a, first, b, second, c = terms_of(problem["input"][-1]["content"])
    start, chain = f"{a} {SIGNS[first]} {b}", f"{a} {SIGNS[first]} {b} {SIGNS[second]} {c}"
    brackets = style == "careful" and second == "times"
    expression = f"({start}) {SIGNS[second]} {c}" if brackets else chain
    return chain, f"```python\ndef f(x, y, z):\n    return {expression}\n```"


# What the tokenizer has a token for, besides the texts of the other task.
TEXTS = (f"{HEAD}x plus 47 then times y minus z", *worked_turn(problem_of(("x", "plus", "y", "times", "z")), "careful"))


def read_split(path: Path) -> list[dict]:
    """`rft.tiny.task.read_labelled` of one file of `data/prepare_arithmetic.py --task code`."""

    def expected(problem: dict) -> tuple[str, str]:
        return problem_of(terms_of(problem["input"][-1]["content"]))["label"], "that of its text"

    return read_labelled(path, ".venv/bin/python data/prepare_arithmetic.py --task code --out DIR", expected)
