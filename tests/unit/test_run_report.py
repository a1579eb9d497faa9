"""The report of a run: what it reads, what it claims, and what a hostile text cannot do to it."""

import html
import json
import re
import shutil
import subprocess
import sys

import pytest
from report_runs import EVIL, Parsed, lines, page_of, sample_line, training_line

from rft.rules.healthy import HEALTHY
from rft.runs.monitor.progress import Status
from rft.runs.monitor.progress import status as progress
from rft.runs.monitor.state import read_state
from rft.runs.report import cli, samples
from rft.runs.report.data import load


def test_page_holds_every_piece_and_fetches_nothing(make_run):
    path = make_run()
    text = page_of(path)
    parsed = Parsed(text)
    assert parsed.fetched == [] and parsed.handlers == []
    assert not {"img", "link", "iframe", "object"} & set(parsed.tags)
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    for piece in (
        "train_x/20261121T100000Z", "\nfinished", "1 h 01 min", "6.4 GB", "step 12", "812", "spikes/step_12_rank_0",
        "ood_drop", "watch", "question 2", "thought 3", "target_modules", "q_proj k_proj", "versions.torch", "2.10.0",
        "cccccccccc with uncommitted changes", "Every piece of the run was found", "eval_ood_greedy_pass@1",
            *(name for name in HEALTHY if not name.startswith("sft_")),
    ):  # fmt: skip
        assert piece in parsed.text, piece
    assert text == page_of(path)


def test_hostile_texts_stay_texts(make_run):
    text = page_of(make_run())
    parsed = Parsed(text)
    assert parsed.scripts == 2  # the data and ours
    assert EVIL in parsed.text
    # In a script element nothing of the run can end it or begin a comment.
    data = re.search(r'<script type="application/json" id="curve-data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in data and json.loads(data)["runs"][0]["steps"][:2] == [1, 2]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert html.unescape(f"script-src '{cli.csp_hash(script)}'") in html.unescape(text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert f"style-src '{cli.csp_hash(style)}'" in html.unescape(text)


def spoiled(value, key=""):
    """The same nested value, every text hostile, but those that decide what is shown."""
    if isinstance(value, dict):
        return {k: spoiled(v, k) for k, v in value.items()} | {f"extra {EVIL}": 1.5}
    if isinstance(value, list):
        return [spoiled(item, key) for item in value]
    return value + EVIL if isinstance(value, str) and key not in ("mode", "id") else value


def test_nothing_of_a_run_becomes_markup_wherever_it_stands(make_run):
    paths = [make_run("a", right=10), make_run("b", right=50)]
    for path in paths:
        (path / "best.json").write_text(json.dumps({"path": "x"}))
        for file in path.rglob("*.json"):
            file.write_text(json.dumps(spoiled(json.loads(file.read_text()))))
        for file in path.rglob("*.jsonl"):
            file.write_text(lines([spoiled(json.loads(line)) for line in file.read_text().splitlines()]))
    parsed = Parsed(page_of(*paths))
    assert parsed.scripts == 2 and "img" not in parsed.tags and parsed.handlers == [] and parsed.fetched == []
    assert parsed.text.count(EVIL) > 200 and "is better than" in parsed.text


def test_a_metric_or_option_with_a_hostile_name_is_escaped(make_run):
    path = make_run(options=("--x", EVIL))
    (path / "eval_metrics.jsonl").write_text(lines([{"global_step": 1, f"eval_{EVIL}_pass1": 0.5}]))
    parsed = Parsed(page_of(path))
    assert parsed.scripts == 2 and f"eval_{EVIL}_pass1" in parsed.text


@pytest.mark.parametrize("kept", [(), ("run.json",), ("training_metrics.jsonl",), ("eval_metrics.jsonl",)])
def test_unfinished_run_names_what_is_missing(make_run, kept):
    path = make_run()
    for entry in list(path.iterdir()):
        if entry.name not in kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not kept:
        with pytest.raises(ValueError, match="nothing of a run in it"):
            page_of(path)
        return
    text = Parsed(page_of(path)).text
    assert "not finished" in text
    for piece in {"run.json", "training_metrics.jsonl", "eval_metrics.jsonl", "phases.jsonl"} - set(kept):
        assert f"{piece}: not there" in text
    assert "evals/after.json: not there" in text and "--samples_every" in text


def test_torn_and_broken_files_are_read_as_far_as_they_go(make_run):
    path = make_run()
    for file in list(path.rglob("*.json*")):
        whole = file.read_bytes()
        file.write_bytes(whole + whole[: len(whole) // 3] if file.suffix == ".jsonl" else whole[: len(whole) // 2])
    with (path / "training_metrics.jsonl").open("a") as stream:
        stream.write(
            '{"global_step": 31, "rew{"global_step": 31}\n[1]\n{"global_step": "x"}\n{"global_step": 32}\n{"gl'
        )
    run = load(path)
    assert run.training[-1]["global_step"] == 32 and run.manifest == {} and run.posthoc == {}
    text = Parsed(page_of(path)).text
    assert "training_metrics.jsonl: 3 of" in text and "the last line is incomplete" in text
    for piece in ("run.json", "evals/after.json", "samples_step20.jsonl.gz"):
        assert f"{piece}: cannot be read" in text


@pytest.mark.parametrize("junk", ["null", "[]", "3", '"x"', "{}", "[[]]", '[{"mode": 1}]', '{"command": 3, "git": []}'])
def test_json_of_another_shape_does_not_break_the_page(make_run, junk):
    path = make_run()
    for file in list(path.rglob("*.json*")):
        file.write_text(junk + "\n")
    page_of(path)


def test_values_of_another_kind_do_not_break_the_page(make_run):
    path = make_run()
    odd = ["text", None, [], {}, True, 1e400, -1]
    for file in list(path.rglob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        spoiled = [{k: (v if k == "global_step" else odd[(i + j) % len(odd)]) for j, (k, v) in enumerate(row.items())}
                   for i, row in enumerate(rows)]  # fmt: skip
        file.write_text(lines(spoiled))
    page_of(path)


def test_stopped_run_says_which_rule_stopped_it(make_run):
    path = make_run()
    manifest = json.loads((path / "run.json").read_text())
    stopped = {"global_step": 28, "rule": "ood_drop", "reason": "0.41, then 0.38", "exit_status": 10}
    (path / "run.json").write_text(json.dumps(manifest | {"stopped": stopped}))
    (path / "best.json").write_text(json.dumps({"global_step": 20, "path": f"{path}/checkpoints/global_step20"}))
    text = Parsed(page_of(path)).text
    assert "stopped at step 28 by the rule ood_drop: 0.41, then 0.38" in text
    assert "path RUN/checkpoints/global_step20" in text


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("interrupted", "interrupted at step 28: why"),
        ("asked_to_stop", "stopped at step 28 because it was asked to save and stop: why"),
        ("launcher_killed", "ended at step 28 because its launcher was killed: why"),
        ("stopped_process", "ended at step 28 because a process of it stood still: why"),
    ],
)
def test_a_run_that_no_rule_stopped_is_not_said_to_be_stopped_by_one(make_run, rule, status):
    path = make_run()
    manifest = json.loads((path / "run.json").read_text())
    stopped = {"global_step": 28, "rule": rule, "reason": "why", "exit_status": 1}
    (path / "run.json").write_text(json.dumps(manifest | {"stopped": stopped}))
    assert status in Parsed(page_of(path)).text
    diagnosed = [sys.executable, "-m", "rft.runs.diagnose", str(path)]
    assert status in subprocess.run(diagnosed, capture_output=True, text=True, check=False).stdout
    word, _, detail = status.partition(" ")
    assert progress(read_state(path)) == Status(word, "bad", detail, True)


def test_spike_bundles_count_where_the_log_lacks_them(make_run):
    path = make_run()
    (path / "spikes" / "step_29_rank_1").mkdir(parents=True)
    spike = {"global_step": 29, "rank": 1, "grad_norm": None, "threshold": 50, "bundle": "spikes/step_29_rank_1"}
    (path / "spikes" / "step_29_rank_1" / "spike.json").write_text(json.dumps(spike))
    text = Parsed(page_of(path)).text
    assert "step 29" in text and "not finite" in text and len(load(path).spikes) == 2


def test_repeated_steps_count_once_and_nulls_are_told(make_run):
    path = make_run(steps=4)
    rows = [training_line(i) | {"grad_norm": None} for i in (2, 3)]
    with (path / "training_metrics.jsonl").open("a") as stream:
        stream.write(lines(rows))
    run = load(path)
    assert [r["global_step"] for r in run.training] == [1, 2, 3, 4]
    assert "2 not finite" in Parsed(page_of(path)).text


def test_samples_stay_within_their_budget_and_say_so(make_run):
    path = make_run()
    for step in range(100, 160):
        rows = [sample_line(p, i, "x" * 8000) for p in range(16) for i in range(8)]
        (path / "samples" / f"samples_step{step}.jsonl").write_text(lines(rows))
    text = page_of(path)
    assert len(text.encode()) < 2_000_000
    found = samples.samples(load(path))
    assert found["total"] == 60 * 128 + 2 * 12 + 50 and found["shown"] < found["total"]
    assert f"{found['shown']} of {found['total']} saved samples" in Parsed(text).text
    steps = [group["step"] for group in found["groups"]]
    assert steps[0] == 10 and steps[-1] == 159  # the whole run, not its beginning
    assert "characters left out" in text


def test_a_conversation_is_drawn_turn_by_turn_and_counts_by_its_shown_text(make_run):
    path = make_run()
    turns = [
        {"by": "model", "text": f"<search>{EVIL}</search>", "tokens": 34, "seconds": 0.84},
        {"by": "environment", "text": f"<information>{EVIL}</information>" + "x" * 5000, "tokens": 118},
        {"by": "model", "text": "<answer>Rome</answer><|return|>", "tokens": 27},
    ]
    label = json.dumps({"kind": "search", "answers": ["Rome", "Roma"]})
    row = sample_line(0, 0) | {"turns": turns, "label": label, "searches": 1.0, "extracted_answer": "Rome"}
    (path / "samples" / "samples_step77.jsonl").write_text(lines([row]))
    text = page_of(path)
    page = Parsed(text)
    assert (
        text.count('<pre class="environment">') == 1
        and not page.handlers
        and page.scripts == Parsed(page_of(make_run("b"))).scripts
    )
    shown = " ".join(page.text.split())
    assert "answer Rome, label Rome or Roma, 61 tokens, searches 1" in shown
    assert "environment, 118 tokens" in shown and "model, 34 tokens, 0.8 s" in shown
    assert "characters left out" in shown
    (group,) = [group for group in samples.samples(load(path))["groups"] if group["step"] == 77]
    assert sum(len(turn["text"]) for turn in group["samples"][0]["turns"]) < 3500


def test_how_an_agent_searched_is_said_of_each_evaluation(make_run):
    path = make_run("searched")
    found = {"searches": 1.5, "turns": 2.5, "invalid_actions": 0.125, "search_seconds": 0.25}
    found["by_searches"] = {"1": {"value": 0.75, "interval95": [0.5, 0.9], "samples": 8}}
    file = path / "evals" / "before.json"
    (result,) = json.loads(file.read_text())
    file.write_text(json.dumps([result | {"conversations": found}]))
    said = "1.50 searches and 2.50 turns a sample, 12.5% of turns invalid, 0.250 s a search"
    text = page_of(path)
    assert said in text and "number of searches: 1: 0.750 (0.500-0.900, samples: 8)" in text
    assert text.count("turns a sample") == 1
    file.write_text(json.dumps([result | {"conversations": {"searches": "many"}}]))
    assert "evals/before.json: cannot be read as results" in page_of(path)


def test_two_long_runs_stay_below_two_megabytes(make_run):
    paths = [make_run("a", right=10, steps=200), make_run("b", right=60, steps=200)]
    for path in paths:
        for name in ("before", "after"):
            (result,) = json.loads((path / "evals" / f"{name}.json").read_text())
            for record in result["records"]:
                record["response"] = "&" * 20_000
            (path / "evals" / f"{name}.json").write_text(json.dumps([result]))
        for step in range(100, 140):
            rows = [sample_line(p, i, "y" * 12_000) for p in range(16) for i in range(8)]
            (path / "samples" / f"samples_step{step}.jsonl").write_text(lines(rows))
    assert len(page_of(*paths).encode()) < 2_000_000


def test_command_writes_beside_the_run_and_refuses_bad_input_with_one_message(make_run, tmp_path, capsys):
    one, two = make_run("a"), make_run("b")
    assert cli.main([str(one)]) == 0 and (one / "report.html").is_file()
    assert cli.main([str(one), str(two)]) == 0 and (two / "comparison.html").is_file()
    assert cli.main([str(one), "--output", str(tmp_path / "new" / "x.html")]) == 0
    for arguments, message in (
        ([str(tmp_path / "absent")], "found no directory"),
        ([str(tmp_path / "new")], "found no run in"),
        ([str(one), "--output", str(two)], "found the folder"),
        ([str(one), "--output", str(tmp_path)], f"pass --output {tmp_path / 'report.html'}"),
        ([str(one), str(one)], "twice"),
        ([str(one), "--output", str(one / "report.html" / "x.html")], "File exists"),
    ):
        capsys.readouterr()
        assert cli.main(arguments) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("report: ") and len(errors.splitlines()) == 1 and message in errors


def test_a_folder_of_runs_means_the_newest_and_the_page_lies_beside_it(make_run, capsys):
    old, new = make_run("20260101T000000Z"), make_run("20260102T000000Z")
    assert cli.main([str(old.parent)]) == 0
    assert capsys.readouterr().err == f"the newest run of {old.parent}: {new}\n"
    assert (new / "report.html").is_file() and not (old / "report.html").exists()


def test_places_of_one_run_are_not_taken_for_another_s(make_run, monkeypatch, tmp_path):
    one, two = make_run("a", steps=3), make_run("b", steps=5)
    monkeypatch.setenv("METRICS_LOG_DIR", str(one))
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(one / "samples"))
    (two / "training_metrics.jsonl").unlink()
    assert len(cli.load_all([two])[0].training) == 0  # its evaluations are there, so the variable is another run's
    (two / "eval_metrics.jsonl").unlink()
    assert [len(run.training) for run in cli.load_all([one, two])] == [3, 0]
    assert len(cli.load_all([two])[0].training) == 3  # alone, the variable can only mean this run
