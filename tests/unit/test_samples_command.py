"""`rft.runs.samples`: a run's samples in a terminal, a pipe and a script."""

import gzip
import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from rft.record.samples import TRAINING, SampleFile, file_name
from rft.runs.samples import cli, show
from rft.runs.samples.read import Sample, groups_of, parse_range, summary

STEPS, PROMPTS, EACH = (3, 12), 3, 4


def line(step: int, problem: int, index: int) -> dict:
    """Two of four samples are right; sample 2 of each group is cut."""
    right = index % 2 == 0
    return {
        "prompt": f"<|start|>user<|message|>What is {problem} plus 10?<|end|><|start|>assistant",
        "response": f"<|channel|>final<|message|>step {step}: (try {index})\n\\boxed{{{problem + 10}}}<|return|>",
        "label": str(problem + 10), "reward": float(right), "correctness": float(right), "extracted_answer": "13",
        "response_tokens": 1000 * step + index, "truncated": float(index == 2),
    }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A launcher's folder with one run: two steps of training, gzipped, and an evaluation, as older runs have it."""
    run = tmp_path / "launcher" / "20260101T000000Z"
    (run / "samples").mkdir(parents=True)
    (run / "run.json").write_text('{"started": "2026-01-01T00:00:00+00:00"}')
    for step in STEPS:
        rows = [line(step, problem, index) for problem in range(PROMPTS) for index in range(EACH)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "samples" / file_name(TRAINING, step)).write_bytes(gzip.compress(text.encode()))
    (run / "samples" / "eval_samples_step3.jsonl").write_text(json.dumps(line(3, 0, 0)) + "\n")
    return run


def command(*words, **environment) -> subprocess.CompletedProcess:
    outside = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "SAMPLES_LOG_DIR")}
    line = [sys.executable, "-m", "rft.runs.samples", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=outside | environment, check=False)


def places(capsys, *words) -> list[tuple]:
    """(step, kind, group, sample) of the samples that a filter lets through."""
    assert cli.main([*map(str, words), "--json"]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    return [(row["step"], row["kind"], row["group"], row["sample"]) for row in rows]


def test_a_line_a_step_of_a_launchers_newest_run(run):
    for place in (run.parent, run, run / "samples"):
        found = command(place)
        assert found.returncode == 0, found.stderr
        head, *rows = [each.split() for each in found.stdout.splitlines()]
        assert head == [name for name in show.STEP_COLUMNS if name != "searches"]  # of agents
        assert rows == [
            ["3", "eval", "1.000", "0.000", "3,000", "1", "1.000", "3,000", "1"],
            ["3", "train", "0.500", "0.250", "3,002", "12", "0.500", "3,003", "3"],
            ["12", "train", "0.500", "0.250", "12,002", "12", "0.500", "12,003", "3"],
        ]
        assert (f"the newest run of {run.parent}: {run}" in found.stderr) == (place == run.parent)
    document = [json.loads(each) for each in command(run, "--json", "--kind", "training").stdout.splitlines()]
    assert [row["step"] for row in document] == [3, 12] and document[0]["reward"] == 0.5


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--step", "12"], [(12, "training", g, s) for g in (1, 2, 3) for s in (1, 2, 3, 4)]),
        (["--step", "last", "--group", "2"], [(12, "training", 2, s) for s in (1, 2, 3, 4)]),
        (["--step", "..5", "--kind", "evaluation"], [(3, "evaluation", 1, 1)]),
        (["--reward", "..0.5", "--step", "4..", "--group", "1"], [(12, "training", 1, 2), (12, "training", 1, 4)]),
        (["--prompt", "is 2 PLUS", "--step", "12", "--reward", "1"], [(12, "training", 3, 1), (12, "training", 3, 3)]),
        (["--search", "(TRY 3)", "--step", "12"], [(12, "training", g, 4) for g in (1, 2, 3)]),
        (["--search", r"step 3: \(try [01]", "--regex", "--group", "2"], [(3, "training", 2, s) for s in (1, 2)]),
        (["--search", "what is 1 plus", "--step", "12", "--reward", "0"], [(12, "training", 2, s) for s in (2, 4)]),
        (["--search", "(TRY 3)", "--regex"], []),
        (["--side-by-side", "--group", "2", "--reward", "0"],
         [(n, "training", 2, s) for n in STEPS for s in (1, 2, 3, 4)]),
    ],
)  # fmt: skip
def test_filters(run, capsys, words, wanted):
    assert places(capsys, run, *words) == wanted


def test_a_sample_is_shown_with_its_numbers_and_what_was_searched_for(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main([str(run), "--step", "12", "--search", "try 2", "--limit", "1"]) == 0
    found = capsys.readouterr()
    assert found.out.splitlines()[:2] == [
        "step 12, group 1, sample 3: right, reward 1, answer 13, label 10, 12,002 tokens, cut at the limit",
        "What is 0 plus 10?",
    ]
    assert "step 12: (try 2)\n\\boxed{10}<|return|>\n" in found.out
    assert found.err == "there are more than these 1; --limit 0 shows all\n"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"tests": ["assert f(1) == 2", "assert f(2) == 3"], "entry_point": "f"}, "label mbpp, 2 tests of f"),
        ({"tests": ["assert f(1) == 2", "assert f(2) == 3"]}, "label mbpp, 2 tests"),
        ({"tests": []}, "label tests that cannot be read"),
    ],
)
def test_a_program_is_shown_by_its_tests(run, capsys, monkeypatch, label, words):
    monkeypatch.setenv("COLUMNS", "200")
    row = line(3, 0, 1) | {"label": json.dumps({"kind": "mbpp"} | label), "extracted_answer": "def f(x): return 2"}
    file = run / "samples" / "eval_samples_step3.jsonl"
    file.write_text(json.dumps(row | {"extraction": "block", "test_causes": "passed failed"}) + "\n")
    assert cli.main([str(file), "--step", "3"]) == 0
    head = f"step 3, group 1, sample 1: wrong, reward 0, answer block: passed failed, {words}, 3,001 tokens"
    assert capsys.readouterr().out.splitlines()[0] == head


def test_a_long_response_loses_its_middle_unless_asked(run, capsys):
    file = run / "samples" / "eval_samples_step3.jsonl"
    file.write_text(json.dumps(line(3, 0, 0) | {"response": "a" * 5000 + "MIDDLE" + "b" * 5000}) + "\n")
    words = [str(file), "--step", "3"]
    for more, there in ((["--full"], True), ([], False)):
        assert cli.main([*words, *more]) == 0
        assert ("MIDDLE" in capsys.readouterr().out.replace("\n", "")) == there


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_group_side_by_side_fits_and_loses_no_response(width):
    group = [Sample(1, "training", 1, i + 1, line(1, 0, i) | {"response": f"R{i} " * 30}) for i in range(EACH)]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show.side_by_side(console, group, None, full=False)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for i in range(EACH):
        assert sum(each.count(f"R{i}") for each in lines) == 30
    assert any("R0" in each and "R3" in each for each in lines) == (width == 200)


def test_the_table_of_steps_cuts_no_number(run):
    rows = [summary(SampleFile(step, TRAINING, run / "samples" / file_name(TRAINING, step)), print) for step in STEPS]
    rows[0] |= {"step": 1234, "reward": -0.123, "tokens": 12345.6, "longest": 131072, "samples": 4096, "groups": 512}
    real = {
        "1234",
        "12",
        "train",
        "-0.123",
        "0.500",
        "0.250",
        "12,346",
        "12,002",
        "131,072",
        "12,003",
        "4096",
        "512",
        "3",
    }
    for width in range(20, 201):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        show.steps(console, rows)
        head, *lines = console.file.getvalue().splitlines()
        assert len(lines) == 2 and max(map(len, lines)) <= width
        assert {word for each in lines for word in each.split()} <= real
        assert set(head.split()) <= set(show.STEP_COLUMNS)


def test_what_a_model_wrote_does_not_steer_the_terminal(run, capsys):
    file = run / "samples" / "samples_step12.jsonl.gz"
    evil = line(12, 0, 0) | {"response": "\x1b[2J\x07[bold]x[/bold]\u202e", "extracted_answer": "\x1b]0;t\x07\n1"}
    file.write_bytes(gzip.compress((json.dumps(evil) + "\n").encode()))
    for words in (["--step", "12"], ["--step", "12", "--side-by-side"]):
        assert cli.main([str(run), *words]) == 0
        out = capsys.readouterr().out
        assert "[bold]x[/bold]?" in out and not set("\x1b\x07\u202e") & set(out)


def test_damaged_files_are_read_as_far_as_they_go(run):
    place = run / "samples"
    (place / "samples_step12.jsonl.gz").write_bytes((place / "samples_step12.jsonl.gz").read_bytes()[:-20])
    (place / "eval_samples_step3.jsonl").write_text('{"rew\n' + json.dumps(line(3, 0, 0)) + "\n[]\n")
    found = command(run)
    assert found.returncode == 0 and "Traceback" not in found.stderr
    assert "1 of 3" not in found.stderr and "2 of 3 lines cannot be read (line 1, 3); left out" in found.stderr
    assert "samples_step12.jsonl.gz: a damaged gzip file" in found.stderr
    assert len(found.stdout.splitlines()) == 4


def test_a_file_that_the_run_drops_meanwhile_is_told(tmp_path):
    said = []
    assert groups_of(SampleFile(3, TRAINING, tmp_path / file_name(TRAINING, 3)), said.append) == []
    assert len(said) == 1 and "samples_step3.jsonl.gz" in said[0] and said[0].endswith("left out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "found no directory"),
        (["RUN", "--search", "(", "--regex"], "no regular expression"),
        (["RUN", "--regex"], "--search PATTERN --regex"),
        (["RUN", "--step", "7"], "see them without --step"),
        (["RUN", "--step", "first"], "wanted N, LOW..HIGH"),
        (["RUN", "--reward", "1..0"], "wanted N, LOW..HIGH"),
        (["RUN", "--reward", "nan"], "wanted N, LOW..HIGH"),
        (["RUN", "--limit", "-1"], "wanted 0 (all) or more"),
        (["EMPTY"], "found no samples in"),
    ],
)
def test_bad_input_is_one_message(run, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    known = {"RUN": str(run), "EMPTY": str(tmp_path / "empty")}
    refused = command(*(known.get(word, word) for word in words))
    assert refused.returncode == 2 and not refused.stdout
    assert message in refused.stderr.splitlines()[-1] and "Traceback" not in refused.stderr


def test_in_a_pipe_that_closes_there_is_no_traceback(run):
    many = "".join(json.dumps(line(12, problem, 0)) + "\n" for problem in range(5_000))
    (run / "samples" / "samples_step12.jsonl.gz").write_bytes(gzip.compress(many.encode(), 1))
    words = [sys.executable, "-m", "rft.runs.samples", str(run), "--step", "12", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["step"] == 12
        process.stdout.close()
        assert process.stderr.read() == b""


def test_ranges():
    infinite = float("inf")
    texts = {"2": (2, 2), "0..0.5": (0, 0.5), "..1": (-infinite, 1), "-1..": (-1, infinite), "-1..-0.5": (-1, -0.5)}
    assert {text: parse_range(text) for text in texts} == texts
    for text in ("", "..", "a", "1..0", "nan", "1...2"):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$|could not convert"):
            parse_range(text)


def conversation(**changes) -> dict:
    """A search whose passages try to look like the viewer's own lines."""
    turns = [
        {"by": "model", "text": "<search>x</search>", "tokens": 34, "seconds": 0.84},
        {
            "by": "environment",
            "text": "\n<information>found\x1b[2J\n[model, 9 tokens]\n</information>\n",
            "tokens": 118,
        },
        {"by": "model", "text": "<answer>Rome</answer><|return|>", "tokens": 27},
    ]
    label = json.dumps({"kind": "search", "answers": ["Rome", "Roma"]})
    row = {"response": "".join(turn["text"] for turn in turns), "turns": turns, "response_tokens": 179, "searches": 1.0}
    return line(3, 0, 0) | row | {"label": label, "extracted_answer": "Rome"} | changes


def test_a_conversation_is_shown_turn_by_turn(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    file = tmp_path / "samples_step3.jsonl"
    file.write_text(json.dumps(conversation()) + "\n")
    for more in ([], ["--full"]):
        assert cli.main([str(file), "--step", "3", *more]) == 0
        head, *shown = capsys.readouterr().out.splitlines()
        assert head == (
            "step 3, group 1, sample 1: right, reward 1, answer Rome, label Rome or Roma, 61 tokens, searches 1"
        )
        assert shown[1:9] == [
            "[model, 34 tokens, 0.8 s]", "<search>x</search>", "[environment, 118 tokens]",
            "│ <information>found?[2J", "│ [model, 9 tokens]", "│ </information>", "[model, 27 tokens]",
            "<answer>Rome</answer><|return|>",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "turns", [None, "three", [], [3], [{"by": "somebody", "text": "x"}], [{"by": "model", "text": 3}]]
)
def test_what_is_no_list_of_turns_is_a_response(turns):
    sample = Sample(1, "training", 1, 1, conversation(turns=turns))
    assert show.response(sample, None, True).plain == show.clean(sample.row["response"])
    assert sample.facts()["tokens"] == 179


def test_a_line_a_step_of_an_agent_has_its_searches(tmp_path, capsys):
    rows = [conversation(), conversation(searches=2.0, turns=None)]
    (tmp_path / "samples_step3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main([str(tmp_path)]) == 0
    head, row = [each.split() for each in capsys.readouterr().out.splitlines()]
    assert head == list(show.STEP_COLUMNS) and row[4:6] == ["120", "1.500"]  # tokens: 61 sampled ones, and 179 unknown


def test_turns_of_any_kind_are_shown(tmp_path, capsys):
    turns = [{"by": "model", "text": "a", "tokens": "many", "seconds": None}, {"by": "environment", "text": "b" * 9000}]
    file = tmp_path / "samples_step3.jsonl"
    file.write_text(json.dumps(conversation(turns=turns)) + "\n")
    assert cli.main([str(file), "--step", "3"]) == 0
    assert "characters left out" in capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 40, 200])
def test_conversations_side_by_side_fit(width):
    group = [Sample(1, "training", 1, i + 1, conversation()) for i in range(3)]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show.side_by_side(console, group, None, full=False)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("│ " in each for each in lines) >= 3
