"""Sums of two two-digit numbers from reasoning-gym, as chat problems in sets that share no problem.

The generator and the question text are reasoning-gym's `chain_sum`; we keep its additions and put a line before the
question that asks for `\\boxed{}`. Answers for the warm start come in two styles, see `worked_answer`.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from rft.problems import INSTRUCTION, read_problems

EXPRESSION = re.compile(r"(\d+) \+ (\d+)")
SIZES = {"warm": 2400, "train": 512, "heldout": 256}  # problems: supervised warm start, GRPO prompts, evaluation
DISTINCT = 4095  # unordered pairs of two-digit numbers
STYLES = ("careless", "careful")
TEXTS: tuple[str, ...] = ()  # what the tokenizer must have besides its own: nothing


def operands(text: str) -> tuple[int, int]:
    """The two terms of the one sum in `text`. Raises ValueError when there is none or more than one."""
    found = EXPRESSION.findall(text)
    if len(found) != 1:
        raise ValueError(f"found {text!r}, wanted a text with exactly one sum 'a + b'")
    return int(found[0][0]), int(found[0][1])


def problem_key(problem: dict) -> tuple[int, int]:
    """Canonical identity of a problem: its terms in ascending order, since `a + b` and `b + a` are one problem."""
    a, b = operands(problem["input"][-1]["content"])
    return min(a, b), max(a, b)


def make_splits(seed: int = 0, sizes: dict[str, int] = SIZES) -> dict[str, list[dict]]:
    """Disjoint sets of problems, deterministic by seed: for each name in `sizes`, that many.

    A problem is `{"input": chat messages, "label": result as text, "id": "chain_sum/a+b", "datasource": "chain_sum"}`,
    the form that `openrlhf.cli.train_ppo_ray` reads. Raises ValueError for sizes that do not fit the 4,095 distinct
    sums.
    """
    from reasoning_gym import create_dataset  # imports every generator: seconds, which readers of files need not pay

    total = sum(sizes.values())
    if min(sizes.values()) < 1 or total > DISTINCT:
        raise ValueError(
            f"found sizes {sizes}, wanted at least 1 each and at most {DISTINCT} in all (the distinct sums)"
        )
    source = create_dataset("chain_sum", min_terms=2, max_terms=2, min_digits=2, max_digits=2, seed=seed, size=10**9)
    problems, index = {}, 0
    while len(problems) < total:
        entry, index = source[index], index + 1
        if "+" not in entry["metadata"]["expression"]:
            continue
        a, b = operands(entry["question"])
        problem = {
            "input": [{"role": "user", "content": f"{INSTRUCTION}\n{entry['question']}"}],
            "label": entry["answer"],
            "id": f"chain_sum/{a}+{b}",
            "datasource": "chain_sum",
        }
        problems.setdefault(problem_key(problem), problem)
    pool = iter(problems.values())
    splits = {name: [next(pool) for _ in range(size)] for name, size in sizes.items()}
    require_disjoint(splits)
    return splits


def require_disjoint(splits: dict[str, list[dict]]) -> None:
    """Raise ValueError, naming the problem and both places, if a problem is in two sets or twice in one."""
    seen = {}
    for name, problems in splits.items():
        for problem in problems:
            key = problem_key(problem)
            if key in seen:
                raise ValueError(
                    f"found the sum of {key[0]} and {key[1]} in {seen[key]!r} and in {name!r}, wanted it once"
                )
            seen[key] = name


def worked_answer(a: int, b: int, style: str) -> tuple[str, str]:
    """Analysis and final text for the sum of two two-digit numbers, in one of two styles.

    Both add column by column, then the carry: `7+8=15, 4+3=7, 7+1=8`. "careful" is always right; "careless" takes the
    carry for 0, `7+8=15, 4+3=7, 7+0=7`, and is right for the 55% of sums that have none. The warm start teaches both,
    so that GRPO has a better habit to find. One length and layout for both: a small model reads by position.
    """
    if style not in STYLES:
        raise ValueError(f"found style {style!r}, wanted one of {STYLES}")
    ones, tens = a % 10 + b % 10, a // 10 + b // 10
    carry = ones // 10 if style == "careful" else 0
    analysis = f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}={tens}, {tens}+{carry}={tens + carry}"
    return analysis, f"\\boxed{{{10 * (tens + carry) + ones % 10}}}"


def worked_turn(problem: dict, style: str) -> tuple[str, str]:
    """Analysis and final text of an answer to a problem, see `worked_answer`."""
    return worked_answer(*operands(problem["input"][-1]["content"]), style)


def write_splits(splits: dict[str, list[dict]], directory: Path) -> None:
    """Write `<name>.jsonl` for each set into `directory`, each complete or not at all; equal sets give equal bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, problems in splits.items():
        with tempfile.NamedTemporaryFile("w", dir=directory, prefix=f".{name}.", delete=False) as file:
            file.writelines(json.dumps(problem) + "\n" for problem in problems)
        os.chmod(file.name, 0o644)
        os.replace(file.name, directory / f"{name}.jsonl")


def read_split(path: Path) -> list[dict]:
    """`read_labelled` of a file that `write_splits` wrote."""

    def expected(problem: dict) -> tuple[str, str]:
        terms = operands(problem["input"][-1]["content"])
        return str(sum(terms)), f"the sum of {terms}"

    return read_labelled(path, ".venv/bin/python data/prepare_arithmetic.py --out DIR", expected)


def read_labelled(path: Path, command: str, expected: Callable[[dict], tuple[str, str]]) -> list[dict]:
    """The problems of a file whose labels follow from its texts.

    Args:
        command: what writes the file again.
        expected: a problem's label, and how it follows; ValueError or KeyError for one that has no such text.

    Raises ValueError, naming file, line and the command, when the file is missing or malformed, or a label is another.
    """
    repair = f"write it again with: {command}"
    try:
        problems = read_problems(path)
    except ValueError as error:
        raise ValueError(f"{error}; {repair}") from None
    for number, problem in enumerate(problems, 1):
        try:
            wanted, words = expected(problem)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: {error}; {repair}") from None
        if problem["label"] != wanted:
            raise ValueError(
                f"{path}, line {number}: found label {problem['label']!r}, wanted {wanted}, {words}; {repair}"
            )
    return problems
