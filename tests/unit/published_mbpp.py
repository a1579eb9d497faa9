"""A made-up MBPP in both published forms, small, with copies of evaluated tasks in its train split."""

from pathlib import Path

from published_sets import write

from rft.data.code.mbpp import REPO, split_of


def task(number: int, text: str, code: str, *tests: str, setup: str = "") -> dict:
    """A row of the full set, with the line ends that it has."""
    return {
        "text": text,
        "code": code.replace("\n", "\r\n"),
        "task_id": number,
        "test_setup_code": setup,
        "test_list": list(tests),
        "challenge_test_list": [],
    }


ROWS = [
    task(2, "Write a function to reverse a word.", "def turn(w):\n    return w[::-1]", "assert turn('ab') == 'ba'"),
    task(
        11,
        "Write a function to count how many vowels a sentence has.",
        "def vowels(s):\n    return sum(c in 'aeiou' for c in s)",
        "assert vowels('apple') == 2",
        "assert vowels('sky') == 0",
        "assert vowels('ooo') == 3",
    ),
    task(
        12,
        "Write a python function to find the price of all tickets of a family.",
        "def price(adults, kids):\n"
        "    total = adults * 12\n    for k in range(kids):\n        total += 7\n    return total",
        "assert price(1, 0) == 12",
        "assert price(2, 1) == 31",
    ),
    task(
        13,
        "Write a function to interleave two words letter by letter.",
        "def mixed(a, b):\n    return ''.join(x + y for x, y in zip(a, b))",
        "assert mixed('ac', 'bd') == 'abcd'",
        "assert mixed('xx', 'yy') == 'xyxy'",
        "assert mixed('', '') == ''",
    ),
    task(
        511,
        "Write a python function to list the divisors of a given whole number in ascending order.",
        "def list_Divisors(n):\n    return [d for d in range(1, n + 1) if n % d == 0]",
        "assert list_Divisors(6) == [1, 2, 3, 6]",
    ),
    task(
        601,
        "Write a function to build a staircase of stars.",
        "class Step:\n    pass\n\ndef stairs(n):\n    return ['*' * k for k in range(1, n + 1)]",
        "assert len(stairs(4)) == 4",
        "assert stairs(2) == ['*', '**']",
        "assert stairs(0) == []",
        "assert stairs(1) == ['*']",
    ),
    # Copies of tasks that are evaluated on, one for each way to find them.
    task(
        602,
        "Write a function to count how many vowels a sentence has.",
        "def count(s):\n    return 0",
        "assert count('') == 0",
    ),
    task(
        603,
        "Compute what a bus trip costs.",
        'def fare(old, young):\n    "the fare"\n'
        '    s = old * 12\n    for i in range(young):\n        s += 7\n    return s',
        "assert fare(5, 5) == 95",
    ),
    task(
        604,
        "Merge strings like a zip fastener.",
        "def zipper(p, q):\n    out = ''\n    for i in range(len(p)):\n        out += p[i] + q[i]\n    return out",
        "assert zipper('ac', 'bd')=='abcd'",
        "assert (zipper('xx', 'yy') == 'xyxy')",
        "assert zipper('1', '2') == '12'",
    ),
    task(
        605,
        "Write a python function to list the divisors of some number.",
        "def list_divisors(m):\n    found = []\n    for i in range(1, m + 1):\n"
        "        if not m % i:\n            found.append(i)\n    return found",
        "assert list_divisors(4) == [1, 2, 4]",
    ),
    task(
        606,
        "Write a function to find the diagonal of a room.",
        "import math\ndef diagonal(a, b, c):\n    return math.sqrt(a * a + b * b + c * c)",
        "assert math.isclose(diagonal(1, 2, 2), 3.0)",
        setup="sides = (1, 2, 2)",
    ),
    task(974, "Write a function to add five.", "def five(x):\n    return x + 4", "assert five(1) == 6"),  # it is wrong
]  # fmt: skip
COPIES = {"mbpp/602": ("exact", "mbpp/11"), "mbpp/603": ("solution", "mbpp/12"), "mbpp/604": ("tests", "mbpp/13"),
          "mbpp/605": ("name", "mbpp/511")}  # fmt: skip


def sanitized(row: dict) -> dict:
    """The same task in the form of the sanitised part."""
    kept = {name: row[name] for name in ("task_id", "code", "test_list")}
    imports = ["import math"] if row["task_id"] == 606 else []
    return kept | {"source_file": "made up", "prompt": row["text"], "test_imports": imports}


def write_hub(folder: Path) -> Path:
    """The hub's repository, with both subsets; the sanitised one lacks a task of each of two splits."""
    for subset, rows in (("full", ROWS), ("sanitized", [sanitized(r) for r in ROWS if r["task_id"] not in (13, 601)])):
        for split in ("prompt", "test", "validation", "train"):
            name = f"{subset}/{split}-00000-of-00001.parquet"
            write(folder / REPO / name, [row for row in rows if split_of(row["task_id"]) == split])
    return folder
