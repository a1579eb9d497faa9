"""Which tests are compared without a judge, and what of them is read."""

import subprocess
import sys

import pytest

from rft.code.match import Check, checks

F12 = {"function": "f", "arguments": (1, 2), "keywords": {}}

READ = {
    "assert f(1, 2) == 3": Check(**F12, relation="equal", expected=3),
    "assert f(1,2)==3, 'message'": Check(**F12, relation="equal", expected=3),
    "assert (f(1, 2) == 3)  # why": Check(**F12, relation="equal", expected=3),
    "assert 3 == f(1, 2)": Check(**F12, relation="equal", expected=3),
    "assert f(1, 2) is True": Check(**F12, relation="is", expected=True),
    "assert f(1, 2) is None": Check(**F12, relation="is", expected=None),
    "assert f(1, 2)": Check(**F12, relation="true"),
    "assert not f(1, 2)": Check(**F12, relation="false"),
    "assert f() == -1.5": Check("f", (), {}, "equal", -1.5),
    "assert f([1, {'a': (2,)}], b=-1) == {1, 2}": Check("f", ([1, {"a": (2,)}],), {"b": -1}, "equal", {1, 2}),
    "assert f(set([1]), frozenset()) == set()": Check("f", ({1}, frozenset()), {}, "equal", set()),
    "assert f('x') == 1 + 2j": Check("f", ("x",), {}, "equal", 1 + 2j),
    "assert f(float('inf')) == list((1, 2))": Check("f", (float("inf"),), {}, "equal", [1, 2]),
    "assert set([1, 2]) == f(1, 2)": Check(**F12, relation="equal", expected={1, 2}),
    "assert sum(10, 15) == 6": Check("sum", (10, 15), {}, "equal", 6),
}


@pytest.mark.parametrize("test", READ)
def test_read(test):
    assert checks(test) == [READ[test]]


LEFT_TO_THE_JUDGE = [
    "",
    "assert True",
    "f(1)",
    "x = f(1)\nassert x == 2",
    "assert f(x) == 2",
    "assert f(1) == x",
    "assert f(1) == g(1)",
    "assert f(1) != 2",
    "assert f(1) < 2",
    "assert f(1) is 2",
    "assert f(1) is 1",
    "assert f(1) == 2 == 2",
    "assert f(1) == 2 and f(2) == 3",
    "assert f(1)[0] == 2",
    "assert a.f(1) == 2",
    "assert f(1)(2) == 3",
    "assert f(*[1]) == 2",
    "assert f(**{'a': 1}) == 2",
    "assert set(f(1)) == {2}",
    "assert f(1) == [2, *[3]]",
    "assert f(1) == {**{}}",
    "assert f(1) == 2, g()",
    "assert f(lambda: 1) == 2",
    "assert f(1) == f'{2}'",
    "assert f(1) == 10 ** 9",
    "assert f(1) == {[]: 1}",
    "assert f(1) == {[]}",
    "assert f(1) == float('x')",
    "assert f(1) == tuple(3)",
    "assert f(1) ==",
    "assert f(1) == '\0'",
    "assert f(1) == " + "1" * 5000,
    "def check(candidate):\n    assert candidate(1) == 2",
    "assert f(1) == '" + "x" * 300_000 + "'",
]


@pytest.mark.parametrize("test", LEFT_TO_THE_JUDGE, ids=lambda test: test[:40])
def test_left_to_the_judge(test):
    assert checks(test) is None


def test_several_asserts_keep_their_order():
    found = checks("assert f(1) == 2\n\n# and\nassert not g(3)\n")
    assert [(each.function, each.relation) for each in found] == [("f", "equal"), ("g", "false")]


def test_setup_comes_first():
    test = "assert f(1) == 2"
    assert checks(test, "import math\nx = 1")
    assert checks(test, "def f(a): ...", entry_point="f"), "a prompt holds its entry point without a body"
    for setup in ("def f(a): ...", "f = 1", "import f", "from a import b as f", "for f in (): ...", "class f: ..."):
        assert checks(test, setup) is None
    assert checks(test, "no python") is None


HUMANEVAL = """

METADATA = {'author': 'x'}


def check(candidate):
    # first
    assert candidate([1]) == 2, "one"
    assert True, "This prints if this assert fails 1"
    assert candidate([3], k=4) == True
"""


def test_the_body_of_check_is_read():
    found = checks(HUMANEVAL, "def helper(): ...", entry_point="f")
    assert [(each.function, each.arguments, each.keywords, each.expected) for each in found] == [
        ("f", ([1],), {}, 2),
        ("f", ([3],), {"k": 4}, True),
    ]
    assert checks(HUMANEVAL + "check(f)\n", entry_point="f") == found
    assert checks(HUMANEVAL + "check(candidate)\n", entry_point="f") == found


@pytest.mark.parametrize(
    "test",
    [
        HUMANEVAL + "check(g)",
        HUMANEVAL + "x = 1",
        HUMANEVAL + "def other(): ...",
        HUMANEVAL + "    for i in range(3):\n        assert candidate([i]) == i\n",
        HUMANEVAL.replace("(candidate)", "(candidate, more=1)"),
        HUMANEVAL.replace("def check", "@twice\ndef check"),
        HUMANEVAL.replace("{'author': 'x'}", "f(1)").replace("METADATA", "other"),
    ],
)
def test_another_check_is_left_to_the_judge(test):
    assert checks(test, entry_point="f") is None


def test_tests_that_hurt_a_parser_do_not_end_the_process():
    """In a process of its own: what is tested is that it survives."""
    code = """
from rft.code.match import checks
n = 60_000
deep = ["(" * n, "-" * n + "1", "1" + "+1" * n, "[" * n + "]" * n, "f" + "()" * n, "not " * n + "f()", "a" + ".b" * n]
for each in deep:
    for test in (each, f"assert f(1) == {each}", f"assert f({each}) == 1", f"assert {each}"):
        assert checks(test) is None, test[:50]
        checks("assert f(1) == 1", setup=test)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
