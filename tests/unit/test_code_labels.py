"""Labels of code tasks: what is one, what a sound one states, how a program is tested."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.code.labels import MAX_TESTS, Label, is_code_label, parse, runnable

MBPP = {"kind": "mbpp", "setup": "import math", "tests": ["assert f(1) == 2"], "entry_point": "f"}
STDIO = {"kind": "stdio", "setup": "", "tests": [{"input": "1\n", "output": "2\n"}], "entry_point": None}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (MBPP, Label("mbpp", "import math", ("assert f(1) == 2",), "f")),
        ({"kind": "mine", "tests": ["assert True"]}, Label("mine", "", ("assert True",), None)),
        (STDIO, Label("stdio", "", ({"input": "1\n", "output": "2\n"},), None)),
    ],
    ids=["mbpp", "the least", "stdio"],
)
def test_sound_labels(fields, wanted):
    text = json.dumps(fields)
    assert is_code_label(text) and parse(text) == wanted


FAULTS = [
    ("kind", 3, "the kind 3"),
    ("kind", "", "the kind ''"),
    ("tests", [], "found 0 tests"),
    ("tests", "assert True", "wanted a list"),
    ("tests", ["assert True"] * (MAX_TESTS + 1), f"found {MAX_TESTS + 1} tests"),
    ("tests", [1], "found 1 as test 1"),
    ("tests", ["assert True", "  "], "empty test 2"),
    ("tests", ["assert '\0'"], "as test 1"),
    ("tests", ["assert '\ud800'"], "as test 1"),
    ("tests", [{"input": "", "output": ""}], "as test 1"),
    ("setup", ["import math"], "as setup"),
    ("setup", "\0", "as setup"),
    ("entry_point", "f; import os", "the entry_point"),
    ("entry_point", 3, "the entry_point 3"),
    ("timeout", 3, "found ['timeout']"),
]


@pytest.mark.parametrize(("name", "value", "words"), FAULTS)
def test_an_unsound_label_is_a_code_label_whose_fault_is_named(name, value, words):
    text = json.dumps(MBPP | {name: value})
    assert is_code_label(text)
    with pytest.raises(ValueError) as error:
        parse(text)
    assert words in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    "test", ["1\n", {"input": "1\n"}, {"input": "1", "output": 2}, {"input": "1", "output": "\ud800"}]
)
def test_a_test_by_input_and_output_has_both_as_text(test):
    with pytest.raises(ValueError, match=r"wanted ..input.: …"):
        parse(json.dumps(STDIO | {"tests": [test]}))


NO_LABELS = [
    "42",
    "\\boxed{42}",
    "{1, 2}",
    "{",
    "",
    '{"kind": "mbpp"}',
    '["kind", "tests"]',
    "{" * 10**6,
    42,
    None,
    ["{}"],
]


@pytest.mark.parametrize("label", NO_LABELS, ids=lambda label: repr(label)[:20])
def test_answers_are_no_code_labels(label):
    assert not is_code_label(label)
    if isinstance(label, str):
        with pytest.raises(ValueError):
            parse(label)


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_any_text_is_parsed_or_refused_by_name(text):
    with pytest.raises(ValueError, match="wanted"):
        parse(text)


@pytest.mark.parametrize(
    ("kind", "program", "wanted"),
    [
        ("mbpp", "def f(): pass", "def f(): pass"),
        ("humaneval", "def f(): pass", "import math\n\ndef f(): pass"),
        (
            "humaneval",
            "from __future__ import annotations\ndef f(): pass",
            "from __future__ import annotations\nimport math\n\ndef f(): pass",
        ),
    ],
)
def test_what_a_humaneval_prompt_begins_with_stands_before_the_program(kind, program, wanted):
    found = runnable(parse(json.dumps(MBPP | {"kind": kind})), program)
    assert found == wanted
    compile(found, "program", "exec")
