"""Evaluations of programs: a label's kind decides who grades, and no server means no number."""

import json
import subprocess
import sys

import pytest

from rft.code_server.client import URL_VARIABLE, CodeServerError
from rft.evals import programs
from rft.evals.scores import graded, record

TESTS = json.dumps({"kind": "mbpp", "setup": "", "tests": ["assert f(1) == 1", "assert f(2) == 2"], "entry_point": "f"})
FENCED = "<|channel|>final<|message|>```python\ndef f(x):\n    return {}\n```<|return|>"
SAMPLE = {"prompt": "digest", "index": 0, "tokens": 9, "finish": "stop"}


def records(*answers: tuple[str, str]) -> list[dict]:
    """A record for each label and response, as an evaluation makes it."""
    return [
        record({"id": str(number), "label": label}, SAMPLE | {"response": response}, None)
        for number, (label, response) in enumerate(answers)
    ]


@pytest.fixture(scope="module")
def server():
    command = [sys.executable, "-m", "rft.code_server", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            while "serves at " not in said:
                said = process.stderr.readline()
                assert said, "the server has ended"
            yield said.split("serves at ")[1].split(": ")[0]
        finally:
            process.terminate()
            process.communicate(timeout=120)


def test_a_label_of_tests_is_graded_by_the_server_and_others_as_ever(server, monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, server)
    given = records(
        (TESTS, FENCED.format("x")),
        (TESTS, FENCED.format("1")),
        (TESTS, "<|channel|>final<|message|>I do not know<|return|>"),
        ("4", "<|channel|>final<|message|>\\boxed{4}<|return|>"),
    )
    found = programs.judged(given, {"digest": "<|start|>assistant"})
    assert [one["correct"] for one in found] == [True, False, False, True]
    assert [one["label_valid"] for one in found] == [True] * 4
    assert found[0]["answer"] == "def f(x):\n    return x" and found[2]["answer"] is None
    assert found[3] == given[3]
    assert [graded(one) for one in found] == found  # graded again, a verdict of the server stays


def test_without_a_server_there_is_no_number(monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    monkeypatch.setattr(programs.Client.__init__, "__kwdefaults__", {"patience": 0.0, "read_timeout": 1.0})
    with pytest.raises(CodeServerError, match="no answer from the code server"):
        programs.judged(records((TESTS, FENCED.format("x"))), {"digest": ""})
    given = records(("4", "\\boxed{4}"))
    assert programs.judged(given, {}) == given  # it is not asked
