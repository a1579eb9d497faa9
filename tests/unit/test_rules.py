"""Every rule against records that it must judge bad, records one step from that, and records without its metric."""

import json
import math
import re
from pathlib import Path

import pytest

from rft.record.eval_names import dataset_name, dataset_names, mode_of, parse, probe_metric, shares_of_correct
from rft.rules import learning
from rft.rules.healthy import HEALTHY, is_healthy
from rft.rules.judge import RULES, chosen, findings, judge

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
# The rules that end a training unless --stop_rules says otherwise. Another one ends runs that went on before.
STOPS = (
    "not_finite", "frozen_weights", "dropped_sync", "zero_reward", "full_reward", "no_signal", "gradient", "mismatch",
    "ood_decline", "disk",
)  # fmt: skip
HEALTHY_STEP = {
    "policy_loss": 0.01, "actor_lr": 5e-7, "grad_norm": 0.4, "grad_norm_max": 0.6, "reward": 0.4, "reward_mean": 0.4,
    "reward_min": 0.0, "reward_max": 1.0, "correctness": 0.4, "has_boxed": 0.97, "truncated": 0.1,
    "response_length": 900.0, "group_count": 16.0, "group_zero_variance_share": 0.3, "advantage_std": 0.9,
    "entropy_mean": 0.5, "ppo_clip_ratio": 0.01, "ppo_kl": 0.0, "kl": 0.002, "log_ratio_raw_max": 1.0, "ratio_max": 2.0,
    "log_ratio_abs_p99": 0.1, "mismatch_abs_mean": 0.02, "high_reward_but_wrong": 0.0, "lenient_disagreement": 0.01,
    "sync_changed_share": 0.4, "sync_kept_share": 0.9, "invalid_action_share": 0.02, "searches": 1.5,
}  # fmt: skip


def steps(count: int, **series) -> list[dict]:
    """Healthy steps, with metrics replaced by constants, by functions of the step, or removed by `...`."""
    records = []
    for step in range(1, count + 1):
        record = HEALTHY_STEP | {
            "global_step": step, "adapter_version": step - 1, "sync_adapter_version": step,
            "sync_canary_shift": 0.5 if step > 1 else 0.0, "correctness": 0.3 + 0.01 * step,
        }  # fmt: skip
        for name, value in series.items():
            record[name] = value(step) if callable(value) else value
        records.append({name: value for name, value in record.items() if value is not ...})
    return records


def verdict(rule: str, training: list[dict], evaluations=(), facts=None):
    return {v.rule: v for v in judge(training, list(evaluations), facts)}.get(rule)


def probes(*values: float, problems: float | None = 200.0, name="eval_set_ood_greedy_pass@1") -> list[dict]:
    """Evaluations every 5 steps from 0, at most 6 of them."""
    size = {} if problems is None else {"eval_set_ood_problems": problems}
    return [{"global_step": 5 * n, name: value, **size} for n, value in enumerate(values)]


def late(value, before, start: int = 28):
    """A metric that takes another value from step `start` on."""
    return lambda step: value if step >= start else before


def test_a_healthy_run_has_no_finding():
    verdicts = judge(steps(30), probes(0.5, 0.51, 0.52, 0.53), {"disk": [{"path": "/d", "free": 50 * GIB, "need": 0}]})
    assert {v.rule: v.reason for v in verdicts if v.level != "ok"} == {}
    assert [v.rule for v in verdicts] == list(RULES)
    assert all(v.change == "" and v.reason and json.dumps(v.numbers) for v in verdicts)


CASES = [
    ("not_finite", steps(3, policy_loss=lambda s: None if s == 3 else 0.1), "bad"),
    ("not_finite", steps(3, grad_norm=lambda s: None if s == 1 else 0.1), "bad"),
    ("frozen_weights", steps(3, grad_norm=0.0), "bad"),
    ("frozen_weights", steps(3, grad_norm=late(0.1, 0.0, 3)), "ok"),
    ("frozen_weights", steps(3, actor_lr=0.0), "bad"),
    ("frozen_weights", steps(4, sync_changed_share=late(0.0, 0.1, 2)), "bad"),
    ("frozen_weights", steps(4, sync_changed_share=0.9, sync_output_moved_share=0.0), "bad"),
    ("frozen_weights", steps(4, sync_changed_share=0.9, sync_output_moved_share=1e-5), "ok"),
    ("frozen_weights", steps(3, sync_adapter_version=0), "bad"),
    ("frozen_weights", steps(3, sync_adapter_version=7), "bad"),
    ("frozen_weights", steps(2, grad_norm=0.0), None),
    ("frozen_weights", steps(3, grad_norm=0.0, group_zero_variance_share=1.0), None),
    ("dropped_sync", steps(3, sync_canary_shift=0.0), "bad"),
    ("dropped_sync", steps(3, sync_canary_shift=0.0, sync_changed_share=0.0), "ok"),
    ("dropped_sync", steps(3, sync_canary_shift=0.0, sync_kept_share=0.1), "ok"),
    ("dropped_sync", steps(3, sync_canary_shift=0.0, sync_kept_share=1.0, sync_output_moved_share=0.01), "ok"),
    ("dropped_sync", steps(3, sync_canary_shift=0.0, sync_kept_share=0.1, sync_output_moved_share=0.6), "bad"),
    ("dropped_sync", steps(4, adapter_version=1), "bad"),
    ("dropped_sync", steps(4, adapter_version=lambda s: max(0, s - 3)), "ok"),  # asynchronous: late, but moving
    ("zero_reward", steps(5, reward_max=0.0, reward_mean=0.0), "bad"),
    ("zero_reward", steps(5, reward_max=late(1.0, 0.0, 5), reward_mean=0.01), "warn"),
    ("zero_reward", steps(4, reward_max=0.0, reward_mean=0.0), None),
    ("zero_reward", steps(17, reward_max=late(0.0, 1.0, 6), reward_mean=0.01), "warn"),  # 192 groups of a sparse reward
    ("zero_reward", steps(18, reward_max=late(0.0, 1.0, 6), reward_mean=0.01), "bad"),
    ("full_reward", steps(17, reward_min=late(1.0, 0.0, 6), reward_mean=0.99), "warn"),
    ("full_reward", steps(18, reward_min=late(1.0, 0.0, 6), reward_mean=0.99), "bad"),
    ("full_reward", steps(5, reward_min=1.0, reward_mean=1.0), "bad"),
    ("zero_reward", steps(5, reward_min=-1.0, reward_max=0.0, reward_mean=-0.4), "warn"),  # 0 is the best, and learned
    ("zero_reward", steps(5, reward_min=-1.0, reward_max=-1.0, reward_mean=-1.0), "bad"),
    ("full_reward", steps(5, reward_min=0.0, reward_mean=0.99), "warn"),
    ("full_reward", steps(5, reward_min=1.0, reward_max=2.0, reward_mean=1.4), "warn"),  # a bonus on top
    ("no_signal", steps(25, group_zero_variance_share=1.0, group_count=8), "bad"),
    ("no_signal", steps(24, group_zero_variance_share=1.0, group_count=8), "warn"),  # 192 groups
    ("no_signal", steps(30, group_zero_variance_share=lambda s: 0.99 if s == 6 else 1, group_count=8), "warn"),
    ("no_signal", steps(5, group_zero_variance_share=1.0, group_count=64), "bad"),
    ("no_signal", steps(4, group_zero_variance_share=1.0, group_count=64), None),
    ("no_signal", steps(99, group_zero_variance_share=1.0, group_count=...), "warn"),  # a run that did not count them
    ("no_signal", steps(5, group_zero_variance_share=0.8), "warn"),
    ("gradient", steps(3, grad_norm=101.0), "bad"),
    ("gradient", steps(3, grad_norm=late(101.0, 1.0, 2)), "warn"),
    ("gradient", steps(4, grad_norm=late(60.0, 1.0, 2)), "bad"),
    ("gradient", steps(4, grad_norm=late(0.9, 0.01, 2)), "ok"),  # 90 times the first, and not even clipped
    ("gradient", steps(4, grad_norm=late(2.0, 0.0, 2)), "ok"),  # the first step's groups had no variance
    ("gradient", steps(4, grad_norm=late(49.0, 0.1, 2)), "ok"),
    ("gradient", steps(5, grad_norm=lambda s: {1: 0.0, 2: 1.0}.get(s, 60.0)), "bad"),
    ("mismatch", steps(4, mismatch_abs_mean=late(0.05, 0.02, 2)), "warn"),
    ("mismatch", steps(4, mismatch_abs_mean=late(0.09, 0.02, 2)), "bad"),
    ("mismatch", steps(4, mismatch_abs_mean=late(0.09, 0.02, 3)), "ok"),
    ("mismatch", steps(4, mismatch_abs_mean=late(0.007, 0.0001, 2)), "ok"),  # 70 times nothing is nothing
    ("mismatch", steps(8, mismatch_abs_mean=0.36), "ok"),  # as far apart as in the first step
    ("mismatch_level", steps(3, mismatch_abs_mean=0.36), "bad"),  # from the first step on
    ("mismatch_level", steps(3, mismatch_abs_mean=lambda s: {1: 0.36, 2: 0.36, 3: 0.06}[s]), "warn"),
    ("mismatch_level", steps(8, mismatch_abs_mean=0.06), "warn"),
    ("mismatch_level", steps(8, mismatch_abs_mean=late(0.36, 0.02, 7)), "ok"),  # two steps are not a state
    ("mismatch_level", steps(8, mismatch_abs_mean=0.05), "ok"),
    ("mismatch_level", steps(2, mismatch_abs_mean=0.36), None),
    ("advantage", steps(4, advantage_std=0.0), "bad"),
    ("advantage", steps(4, advantage_std=0.0, group_zero_variance_share=1.0), None),
    ("clipping", steps(3, ppo_clip_ratio=0.41), "bad"),
    ("clipping", steps(3, ppo_clip_ratio=late(0.41, 0.1, 3)), "warn"),
    ("ratio_tails", steps(3, ratio_max=11.0), "warn"),
    ("spikes", steps(3, grad_norm_max=late(51.0, 1.0, 3)), "warn"),
    ("spikes", steps(30, grad_norm_max=lambda s: 20.0 * s), "bad"),
    ("instability", steps(20, ppo_kl=late(0.2, 0.0, 18)), "warn"),
    ("instability", steps(20, ppo_kl=late(0.2, 0.0, 18), correctness=late(0.1, 0.4, 15)), "bad"),
    ("entropy", steps(10, entropy_mean=late(0.04, 0.5, 8)), "bad"),
    ("entropy", steps(10, entropy_mean=late(0.1, 0.5, 8)), "warn"),
    ("entropy", steps(10, entropy_mean=late(3.0, 0.5, 8)), "bad"),
    ("rounding", steps(8, sync_kept_share=0.2), "warn"),
    ("rounding", steps(8, sync_kept_share=1.0, sync_output_kept_share=0.2), "warn"),
    ("rounding", steps(8, sync_kept_share=0.2, sync_output_kept_share=0.98), "ok"),
    ("format", steps(6, has_boxed=0.4), "bad"),
    ("format", steps(6, has_boxed=0.8), "warn"),
    ("format", steps(6, has_program=0.4), "bad"),
    ("format", steps(6, has_program=0.8), "warn"),
    ("actions", steps(3, invalid_action_share=0.6), "bad"),
    ("actions", steps(3, invalid_action_share=late(0.4, 0.6, 3)), "warn"),
    ("actions", steps(2, invalid_action_share=0.6), "warn"),
    ("actions", steps(3, invalid_action_share=...), None),
    ("searching", steps(6, searches=late(0.6, 1.5, 4), correctness=0.3), "warn"),
    ("searching", steps(6, searches=late(0.6, 1.5, 4)), "ok"),  # fewer, and more answers are right
    ("searching", steps(6, searches=late(0.8, 1.5, 4), correctness=0.3), "ok"),
    ("searching", steps(5, searches=0.1), None),
    ("searching", steps(6, searches=0.0), None),
    ("format", steps(6, answered=0.4), "bad"),
    ("format", steps(6, answered=0.8), "warn"),
    ("format", steps(6, answered=0.95), "ok"),
    ("format", steps(8, has_boxed=late(0.7, 0.95, 6)), "bad"),
    ("truncation", steps(3, truncated=0.81), "bad"),
    ("truncation", steps(3, truncated=0.6), "warn"),
    ("length_collapse", steps(10, response_length=late(300.0, 900.0, 8)), "bad"),
    ("length_collapse", steps(10, response_length=late(300.0, 900.0, 8), reward=lambda s: 0.01 * s), "warn"),
    ("reward_hacking", steps(10, high_reward_but_wrong=late(0.1, 0.0, 9)), "warn"),
    ("reward_hacking", steps(10, high_reward_but_wrong=lambda s: 0.03 * s), "bad"),
    ("grader", steps(3, lenient_disagreement=0.06), "warn"),
    ("flat", steps(20, correctness=lambda s: 0.4 + 0.01 * (s % 3), kl=0.0), "warn"),
    ("flat", steps(20, correctness=lambda s: 0.4 + 0.01 * (s % 3), kl=0.01), "ok"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "training", "level"), CASES)
def test_rules_about_training(rule, training, level):
    found = verdict(rule, training)
    assert (found.level if found else None) == level, found
    if level in ("warn", "bad"):
        assert found.reason and found.numbers and found.change


EVALUATED = [
    ("ood_decline", probes(0.5, 0.49, 0.48, problems=None), "bad"),
    ("ood_decline", probes(0.5, 0.49, 0.48), "warn"),  # within the noise of 200 problems
    ("ood_decline", probes(0.5, 0.46, 0.42), "bad"),
    ("ood_decline", probes(0.5, 0.42, 0.46), "ok"),
    ("ood_decline", probes(0.4, 0.52, 0.45, 0.42, 0.41), "bad"),  # 0.11 below the best
    ("ood_decline", probes(0.5, 0.4), None),
    ("divergence", probes(0.5, 0.4), "bad"),
    ("divergence", probes(0.5, 0.6, 0.5), "warn"),
    ("divergence", probes(0.5, 0.6, 0.61), "ok"),
    ("below_base", probes(0.5, 0.6, 0.4), "bad"),
    ("below_base", probes(0.5, 0.6, 0.46), "warn"),
    ("below_base", probes(0.5, 0.6, 0.55), "ok"),
    ("below_base", probes(0.5, 0.4)[1:], None),  # no evaluation at step 0
]


@pytest.mark.parametrize(("rule", "evaluations", "level"), EVALUATED)
def test_rules_about_evaluations(rule, evaluations, level):
    found = verdict(rule, steps(30), evaluations)
    assert (found.level if found else None) == level, found


def test_the_fall_names_the_best_checkpoint():
    found = verdict("ood_decline", steps(30), probes(0.4, 0.55, 0.45, 0.4))
    assert "step 5 (0.550)" in found.change and found.numbers["below_best"] == pytest.approx(0.15)


@pytest.mark.parametrize(("free", "need", "level"), [(0.9, 0, "bad"), (2, 0, "warn"), (4, 0, "ok"), (4, 5, "bad")])
def test_disk(free, need, level):
    roomy = {"path": "/a", "free": 500 * GIB, "need": 0}
    tight = {"path": "/b", "free": int(free * GIB), "need": need * GIB}
    found = verdict("disk", steps(1), facts={"disk": [roomy, tight]})
    assert (found.level, found.numbers["path"]) == (level, "/b")


def chance_of_a_row(share: float, groups: int, steps: int, row: int) -> float:
    """Chance that `row` steps in a row have no mixed group, where each group is mixed with probability `share`."""
    barren = (1 - share) ** groups
    lengths, found = [1.0] + [0.0] * (row - 1), 0.0  # of the present row
    for _ in range(steps):
        found += lengths[-1] * barren
        lengths = [sum(lengths) * (1 - barren), *(chance * barren for chance in lengths[:-1])]
    return found


def test_the_chance_of_stopping_a_healthy_run_is_the_documented_one():
    text = (ROOT / "docs" / "diagnosis.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| \d+% \|", line)]
    assert [row[0].strip() for row in rows] == ["15%", "10%", "5%", "2%"]
    for row in rows:
        share, *documented = (float(cell.strip(" *%")) / (100 if "%" in cell else 1) for cell in row)
        wanted = [
            chance_of_a_row(share, groups, 250, row)
            for groups in (8, 16)
            for row in (5, math.ceil(learning.GROUPS / groups))
        ]
        assert documented == [pytest.approx(chance, rel=0.05) for chance in wanted]
    assert "1.5% (G = 8) or 0.02% (G = 16)" in text
    assert [0.9 ** (5 * groups) for groups in (8, 16)] == [pytest.approx(c, rel=0.1) for c in (0.015, 0.0002)]


def test_rules_say_nothing_where_they_know_nothing():
    assert judge([], []) == []
    assert judge([{"global_step": 1}], []) == []
    every = {name for record in steps(1) for name in record} - {"global_step"}
    for missing in every:  # no rule may fail for want of one metric
        judge(steps(30, **{missing: ...}), probes(0.5, 0.5, 0.5))
        judge(steps(30, **{missing: None}), probes(0.5, 0.5, 0.5))


def test_a_step_that_a_resume_repeated_counts_once():
    again = [*steps(3, grad_norm=0.0), *steps(3)]
    assert verdict("frozen_weights", again).level == "ok"
    # Step 10 of before the resume is not an evaluation of a run that has trained 5 steps.
    assert verdict("ood_decline", steps(5), probes(0.5, 0.4, 0.3)) is None


def test_findings_come_worst_first():
    verdicts = judge(steps(6, group_zero_variance_share=0.8, has_boxed=0.8, truncated=0.9), [])
    found = [(v.rule, v.level) for v in verdicts if v.level != "ok"]
    assert found == [("no_signal", "warn"), ("format", "warn"), ("truncation", "bad")], "the order of the report"
    assert [v.rule for v in findings(verdicts)] == ["truncation", "no_signal", "format"]


def test_stop_rules_are_read_from_left_to_right():
    default = set(STOPS)
    assert chosen("off") == set() and chosen("all") == set(RULES)
    assert chosen("default") == default == chosen("off,default")
    assert chosen("default,-disk,truncation") == default - {"disk"} | {"truncation"}
    assert chosen("-ood_decline") == chosen("default,-ood_decline") == default - {"ood_decline"}
    assert chosen(" -disk,-mismatch,format") == default - {"disk", "mismatch"} | {"format"}
    assert chosen("disk, mismatch") == {"disk", "mismatch"}
    for words, wrong in (
        ("trunction", "'trunction'"),
        ("default,-nothing", "'-nothing'"),
        ("", "''"),
        ("-all", "-all"),
    ):
        with pytest.raises(ValueError, match=wrong):
            chosen(words)


def test_names_of_evaluations():
    assert [mode_of(*pair) for pair in ((0, 1), (0.0, 8), (0.6, 8), (1.0, 1))] == [
        "greedy_pass@1", "nondet_proxy_pass@8", "sampling_pass@8", "sampling_pass@1"
    ]  # fmt: skip
    assert parse("eval_probe_set_200_ood_greedy_pass@1") == ("probe_set_200_ood", "greedy_pass@1")
    assert parse("eval_x_nondet_proxy_avg@8") == ("x", "nondet_proxy_avg@8")
    assert parse("eval_chain_sum_pass1") == ("chain_sum", "pass1")
    assert parse("eval_x_problems") is parse("reward") is None
    assert dataset_name("/a/probe_set_200_ood.jsonl") == "probe_set_200_ood"
    assert dataset_name("org/math@main") == "math"
    with pytest.raises(ValueError, match="found two sets named 'test'"):
        dataset_names("a/test.jsonl,b/test.jsonl")
    record = {"eval_a_sampling_pass@8": 0.9, "eval_a_sampling_avg@8": 0.4, "eval_a_problems": 200.0}
    assert shares_of_correct(record) == {"eval_a_sampling_avg@8": 0.4}


def test_the_probe_is_the_ood_set_and_greedy_where_there_is_one():
    names = ["eval_aime_greedy_pass@1", "eval_good_greedy_pass@1", "eval_set_ood_sampling_avg@8"]
    assert probe_metric([dict.fromkeys(names, 0.5)]) == names[2]
    names.append("eval_probe_set_200_ood_greedy_pass@1")
    assert probe_metric([dict.fromkeys(names, 0.5)]) == names[3]
    assert probe_metric([dict.fromkeys(names[:2], 0.5)]) == names[0]
    assert probe_metric([{"global_step": 1}]) is None


def test_bounds_are_those_of_the_table():
    """What a rule takes from the table of healthy ranges is a number there."""
    for name in (
        "grad_norm",
        "ppo_clip_ratio",
        "log_ratio_raw_max",
        "ratio_max",
        "log_ratio_abs_p99",
        "truncated",
        "mismatch_abs_mean",
    ):
        assert math.isfinite(HEALTHY[name].high) and is_healthy(name, HEALTHY[name].high)


def test_every_rule_stands_in_the_documentation():
    section = (ROOT / "docs" / "diagnosis.md").read_text().split("## Early stopping")[0]
    rows = re.findall(r"^\| `(\w+)`( \*\*stops\*\*)? \|", section, re.MULTILINE)
    assert [(name, bool(stops)) for name, stops in rows] == [(name, rule.stops) for name, rule in RULES.items()]
