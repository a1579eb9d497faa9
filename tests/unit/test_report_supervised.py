"""The page of a supervised run: losses, the format before and after, and nothing that only GRPO has."""

import json

import pytest
from report_runs import Parsed, lines, page_of, whole_run

from rft.runs.report.acceptance import LINE, MET, NOT_MET, OPEN, judge
from rft.runs.report.data import load
from rft.runs.sft_summary import summarize

STEPS = 8
CHECK = {"data": "d.jsonl", "n": 40, "seed": 0, "max_tokens": 64, "reasoning_effort": "own"}


def supervised_run(parent, name: str = "20261123T100000Z", finished: bool = True):
    """A run directory with 40 problems: none boxed before and all after, of which 30 are right."""
    path = parent / "train_sft_x" / name
    (path / "evals").mkdir(parents=True)
    command = ["python", "-m", "rft.runs.ranks", "1", "openrlhf.cli.train_sft", "--save_path", f"{path}/adapter"]
    (path / "run.json").write_text(json.dumps({"started": "2026-11-23T10:00:00+00:00", "command": command}))
    steps = [
        {"global_step": i, "sft_loss": 2.5 / i, "grad_norm": 1.0, "learned_tokens": 90, "tokens": 400}
        for i in range(1, STEPS + 1)
    ]
    (path / "training_metrics.jsonl").write_text(lines(steps))
    (path / "eval_metrics.jsonl").write_text(lines([{"global_step": i, "sft_eval_loss": 3.25 / i} for i in (4, 8)]))
    for side, boxed, right in (("before", 0, 0), *([("after", 40, 30)] if finished else [])):
        records = [{"id": f"p{i}", "has_boxed": i < boxed, "correct": i < right} for i in range(40)]
        check = CHECK | {"verdict": "go to GRPO" if boxed else "SFT first", "records": records, "model": f"m_{side}"}
        (path / f"evals/format_{side}.json").write_text(json.dumps(check))
    if finished:
        (path / "result.json").write_text(json.dumps(summarize(path)))
    return path


def test_a_supervised_run_shows_its_losses_and_what_it_did_to_the_format(tmp_path):
    text = Parsed(page_of(supervised_run(tmp_path))).text
    for shown in (
        "2.500 → 0.312",
        "0.812 → 0.406",
        "SFT first → go to GRPO",
        "answers with \\boxed{}",
        "0.000 0.000-0.088",
        "1.000 0.912-1.000",
        "+0.750",
    ):
        assert shown in text, shown
    assert "sft_loss" in text and "sft_eval_loss" in text
    for other in ("ppo_kl", "Not logged", "no post-hoc evaluation", "--samples_every 0", "cannot be read"):
        assert other not in text, other


def test_its_acceptance_is_judged_by_the_format_checks(tmp_path):
    run = load(supervised_run(tmp_path))
    for line, word, reason in (
        ("'after - before >= 0.5' (share of boxed answers, format check 'go to GRPO' after)", MET, "1 against 0.5"),
        ("'after < 0.5' (share of boxed answers)", NOT_MET, "does not hold"),
        ("'after >= 0.95' (share of boxed answers, format check 'SFT first' after)", NOT_MET, "not as wanted"),
        ("'after - before > 0' (share of boxed answers, 95% interval of the difference above 0)", MET, "above 0"),
    ):
        match = LINE.search(f"# Acceptance: {line}\n")
        verdict = judge(match[1], match[2], run)
        assert verdict.word == word and any(reason in each for each in verdict.reasons), verdict
    unfinished = load(supervised_run(tmp_path, "20261123T110000Z", finished=False))
    verdict = judge(match[1], match[2], unfinished)
    assert verdict.word == OPEN and "there is no format check" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("name", "value"), [("data", "e.jsonl"), ("n", 39), ("seed", 1), ("max_tokens", 32), ("reasoning_effort", "low")]
)
def test_checks_that_asked_otherwise_are_not_compared(tmp_path, name, value):
    run = supervised_run(tmp_path)
    file = run / "evals/format_after.json"
    after = json.loads(file.read_text())
    file.write_text(json.dumps(after | {name: value}))
    with pytest.raises(ValueError) as refused:
        summarize(run)
    assert f"found:  {name} {value}\n  wanted: {name} {CHECK[name]}\n" in str(refused.value)
    assert str(refused.value).endswith(
        "repair: .venv/bin/python -m rft.runs.format_check --model m_after --data d.jsonl --n 40 --seed 0 "
        f"--max-tokens 64 --reasoning-effort own --output {file}"
    )
    file.write_text(json.dumps(after | {"records": after["records"][1:]}))
    with pytest.raises(ValueError, match=r"found:  other problems\n  wanted: those of before: d.jsonl"):
        summarize(run)


def test_an_unfinished_one_shows_what_there_is(tmp_path):
    text = Parsed(page_of(supervised_run(tmp_path, finished=False))).text
    assert "not finished; the last recorded step is 8" in text and "2.500 → 0.312" in text
    assert "answers with" not in text and "result.json: not there" in text


def test_beside_a_run_of_grpo_each_has_its_own(tmp_path):
    text = Parsed(page_of(whole_run(tmp_path), supervised_run(tmp_path))).text
    assert "answers with \\boxed{}" in text and "reward_mean" in text and "sft_loss" in text
    assert "sft_loss" not in Parsed(page_of(whole_run(tmp_path, "20261121T110000Z"))).text
