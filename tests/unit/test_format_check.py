"""The format check without an engine: its rates, its verdict with the interval, how many problems would decide."""

import json

import pytest

from rft.evals.scores import record
from rft.problems import problem_row
from rft.runs import format_check
from rft.runs.format_check import GO, SFT, UNDECIDED, chosen, judged, page, problems_needed, verdict_of

THOUGHT = "<|channel|>analysis<|message|>3 + 4 = 7<|end|><|start|>assistant"
ANSWERS = {
    "whole": THOUGHT + "<|channel|>final<|message|>It is \\boxed{7}.<|return|>",
    "silent": "<|channel|>final<|message|>\\boxed{7}<|return|>",
    "unboxed": THOUGHT + "<|channel|>final<|message|>It is 7.<|return|>",
    "boxed in its thoughts": "<|channel|>analysis<|message|>\\boxed{7}<|end|><|start|>assistant"
    "<|channel|>final<|message|>7<|return|>",
    "never final": "<|channel|>analysis<|message|>3 + 4 is",
    "not closed": THOUGHT + "<|channel|>final<|message|>\\boxed{7}",
    "empty thought": "<|channel|>analysis<|message|><|end|><|start|>assistant"
    "<|channel|>final<|message|>\\boxed{7}<|return|>",
}
FACTS = {  # boxed, final, reasoning
    "whole": (True, True, True),
    "silent": (True, True, False),
    "unboxed": (False, True, True),
    "boxed in its thoughts": (False, True, True),
    "never final": (False, False, True),
    "not closed": (True, False, True),
    "empty thought": (True, True, False),
}


def graded(name: str, number: int = 0) -> dict:
    problem = {"id": str(number), "label": "7"}
    finish = "length" if name in ("never final", "not closed") else "stop"
    sample = {"prompt": "d", "index": 0, "response": ANSWERS[name], "tokens": 9, "finish": finish}
    return record(problem, sample, "")


@pytest.mark.parametrize("name", ANSWERS)
def test_box_final_message_and_reasoning_are_told_apart(name):
    found = format_check.facts(graded(name))
    assert (found["boxed"], found["final"], found["reasoning"]) == FACTS[name]
    assert found["truncated"] == (name in ("never final", "not closed"))


@pytest.mark.parametrize(
    ("boxed", "n", "verdict", "needed"),
    [
        (20, 20, UNDECIDED, 73),  # 1.96² · 0.95 / 0.05 = 72.99
        (72, 72, UNDECIDED, 73),
        (73, 73, GO, None),
        (0, 20, SFT, None),
        (16, 20, SFT, None),
        (199, 200, GO, None),
        (188, 200, UNDECIDED, None),
        (180, 200, SFT, None),
    ],
)
def test_the_interval_decides_and_says_what_would(boxed, n, verdict, needed):
    assert verdict_of(boxed, n) == verdict
    if needed:
        assert problems_needed(boxed, n) == needed
    if verdict == UNDECIDED:
        more = problems_needed(boxed, n)
        assert more > n and verdict_of(round(boxed * more / n), more) != UNDECIDED
        assert verdict_of(round(boxed * (more - 1) / n), more - 1) == UNDECIDED


def test_a_rate_at_the_threshold_is_decided_by_no_number():
    assert problems_needed(19, 20) is None
    found = judged([graded("whole", i) for i in range(19)] + [graded("unboxed", 19)])
    assert found["verdict"] == UNDECIDED and "any number of problems" in format_check.advice(found)


def test_the_page_says_rates_verdict_and_next_step():
    records = [graded("whole", i) for i in range(3)] + [graded("never final", i) for i in range(3, 20)]
    found = judged(records) | {"model": "m", "data": "d.jsonl", "reasoning_effort": "medium"}
    assert found["verdict"] == SFT and found["rates"]["boxed"] == {
        "count": 3, "value": 0.15, "interval95": pytest.approx([0.0524, 0.3604], abs=1e-4)
    }  # fmt: skip
    lines = page(found).splitlines()
    assert lines[0] == "m: 20 problems of d.jsonl, greedy, medium effort"
    assert lines[1].split() == ["answers", "with", "\\boxed{}", "3", "of", "20", "0.150", "(0.052-0.360)"]
    assert lines[-1] == (
        "verdict: SFT first: at most 36.0% of the answers have their box, 95% are wanted; 17 were cut: try a higher "
        "--max-tokens before"
    )
    assert page(judged([graded("whole", i) for i in range(20)]) | found | {
        "verdict": UNDECIDED, "needed": 73, "rates": judged([graded("whole", i) for i in range(20)])["rates"]
    }).endswith("between 83.9% and 100.0%, 95% are wanted; at this rate --n 73 would decide")  # fmt: skip


@pytest.fixture
def problems(tmp_path):
    rows = [problem_row(f"{n} + 1?", str(n + 1), f"p{n}", "math" if n % 2 else "gsm8k") for n in range(40)]
    file = tmp_path / "probe_set_1000_ood.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_more_problems_keep_the_former_ones(problems, monkeypatch):
    ten, all_of_them = chosen(problems, 10, 0), chosen(problems, 40, 0)
    assert all_of_them[:10] == ten != chosen(problems, 10, 1)
    monkeypatch.setenv("DATA_ROOT", str(problems.parent))
    assert {problem["datasource"] for problem in chosen(None, 20, 0)} == {"math"}
    linked = problems.parent / "link"
    linked.symlink_to(problems.parent)
    assert chosen(linked / problems.name, 20, 0) == chosen(None, 20, 0)
    with pytest.raises(ValueError, match="found 20 problems, wanted 21; pass --n 20"):
        chosen(None, 21, 0)


@pytest.mark.parametrize(
    ("label", "said"),
    [('{"kind": "mbpp", "tests": ["assert f() == 1"]}', "of programs or of a search"), (None, "rft.data make --out ")],
)
def test_problems_that_cannot_be_boxed_or_are_not_there_are_refused(problems, monkeypatch, tmp_path, label, said):
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "empty"))
    if label:
        problems.write_text(json.dumps(problem_row("x", label, "p", "mbpp")) + "\n")
    with pytest.raises(ValueError, match=said):
        chosen(problems if label else None, 1, 0)


def test_bad_use_is_one_message(tmp_path, capsys):
    assert format_check.main(["--model", str(tmp_path), "--n", "0"]) == 2
    assert capsys.readouterr().err == "format_check: --n: found 0; wanted 1 or more; e.g. --n 20\n"
