"""Evaluations of programs: a label's kind decides who grades, and no server means no number."""

import argparse
import json
import os
import runpy
from pathlib import Path

import pytest
from code_servers import alive, descendants

from rft.code_server.client import URL_VARIABLE, Client, CodeServerError
from rft.code_server.grade import CONSENT
from rft.evals import cli, programs
from rft.evals.identity import grader_digest
from rft.evals.page import page
from rft.evals.refusals import require_one_kind
from rft.evals.results import regrade
from rft.evals.scores import graded, record, summarize
from rft.evals.table import print_results, wide_console

TESTS = json.dumps({"kind": "mbpp", "setup": "", "tests": ["assert f(1) == 1", "assert f(2) == 2"], "entry_point": "f"})
FENCED = "<|channel|>final<|message|>```python\ndef f(x):\n    return {}\n```<|return|>"
SAMPLE = {"prompt": "digest", "index": 0, "tokens": 9, "finish": "stop"}
OPEN = {"digest": "<|start|>assistant"}  # the prompt's text


def records(*answers: tuple[str, str]) -> list[dict]:
    """A record for each label and response, as an evaluation makes it."""
    return [
        record({"id": str(number), "label": label}, SAMPLE | {"response": response}, None)
        for number, (label, response) in enumerate(answers)
    ]


@pytest.fixture(scope="module")
def server():
    """The address of a server that an evaluation starts for itself."""
    with pytest.MonkeyPatch.context() as without:
        without.delenv(URL_VARIABLE, raising=False)
        without.delenv(CONSENT, raising=False)
        with programs.judge_of([{"label": "4"}, {"label": TESTS}]) as url:
            yield url


def test_a_label_of_tests_is_graded_by_the_server_and_others_as_ever(server):
    given = records(
        (TESTS, FENCED.format("x")),
        (TESTS, FENCED.format("1")),
        (TESTS, "<|channel|>final<|message|>I do not know<|return|>"),
        ("4", "<|channel|>final<|message|>\\boxed{4}<|return|>"),
    )
    found = programs.judged(given, OPEN, server)
    assert [one["correct"] for one in found] == [True, False, False, True]
    assert [one.get("pass_rate") for one in found] == [1.0, 0.5, 0.0, None]
    assert [one.get("causes") for one in found] == [["passed", "passed"], ["passed", "failed"], [], None]
    assert [one["label_valid"] for one in found] == [True] * 4
    assert found[0]["answer"] == "def f(x):\n    return x" and found[2]["answer"] is None
    assert found[0]["isolation"] in ("namespaces", "landlock")
    assert found[3] == given[3]
    assert [graded(one) for one in found] == found  # no grade of mathematics takes a verdict's place


def test_numbers_of_programs(server):
    answers = [FENCED.format("x"), FENCED.format("1"), "<|channel|>final<|message|>def f(:<|return|>", "no program"]
    drawn = [one | {"index": n} for n, one in enumerate(records(*((TESTS, answer) for answer in answers * 2)))]
    found = programs.judged([one | {"id": "p"} for one in drawn], OPEN, server)
    summary = summarize(found, "sampling_pass@8")
    values = {name: metric["value"] for name, metric in summary["metrics"].items()}
    assert values == {"sampling_pass@8": 1.0, "sampling_tests_passed": 3 / 8, "sampling_avg@8": 1 / 4}  # no majority
    assert summary["causes"]["failed"] == 1 / 4
    assert summary["isolation"] in (["namespaces"], ["landlock"])
    assert not {"has_boxed", "lenient"} & summary.keys()


def result(isolation: str) -> dict:
    """A result on two programs, of which one is wrong."""
    verdict = {"label_valid": True, "isolation": isolation}
    right = {"answer": "p", "correct": True, "pass_rate": 1.0, "causes": ["passed", "passed"]}
    wrong = {"answer": "q", "correct": False, "pass_rate": 0.5, "causes": ["passed", "timeout"]}
    drawn = records((TESTS, "r"), (TESTS, "r"))
    rows = [one | verdict | more for one, more in zip(drawn, (right, wrong), strict=True)]
    place = {"model": "m", "kind": "base", "dataset": "d.jsonl", "mode": "greedy_pass@1"}
    return place | summarize(rows, "greedy_pass@1") | {"records": rows}


@pytest.mark.parametrize("isolation", ["none", "landlock"])
def test_table_and_page_say_how_tests_ended_and_what_ran_unconfined(isolation):
    console = wide_console()
    with console.capture() as said:
        print_results([result(isolation)], console)
    assert "timeout 0.500" in said.get() and "timeout 0.500" in page([result(isolation)])
    assert ("without isolation" in said.get()) == (isolation == "none")


def test_the_advice_on_a_baseline_speaks_of_programs():
    advice = runpy.run_path(str(Path(__file__).resolve().parents[2] / "eval/eval_baseline_s0.py"))["advice"]
    assert advice(result("landlock")) == ["100.0% with a program: no SFT needed"]
    assert advice(result("landlock") | {"no_answer": 0.5})[0].startswith("50.0% with a program: below 95%")


def test_a_file_of_both_kinds_is_refused_before_anything_is_sampled():
    one, other = {"id": "a", "label": TESTS}, {"id": "b", "label": "4"}
    require_one_kind(Path("d.jsonl"), [one, one])
    require_one_kind(Path("d.jsonl"), [other, other])
    with pytest.raises(ValueError, match=r"d.jsonl: found 2 labels with tests of programs and 1 without .*'b'.* split"):
        require_one_kind(Path("d.jsonl"), [one, one, other])


def test_a_server_of_ones_own_ends_with_the_evaluation(monkeypatch):
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    before = descendants(os.getpid())
    with pytest.raises(KeyboardInterrupt), programs.judge_of([{"label": TESTS}]):
        started = descendants(os.getpid()) - before
        assert started
        raise KeyboardInterrupt
    assert not alive(started)


def test_mathematics_starts_no_server(monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    with programs.judge_of([{"label": "4"}]) as url:
        assert url is None
        given = records(("4", "\\boxed{4}"))
        assert programs.judged(given, {}, url) == given


def test_without_a_server_there_is_no_number(monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    monkeypatch.setattr(Client.__init__, "__kwdefaults__", {"patience": 0.0, "read_timeout": 1.0})
    with pytest.raises(CodeServerError, match="no answer from the code server"), programs.judge_of([{"label": TESTS}]):
        pass
    with pytest.raises(CodeServerError, match="no answer from the code server"):
        programs.judged(records((TESTS, FENCED.format("x"))), {"digest": ""}, "http://127.0.0.1:1")


def test_the_server_that_cannot_start_says_why(monkeypatch):
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.setenv("CODE_SERVER_TOKEN", "short")  # refused by the server's own check
    with pytest.raises(CodeServerError, match=r"ended with status 2: .*no sound token(.|\n)*repair"):
        programs.judge_of([{"label": TESTS}]).__enter__()


def test_verdicts_of_programs_are_not_graded_again_without_a_server():
    result = {"model": "m", "dataset": "d.jsonl", "records": records((TESTS, FENCED.format("x")))}
    with pytest.raises(ValueError, match=r"m on d.jsonl: found tests of programs .* --cache"):
        regrade([result], "g")


def test_the_grader_of_programs_is_another():
    assert grader_digest([{"label": "4"}]) == grader_digest() != grader_digest([{"label": TESTS}])


def test_tasks_are_files_of_the_data_root(monkeypatch, tmp_path):
    def datasets(*words: str):
        parser = argparse.ArgumentParser()
        cli.add_dataset_options(parser)
        return cli.datasets(parser.parse_args(words))

    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    with pytest.raises(ValueError, match="found neither --dataset nor --task"):
        datasets()
    with pytest.raises(ValueError, match=r"found no file .*humaneval.jsonl.* data/prepare_code_data.py --out"):
        datasets("--task", "humaneval")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/humaneval.jsonl").touch()
    found = datasets("--task", "humaneval", "--dataset", "own.jsonl")
    assert [path.name for path in found] == ["own.jsonl", "humaneval.jsonl"]
