"""The report of two runs: their options, their outcomes, and when it gives no verdict."""

import json
import random
import shutil

import pytest
from report_runs import Parsed, evaluation, page_of

from rft.options import recorded
from rft.runs.report import cli, comparisons, config


def test_options_of_a_command():
    command = [
        "py",
        "-m",
        "openrlhf.cli.train_ppo_ray",
        "--a",
        "1",
        "--b",
        "x",
        "y",
        "--c",
        "--lr=-2",
        "--neg",
        "-1e-3",
        "--a",
        "2",
    ]
    assert recorded.options(command) == {"a": "2", "b": "x y", "c": "on", "lr": "-2", "neg": "-1e-3"}


def test_configuration_shows_no_place_of_the_machine_and_no_key(make_run, tmp_path):
    path = make_run(options=("--wandb_api_key", "abc", "--other", "/mnt/data/x"))
    shown = config.shown_options(cli.load_all([path])[0])
    assert shown["save_path"] == "RUN/adapter" and shown["remote_rm_url"] == "rewards/r.py"
    assert shown["wandb_api_key"] == "hidden (ba7816)" and shown["other"] == "/mnt/data/x"
    text = page_of(path)
    assert str(tmp_path) not in text and "/opt/place" not in text and "abc" not in Parsed(text).text
    copied = tmp_path / "elsewhere"  # a copy under another name
    shutil.copytree(path, copied)
    assert config.shown_options(cli.load_all([copied])[0])["save_path"] == "RUN/adapter"


def test_two_runs_differ_where_they_differ(make_run):
    one, two = make_run("a", options=("--eps_clip", "0.2")), make_run("b", options=("--eps_clip", "0.1", "--extra"))
    runs = cli.load_all([one, two])
    rows = config.table([config.shown_options(run) for run in runs])
    assert {row["name"]: row["values"] for row in rows if row["differs"]} == {
        "eps_clip": ["0.2", "0.1"], "extra": ["not set", "on"],
    }  # fmt: skip
    text = Parsed(page_of(one, two)).text
    assert "differ in 2 options: the result cannot be attributed to one of them" in text


def test_verdict_better_worse_and_cannot_tell(make_run):
    low, high, near = make_run("low", right=20), make_run("high", right=50), make_run("near", right=22)
    better, unclear = comparisons.between(cli.load_all([low, high, near]))
    assert better["outcome"] == "better" and better["sentence"].startswith(
        "B is better than A: greedy_pass@1 on d.jsonl"
    )
    assert "+50.0 points" in better["sentence"] and "30 problems won, 0 lost of 60" in better["sentence"]
    assert unclear["outcome"] == "unclear" and "C and A cannot be told apart" in unclear["sentence"]
    assert f"{100 * unclear['detectable']:.1f} points is missed more often" in unclear["sentence"]
    assert unclear["versus"]["p_holm"] >= unclear["versus"]["p_value"]
    (worse,) = comparisons.between(cli.load_all([high, low]))
    assert worse["outcome"] == "worse"


def test_identical_outcomes_still_say_what_could_not_be_seen(make_run):
    (one,) = comparisons.between(cli.load_all([make_run("a"), make_run("b")]))
    assert one["outcome"] == "unclear" and one["versus"]["interval95"] == [0.0, 0.0]
    assert 0.05 < one["detectable"] < 0.3  # 60 problems


def test_detectable_difference_has_the_power_it_claims():
    """Simulated: 200 problems, 15% lost whatever happens; a true gain of the reported size is found 4 times in 5."""
    generator, n, lost = random.Random(0), 200, 0.15
    gain = 0.13

    def p_value(gain: float) -> tuple[float, float]:
        draws = [generator.random() for _ in range(n)]
        before = [x < lost for x in draws]
        after = [lost <= x < 2 * lost + gain for x in draws]
        v = comparisons.versus(evaluation("a", before), evaluation("b", after), seed=0)
        return v["p_value"], comparisons.detectable(v, n)

    found = [p_value(gain) for _ in range(40)]
    sizes = [size for _, size in found]
    assert min(sizes) > 0.08 and max(sizes) < 0.16
    assert 0.6 < sum(p < 0.05 for p, _ in found) / 40 < 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "sampling_pass@8"}, "was not evaluated on d.jsonl in mode greedy_pass@1"),
        ({"dataset": "e.jsonl"}, "was not evaluated on e.jsonl"),
        ({"max_tokens": 128}, "found max_tokens 64 and 128"),
        ({"grader": "h"}, "found grader"),
    ],
)
def test_no_verdict_where_evaluations_cannot_be_compared(make_run, changed, message):
    one, two = make_run("a"), make_run("b")
    (result,) = json.loads((two / "evals" / "after.json").read_text())
    if "mode" in changed:
        result[changed["mode"]] = result[result["mode"]]
        result["metrics"] = {changed["mode"]: result["metrics"][result["mode"]]}
    (two / "evals" / "after.json").write_text(json.dumps([result | changed]))
    text = Parsed(page_of(one, two)).text
    assert "No verdict: " in text and message in text


def test_no_verdict_on_other_problems_or_without_an_evaluation(make_run):
    one, two = make_run("a"), make_run("b")
    (two / "evals" / "after.json").write_text(json.dumps([evaluation("after", [True] * 50)]))
    assert "(50 of 60 and 50 problems are in both)" in Parsed(page_of(one, two)).text
    (two / "evals" / "after.json").unlink()
    assert "No verdict: B has no evals/after.json." in Parsed(page_of(one, two)).text


def test_differences_of_another_cause_are_warned_of(make_run):
    one, two = make_run("a", options=("--seed", "0")), make_run("b", base="e" * 64, options=("--seed", "1"))
    manifest = json.loads((two / "run.json").read_text())
    inputs = dict.fromkeys(manifest["inputs"], "0" * 64)
    (two / "run.json").write_text(json.dumps(manifest | {"tree_id": {"vllm": "t2"}, "inputs": inputs}))
    warned = " ".join(comparisons.warnings(cli.load_all([one, two])))
    assert "different base models" in warned and "different patched trees" in warned and "the seed only" in warned
    assert "read different inputs: the digests of RUN/model differ" in warned
    third = make_run("c", options=("--seed", "0"))
    assert "have the same options" in " ".join(comparisons.warnings(cli.load_all([one, third])))


def test_evaluations_of_before_the_field_metrics_are_read(make_run):
    path = make_run()
    (result,) = json.loads((path / "evals" / "after.json").read_text())
    old = {k: result[k] for k in ("model", "kind", "dataset", "mode", "greedy_pass@1", "n", "interval95", "truncated")}
    old["records"] = [{k: r[k] for k in ("id", "label", "response", "correct")} for r in result["records"]]
    (path / "evals" / "after.json").write_text(json.dumps([old]))
    text = Parsed(page_of(path)).text
    assert "0.667" in text and "cannot be read" not in text
