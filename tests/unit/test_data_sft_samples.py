"""Rows from a model's own right answers: which samples are taken, what is left out and why, and what is refused."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from rft.data.check import check_file
from rft.data.row_files import read_rows
from rft.data.sft_samples import turn_of
from rft.evals.scores import graded, summarize
from rft.hooks.sft_rows import learnable
from rft.problems import problem_row
from rft.tiny.tokenizer import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODE = "sampling_pass@8"
WHOLE = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{{{}}}<|return|>"
PROBLEMS = {
    "a": "A farmer sells 12 pears and 34 apples on one day; how many pieces of fruit does the farmer sell?",
    "b": "Two trains leave one station at noon with 30 and 50 miles an hour; how far apart are they after 3 hours?",
    "c": "How many positive integers below one hundred are divisible by both six and by ten without remainder?",
}
LABELS = {"a": "46", "b": "60", "c": "3"}


def response(problem: str, thought: str) -> str:
    return WHOLE.format(thought, LABELS[problem])


SAMPLES = {  # by problem: (response, tokens, cut)
    "a": [
        (response("a", "twelve and thirty-four"), 9, False),
        (response("a", "12+34"), 5, False),
        (response("a", "12+34"), 5, False),
        (WHOLE.format("12-34", "-22"), 4, False),
        ("<|channel|>final<|message|>\\boxed{46}<|return|>", 3, False),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{46}", 2, True),
        (response("a", " "), 2, False),
        (response("a", "12<|start|>"), 2, False),
    ],
    "b": [(response("b", "20*3"), 6, False), *[(WHOLE.format("80*3", "240"), 6, False)] * 7],
    "c": [(WHOLE.format("30, 60, 90", "4"), 8, False)] * 8,
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """An evaluation, its dataset, and an evaluation set that holds a problem of it."""
    (tmp_path / "pool.jsonl").write_text(
        "".join(json.dumps(problem_row(text, LABELS[name], name, "d")) + "\n" for name, text in PROBLEMS.items())
    )
    held = problem_row(PROBLEMS["b"].replace("leave one", "leave  one"), "60", "held/b", "d")
    (tmp_path / "held.jsonl").write_text(json.dumps(held) + "\n")
    write(tmp_path, records())
    return tmp_path


def records(**more) -> list[dict]:
    return [
        graded({"id": name, "index": i, "label": LABELS[name], "channel": None, "response": text, "tokens": tokens,
                "truncated": cut}) | more
        for name, samples in SAMPLES.items()
        for i, (text, tokens, cut) in enumerate(samples)
    ]  # fmt: skip


def write(place: Path, made: list[dict], times: int = 1) -> None:
    result = {"kind": "base", "dataset": "pool.jsonl", "mode": MODE, **summarize(made, MODE), "records": made}
    results = [{"model": f"m{number}", "samples_per_problem": 8, **result} for number in range(times)]
    (place / "pool.json").write_text(json.dumps(results))


def run(monkeypatch, capsys, place: Path, *options: object) -> tuple[int, str, str]:
    """The command in this process: exit status, standard output, standard error."""
    words = [
        "--evaluation",
        place / "pool.json",
        "--dataset",
        place / "pool.jsonl",
        "--out",
        place / "out" / "sft.jsonl",
    ]
    monkeypatch.setattr(sys, "argv", ["make_sft_from_samples.py", *map(str, [*words, *options])])
    try:
        status = runpy.run_path(str(ROOT / "data" / "make_sft_from_samples.py"))["main"]()
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


def thoughts(place: Path) -> list[tuple[str, str, str]]:
    rows = [row for _, row in read_rows(place / "out" / "sft.jsonl")]
    return [(row["id"], row["output"][0]["thinking"], row["output"][0]["content"]) for row in rows]


def test_the_shortest_right_whole_sample_of_each_problem(files, monkeypatch, capsys):
    status, out, error = run(monkeypatch, capsys, files, "--eval-set", files / "held.jsonl")
    assert status == 0, error
    assert thoughts(files) == [("a", "12+34", "\\boxed{46}")]
    left_out = ("9: wrong", "1: cut at the limit", "3: not analysis, then a final message", "8: exact", "1 rows of 24")
    for said in left_out:
        assert said in out
    manifest = json.loads((files / "out" / "sft.jsonl.manifest.json").read_text())
    assert manifest["decontamination"]["rejected"] == [
        {"id": "b", "reason": "exact", "against": "held/b", "score": 1.0}
    ]
    assert (
        sum(manifest["dropped"].values()) + 3 == manifest["samples"] == 24
    )  # three right ones of a, two of them equal
    assert check_file(files / "out" / "sft.jsonl")[0] == []
    made = learnable((row for _, row in read_rows(files / "out" / "sft.jsonl")), build_tokenizer(), 1000)
    assert len(made.conversations) == 1


def test_random_samples_by_seed_and_none_twice(files, monkeypatch, capsys):
    found = set()
    for seed in range(8):
        options = ("--no-eval-set", "--choose", "random", "--seed", seed)
        assert run(monkeypatch, capsys, files, *options)[0] == 0
        found.add(thoughts(files)[0][1])
        before = thoughts(files)
        assert run(monkeypatch, capsys, files, *options)[0] == 0 and thoughts(files) == before
    assert found == {"12+34", "twelve and thirty-four"}
    assert run(monkeypatch, capsys, files, "--no-eval-set", "--per-problem", 8)[0] == 0
    assert [(name, thought) for name, thought, _ in thoughts(files)] == [
        ("a", "12+34"), ("a#2", "twelve and thirty-four"), ("b", "20*3"),
    ]  # fmt: skip


def test_an_answer_without_a_box_is_left_out(files, monkeypatch, capsys):
    write(files, [record | {"has_boxed": record["id"] == "b"} for record in records()])
    status, out, _ = run(monkeypatch, capsys, files, "--no-eval-set")
    assert status == 0 and [name for name, *_ in thoughts(files)] == ["b"] and "no box in the answer" in out


def test_a_turn_that_the_engine_ended_without_its_token():
    made = turn_of({"response": response("a", "12+34").removesuffix("<|return|>")})
    assert made == {"role": "assistant", "thinking": "12+34", "content": "\\boxed{46}"}
    assert turn_of({"response": ""}) is None


REFUSED = {
    "nothing right": (lambda d: write(d, records(correct=False)), (), "found no sample to learn from (24 wrong)"),
    "two results": (lambda d: write(d, records(), 2), (), "found 2 results (m0 on pool.jsonl, sampling_pass@8, m1"),
    "an agent's": (lambda d: write(d, records(turns=2)), (), "found conversations of an agent"),
    "other dataset": (lambda d: (d / "pool.jsonl").write_bytes((d / "held.jsonl").read_bytes()), (), "found no probl"),
    "other file": (lambda d: (d / "pool.json").write_text("x"), (), "not JSON"),
    "none a problem": (lambda d: None, ("--per-problem", 0), "at least 1"),
    "over its input": (lambda d: None, ("--out",), "which is the input"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_write_nothing(name, files, monkeypatch, capsys):
    change, options, said = REFUSED[name]
    change(files)
    options = (*options, files / "pool.jsonl") if options == ("--out",) else options
    before = sorted(files.rglob("*"))
    status, _, error = run(monkeypatch, capsys, files, "--no-eval-set", *options)
    assert status == 2 and said in error and error.count("\n") == 1
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(("thinking", "faults"), [("x", 0), (" ", 1), (None, 1), ("\ud800", 1)])
def test_the_check_of_a_file_reads_the_reasoning(tmp_path, thinking, faults):
    turn = {"role": "assistant", "thinking": thinking, "content": "\\boxed{46}"}
    (tmp_path / "f.jsonl").write_text(json.dumps(problem_row("12 + 34?", "46", "a", "d") | {"output": [turn]}) + "\n")
    found, _ = check_file(tmp_path / "f.jsonl")
    assert len(found) == faults and all("the last message has thinking" in each for each in found)
