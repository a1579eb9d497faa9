"""The acceptance line of a launcher against a run, and several runs as a table."""

import json
from pathlib import Path

import pytest
from report_runs import Parsed, evaluation, lines, page_of

from rft.record.names import TRAINING_FILE
from rft.runs.monitor.forecast import PRICE
from rft.runs.report import cli
from rft.runs.report.acceptance import LINE, MET, NOT_MET, OPEN, acceptance, judge
from rft.runs.report.data import load

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted(path for path in (ROOT / "launch").glob("train_*.sh"))


def verdict(run, line: str):
    match = LINE.search(f"# Acceptance: {line}\n")
    return judge(match[1], match[2], load(run))


@pytest.mark.parametrize(
    ("line", "word", "reason"),
    [
        # The run solves 20 of 60 problems of d.jsonl before, and 40 after.
        ("'after - before >= 0.03'", MET, "0.3333 against 0.03, holds"),
        ("'after - before > 0' (greedy_pass@1, d.jsonl), or the pair says nothing about learning", MET, "holds"),
        ("'after - before >= 0.03' (greedy_pass@1, d.jsonl, 95% interval of the difference above 0)", MET, "above 0"),
        ("'after - before >= 0.4' (greedy_pass@1, d.jsonl)", NOT_MET, "0.3333 against 0.4, does not hold"),
        ("'after >= before + 0.1 * 2'", MET, "0.6667 against 0.5333, holds"),
        ("'after - before >= 0.03' (greedy_pass@1, probe.jsonl)", OPEN, "there is greedy_pass@1 on d.jsonl"),
        ("'after - before >= 0.03' (sampling_pass@8, d.jsonl)", OPEN, "there is greedy_pass@1 on d.jsonl"),
        ("'after - before >= 0.15' (greedy_pass@1, mean over seeds 0, 1, 2)", OPEN, "this is one run"),
        ("'after - before >= 0.9' (greedy_pass@1, mean over seeds 0, 1, 2)", OPEN, "does not hold"),
        ("'max(grad_norm) < 50 and after - before >= 0.03'", MET, "against 50, holds"),
        ("'max(grad_norm) < 0.1 and after - before >= 0.03'", NOT_MET, "against 0.1, does not hold"),
        ("'mean(reward_mean[-10:]) > 0.29'", MET, "holds"),
        ("'mean(reward_mean[-50:]) > 0.29'", OPEN, "reward_mean is logged in 30 steps"),
        ("'min(unknown) > 0'", OPEN, "no step has logged unknown"),
        ("'spikes(B) <= spikes(A) / 2 and after(B) - after(A) > -0.02' (greedy_pass@1)", OPEN, "a pair of runs"),
        ("'spikes(B) <= spikes(A) / 2 and after < 0'", NOT_MET, "does not hold"),
        ("'after - before'", OPEN, "no comparison that this program reads"),
        ("'0 < after < 1'", OPEN, "no comparison that this program reads"),
        ("'after - before >= __import__(1)'", OPEN, "not decidable"),
        ("'after / 0 > 1'", OPEN, "it divides by 0"),
    ],
)
def test_conditions(make_run, line, word, reason):
    found = verdict(make_run(), line)
    assert found.word == word and found.line == line
    assert any(reason in each for each in found.reasons), found.reasons


def test_an_interval_that_holds_0_is_not_met(make_run):
    found = verdict(make_run(right=21), "'after - before > 0' (d.jsonl, 95% interval of the difference above 0)")
    assert found.word == NOT_MET and "not above 0" in found.reasons[-1]


def test_without_an_evaluation_afterwards_nothing_is_decided(make_run):
    run = make_run()
    (run / "evals" / "after.json").unlink()
    assert verdict(run, "'after - before >= 0.03'").word == OPEN
    other = make_run("other")
    (other / "evals" / "after.json").write_text(json.dumps([evaluation("after", [True] * 60, problems="others")]))
    assert verdict(other, "'after - before >= 0.03'").word == OPEN


def test_a_number_that_is_not_finite_is_above_every_bound(make_run):
    run = make_run()
    (run / TRAINING_FILE).write_text(
        lines([{"global_step": 1, "grad_norm": 1.0}, {"global_step": 2, "grad_norm": None}])
    )
    assert verdict(run, "'max(grad_norm) < 50'").word == NOT_MET
    assert verdict(run, "'mean(grad_norm) < 50'").word == OPEN


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda path: path.stem)
def test_what_the_launchers_want_is_read(make_run, launcher):
    """Each condition is decided, or what keeps a single run from deciding it is said: never that it cannot be read."""
    for name in LINE.findall(launcher.read_text()):
        found = verdict(make_run(), name[0])
        assert not any("this program reads" in reason for reason in found.reasons), found
    assert LINE.search(launcher.read_text())


def test_the_launcher_is_known_from_the_folder_or_from_launch_json(make_run, tmp_path, capsys):
    run = make_run()
    assert acceptance(load(run)) is None  # train_x is no launcher
    (run / "launch.json").write_text('{"launcher": "/somewhere/launch/train_grpo_20b.sh", "environment": {}}')
    assert "probe_set_1000_ood.jsonl" in acceptance(load(run)).line
    moved = tmp_path / "train_grpo_tiny" / "20260101T000000Z"
    moved.parent.mkdir()
    run.rename(moved)
    (moved / "launch.json").unlink()
    assert acceptance(load(moved)).line.startswith("'after - before >= 0.15' (greedy_pass@1")
    text = Parsed(page_of(moved)).text
    assert "acceptance not decidable" in text and "this is one run" in text
    assert cli.main([str(moved)]) == 0
    assert "acceptance not decidable: after - before >= 0.15: 0.3333 against 0.15, holds; " in capsys.readouterr().out


def test_several_runs_as_a_table(make_run, monkeypatch):
    low, high = make_run("low", right=25), make_run("high", right=50, options=("--eps_clip", "0.1"))
    for run, recipe in ((low, "a26"), (high, "tuned")):
        launch = {"launcher": "/x/launch/train_grpo_20b.sh", "environment": {"RECIPE": recipe}}
        (run / "launch.json").write_text(json.dumps(launch))
        manifest = json.loads((run / "run.json").read_text())
        manifest["command"] += ["--actor_num_gpus_per_node", "2", "--colocate_all_models", "--init_kl_coef", "0"]
        (run / "run.json").write_text(json.dumps(manifest | {"versions": {"vllm": "0.15.1"}}))
    monkeypatch.delenv(PRICE, raising=False)
    assert "<th>cost</th>" not in page_of(low, high)
    monkeypatch.setenv(PRICE, "3")
    page = page_of(low, high)
    table = Parsed(page[page.index('id="side-by-side"') : page.index('id="verdict"')]).text
    for words in ("train_grpo_20b, tuned", "eps_clip 0.1", "0.333", "0.833", "+50.0 (", "+41.7 (", "2.1", "6.17"):
        assert words in table, words  # 2 GPUs for 3,700 seconds
    assert 'id="side-by-side"' not in page_of(low)
