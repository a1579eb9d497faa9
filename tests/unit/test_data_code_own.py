"""Code tasks of one's own: `{"prompt", "tests"}` a line becomes a problem file, or one message says why not."""

import sys
from pathlib import Path

import pytest
from published_sets import write

from rft.code import labels
from rft.data import __main__ as check
from rft.data.code.own import make
from rft.data.row_files import command, read_rows

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = {
    "prompt": "Write double(x), twice x.",
    "tests": ["assert double(2) == 4", "assert math.isclose(double(0.1), 0.2)"],
    "solution": "def double(x):\n    return 2 * x",
}
ECHO = {
    "prompt": "Read a line and print it in capitals.",
    "tests": [{"input": "ab\n", "output": "AB\n"}, {"input": "x", "output": "X"}],
    "id": "shout",
    "solution": "print(input().upper())",
}

UNSOLVED = {name: value for name, value in ECHO.items() if name != "solution"}


@pytest.fixture
def prepared(tmp_path, capsys):
    """Prepares rows: exit status, what is printed on the standard error, the file of problems."""

    def call(rows: list, name: str = "mine", **options) -> tuple[int, str, Path]:
        out = tmp_path / f"{name}.problems.jsonl"
        given = write(tmp_path / f"{name}.jsonl", rows)
        status = command("x", lambda: make(given, out, options.get("verify", False), options.get("force", False)))
        return status, capsys.readouterr().err, out

    return call


def test_a_task_becomes_a_problem(prepared):
    status, error, out = prepared([DOUBLE, ECHO])
    assert status == 0, error
    (_, double), (_, echo) = read_rows(out)
    assert double["input"] == [{"role": "user", "content": DOUBLE["prompt"]}]
    assert double["id"].startswith("mine/") and (double["datasource"], echo["id"]) == ("mine", "shout")
    assert labels.parse(double["label"]) == ("asserts", "import math\n", tuple(DOUBLE["tests"]), "double")
    assert labels.parse(echo["label"]) == (labels.STDIO, "", tuple(ECHO["tests"]), None)


def test_the_entry_point_is_named_or_the_only_function_that_all_tests_call(prepared):
    pair = {"prompt": "Write area(p) and a class Point.", "tests": ["assert area(Point(1, 2)) == 2"]}
    cases = [
        (pair, None),
        (pair | {"entry_point": "area"}, "area"),
        (pair | {"setup": "Point = complex"}, "area"),
        (
            {"prompt": "Write f.", "tests": ["assert f(g(1))", "assert f(2)"], "solution": "def f(x):\n    return x"},
            "f",
        ),
    ]
    for number, (row, wanted) in enumerate(cases):
        status, error, out = prepared([row], f"case{number}")
        assert status == 0, error
        ((_, made),) = read_rows(out)
        assert labels.parse(made["label"]).entry_point == wanted, row


BAD = {
    "another field": ([DOUBLE | {"test": []}], "line 1: found fields ['prompt', 'solution', 'test', 'tests']"),
    "no tests": ([{"prompt": "Write f."}], "wanted {\"prompt\": \"Write a function f …\", \"tests\": "),
    "no words": ([DOUBLE | {"prompt": " "}], "field 'prompt' is empty"),
    "a prompt that is none": ([DOUBLE | {"prompt": 1}], "field 'prompt' is 1, wanted text"),
    "a prompt with a surrogate": ([DOUBLE | {"prompt": "\ud800"}], "field 'prompt' is"),
    "an empty list": ([DOUBLE | {"tests": []}], "field 'tests' is [], wanted a list"),
    "tests of two forms": ([DOUBLE | {"tests": ["assert double(1)", {"input": ""}]}], "wanted tests of one form"),
    "a test that does not parse": ([ECHO, DOUBLE | {"tests": ["assert double("]}], "line 2: test 1, 'assert double(',"),
    "a pair without output": ([ECHO | {"tests": [{"input": ""}]}], "found {'input': ''} as test 1"),
    "a set-up of a script": ([ECHO | {"setup": "x = 1"}], "found setup or entry_point beside tests of input"),
    "a function that the prompt does not name": ([DOUBLE | {"prompt": "Twice!"}], "found no 'double' in the prompt"),
    "a solution that does not parse": ([DOUBLE | {"solution": "def"}], "field 'solution' is no Python"),
    "one prompt twice": ([DOUBLE, ECHO, DOUBLE | {"id": "b"}], "line 3: found the prompt 'Write double(x), "),
    "one id twice": ([DOUBLE | {"id": "shout"}, ECHO], "line 2: found the id 'shout', as on line 1"),
    "a solution here and there": ([DOUBLE, UNSOLVED], "found a solution in some lines only, wanted it in all or none"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message_and_nothing_is_written(prepared, rows, words):
    status, error, out = prepared(rows)
    assert status == 2 and words in error and len(error.splitlines()) == 1, error
    assert not out.exists()


def test_another_file_is_not_replaced_unasked(prepared, tmp_path):
    assert prepared([DOUBLE])[0] == 0 == prepared([DOUBLE])[0]
    status, error, out = prepared([ECHO])
    assert status == 2 and f"found {out} with another content" in error
    assert prepared([ECHO], force=True)[0] == 0
    given = write(tmp_path / "in.jsonl", [DOUBLE])
    for place in (given, tmp_path):
        assert command("x", lambda place=place: make(given, place, False, True)) == 2
    assert next(iter(read_rows(given)))[1] == DOUBLE


def test_the_real_judge_runs_the_solutions(prepared):
    assert prepared([DOUBLE, ECHO], verify=True)[0] == 0
    for row, words in (
        (DOUBLE | {"solution": "def double(x):\n    return x + 2"}, "test 2 failed"),
        (ECHO | {"solution": "print(input())"}, "shout: test 1 failed"),
        (UNSOLVED, "found no solution of 'shout'"),
    ):
        status, error, _ = prepared([row], "wrong", verify=True)
        assert status == 2 and words in error, error


LABEL_FAULTS = {
    '{"kind": "mbpp", "tests": ["assert f("]}': "test 1, 'assert f(', is no Python",
    '{"kind": "mbpp", "tests": []}': "found 0 tests in a label",
    '{"kind": "stdio", "tests": ["assert f(1)"]}': "as test 1 of a label",
    '{"kind": "mbpp", "tests": ["assert f(1)"], "entry_point": "1"}': "entry_point '1'",
    '{"kind": "mbpp", "tests": ["assert f(1)"], "setup": "x ="}': "is no Python",
}


@pytest.mark.parametrize(("label", "words"), LABEL_FAULTS.items())
def test_the_check_names_what_is_wrong_with_a_label_of_tests(tmp_path, monkeypatch, capsys, label, words):
    row = {"input": "Write f.", "label": label, "id": "a"}
    monkeypatch.setattr(sys, "argv", ["rft.data", "check", str(write(tmp_path / "a.jsonl", [row]))])
    assert check.main() == 2
    error = capsys.readouterr().err
    assert "line 1: field 'label': " in error and words in error and len(error.splitlines()) == 1, error
