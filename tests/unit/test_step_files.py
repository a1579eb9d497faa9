"""Numbers and samples of a step: statistics against hand-worked cases, files that every reader opens."""

import itertools
import json
import math
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft.hooks import metrics, phases
from rft.hooks.numeric_logs import numeric_only, text_only
from rft.hooks.sample_metrics import sample_metrics
from rft.hooks.samples import write_samples
from rft.hooks.step_metrics import means, status_sums, token_metrics
from rft.hooks.turn_metrics import turn_metrics
from rft.record.conversation import MODEL, segments
from rft.record.samples import EVALUATION, TRAINING, read_samples, sample_files


def sample(reward: float, **info) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        rewards=torch.tensor([reward]),
        sequences=torch.tensor([[7, 8, 9, 10]]),
        action_mask=torch.tensor([[0, 1, 1]]),
        prompts=["2+2"],
        labels=["4"],
        info={name: torch.tensor([value]) for name, value in info.items()},
        texts={"note": "4\u2028"},
    )


def test_reward_statistics_by_group():
    rewards = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    correct = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    found = sample_metrics([sample(r, correctness=c) for r, c in zip(rewards, correct, strict=True)], 2)
    assert found == {
        "reward_mean": 0.625,
        "group_count": 4.0,
        "reward_std": pytest.approx(np.std(rewards)),
        "reward_min": 0.0,
        "reward_max": 1.0,
        "reward_p90": 1.0,
        "group_zero_variance_share": 0.75,
        "group_mixed_share": 0.5,
        "high_reward_but_wrong": 0.125,
    }


def test_without_correctness_the_reward_decides():
    found = sample_metrics([sample(1.0), sample(0.2)], 2)
    assert found["group_mixed_share"] == 1.0
    assert "high_reward_but_wrong" not in found


def test_a_reward_for_a_part_of_the_tests_is_no_wrong_answer():
    parts = [sample(0.75, correctness=0.0, pass_rate=0.75), sample(1.0, correctness=0.0, pass_rate=0.25)]
    assert sample_metrics(parts, 2)["high_reward_but_wrong"] == 0.5


def test_token_statistics():
    found = token_metrics(
        {
            "advantage": np.array([1.0, -1.0], dtype=np.float32),
            "entropy": np.linspace(0, 1, 11, dtype=np.float32),
            "log_ratio": np.array([0.0, 30.0, -0.5], dtype=np.float32),
            "mismatch": np.array([0.1, -0.1], dtype=np.float32),
        }
    )
    assert (found["advantage_mean"], found["advantage_std"]) == (0.0, 1.0)
    assert (found["entropy_p10"], found["entropy_p90"]) == (pytest.approx(0.1), pytest.approx(0.9))
    assert (found["log_ratio_max"], found["log_ratio_min"], found["tokens_in_batch"]) == (20.0, -0.5, 3)
    assert found["mismatch_abs_mean"] == pytest.approx(0.1)
    assert found["mismatch_kl"] == pytest.approx(math.cosh(0.1) - 1, rel=1e-4)
    assert token_metrics({"entropy": np.zeros(0, dtype=np.float32)}) == {}


def micro_batch(samples: list[tuple[int, float]], by_token: bool) -> tuple[dict, types.SimpleNamespace]:
    """What OpenRLHF has of samples of so many action tokens with a value each, and what it reports of them."""
    tokens, values = (torch.tensor(column, dtype=torch.float64) for column in zip(*samples, strict=True))
    mask = torch.arange(9)[None] < tokens[:, None]
    over_tokens = (tokens * values).sum() / tokens.sum()  # NaN where there is none, as OpenRLHF's masked_mean
    # Lists, as OpenRLHF's collate makes them; the mean of a sample without tokens is NaN.
    of_sample = torch.where(tokens > 0, values, torch.nan)
    info = {"reward": list(values), "kl": list(of_sample), "ppo_kl": over_tokens}
    loss = over_tokens if by_token else values.mean()
    status = {"policy_loss": float(loss), "actor_lr": 1.0} | {
        k: float(torch.as_tensor(v).mean()) for k, v in info.items()
    }
    return status, types.SimpleNamespace(action_mask=mask, info=info)


@pytest.mark.parametrize("by_token", [True, False], ids=["ppo", "gspo"])
@given(
    samples=st.lists(st.tuples(st.integers(1, 9), st.floats(-5, 5)), min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 7)),
    silent=st.booleans(),
)
def test_reported_means_do_not_depend_on_the_split(by_token, samples, cuts, silent):
    """Micro-batches of any sizes on two ranks; a sample without action tokens counts as a sample only."""
    whole = samples + [(0, 2.0)] * silent
    bounds = [0, *sorted(cut for cut in cuts if cut < len(samples)), len(samples)]
    parts = [samples[a:b] for a, b in itertools.pairwise(bounds)]
    parts[-1] = parts[-1] + whole[len(samples) :]
    ranks = [{}, {}]
    for number, part in enumerate(parts):
        for name, pair in status_sums(*micro_batch(part, by_token), by_token).items():
            kept = ranks[number % 2].setdefault(name, [0.0, 0.0])
            kept[0], kept[1] = kept[0] + pair[0], kept[1] + pair[1]
    tokens = sum(count for count, _ in whole)
    of_tokens = sum(count * value for count, value in whole) / tokens
    of_samples = sum(value for _, value in whole) / len(whole)
    wanted = {"policy_loss": of_tokens if by_token else of_samples, "actor_lr": 1.0}
    wanted |= {"reward": of_samples, "kl": of_tokens, "ppo_kl": of_tokens}
    assert means(ranks) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert means([{}, {}]) == {}


def test_phases_add_up_and_start_empty():
    phases.finish_step()
    assert phases.timed("rollout", lambda x: x + 1)(1) == 2
    phases.timed("rollout", lambda: None)()
    found = phases.finish_step()
    assert set(found) == {"time_rollout_seconds", "time_step_seconds"}
    assert 0 < found["time_rollout_seconds"] <= found["time_step_seconds"]
    assert set(phases.finish_step()) == {"time_step_seconds"}


TOKENIZER = types.SimpleNamespace(decode=lambda tokens, skip_special_tokens: f"answer {tokens[-1]}")


def keeping(every: int = 1, gigabytes: float = 1.0) -> types.SimpleNamespace:
    return types.SimpleNamespace(samples_every=every, samples_keep_gb=gigabytes)


def test_samples_are_written_whole(tmp_path, monkeypatch):
    monkeypatch.delenv("SAMPLES_LOG_DIR", raising=False)
    write_samples(keeping(), 3, [sample(1.0)], TOKENIZER)
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path / "samples"))
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "samples_step3.jsonl").write_text("of an earlier version\n")
    write_samples(keeping(), 3, [sample(1.0, parse_method=2.0, bad=math.nan), sample(0.0)], TOKENIZER)
    (file,) = sample_files(tmp_path / "samples")
    assert file.path.name == "samples_step3.jsonl.gz"
    first, second = read_samples(file.path)
    assert first == {
        "prompt": "2+2", "response": "answer 10", "label": "4", "reward": 1.0, "prompt_tokens": 2,
        "response_tokens": 2, "parse_method": 2.0, "bad": None, "note": "4\u2028",
        "extracted_answer": "10", "extraction": "last number",
    }  # fmt: skip
    assert second["reward"] == 0
    before = file.path.read_bytes()
    write_samples(keeping(), 3, [sample(1.0, parse_method=2.0, bad=math.nan), sample(0.0)], TOKENIZER)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    ("label", "answer", "method"),
    [
        ('{"kind": "mbpp", "tests": ["assert f(1) == 7"], "entry_point": "f"}', "def f(x): return 7", "block"),
        ('{"kind": "mbpp", "tests": []}', "def g(x): return 8", "block"),  # unsound: no function is known
    ],
)
def test_a_sample_of_a_code_task_holds_its_program_and_no_grade_as_mathematics(
    tmp_path, monkeypatch, label, answer, method
):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path))
    text = "```python\ndef f(x): return 7\n```\nor\n```python\ndef g(x): return 8\n```"
    tokenizer = types.SimpleNamespace(decode=lambda tokens, skip_special_tokens: text)
    code = sample(0.0, correctness=0.0)
    code.labels = [label]
    write_samples(keeping(), 1, [code], tokenizer)
    (row,) = read_samples(sample_files(tmp_path)[0].path)
    assert (row["extracted_answer"], row["extraction"], row["reward"]) == (answer, method, 0.0)


LETTERS = types.SimpleNamespace(decode=lambda tokens, skip_special_tokens: "".join(chr(96 + int(t)) for t in tokens))
QUESTION = '{"kind": "search", "answers": ["Rome"]}'


def conversation(mask: list[int], texts: dict | None = None, **info) -> types.SimpleNamespace:
    """A sample whose tokens are a, b, c, …, of which the mask (from the second on) says which were sampled."""
    made = sample(info.get("correctness", 0.0), **info)
    made.sequences, made.action_mask = torch.arange(1, len(mask) + 2)[None], torch.tensor([mask])
    made.labels, made.texts = [QUESTION], texts or {}
    return made


def test_a_conversation_is_written_turn_by_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path))
    texts = {"turn_seconds": "[0.5, 0.25]", "search_latencies": "[0.1]", "answer": "Rome", "note": "a\ud800b"}
    spoken = conversation([0, 1, 1, 0, 0, 0, 1, 1], texts, turns=2.0, searches=1.0, correctness=1.0)
    at_once = conversation([0, 0, 1, 1], {"turn_seconds": "not JSON"}, turns=1.0)
    unanswered = conversation([0, 1, 0, 0], turns=1.0)
    of_an_agent = conversation([0, 1, 0, 1])  # that logs nothing
    silent = conversation([0, 0, 0])
    write_samples(keeping(), 1, [spoken, at_once, unanswered, of_an_agent, silent], LETTERS)
    rows = list(read_samples(sample_files(tmp_path)[0].path))
    assert rows[0]["turns"] == [
        {"by": "model", "text": "cd", "tokens": 2, "seconds": 0.5},
        {"by": "environment", "text": "efg", "tokens": 3},
        {"by": "model", "text": "hi", "tokens": 2, "seconds": 0.25},
    ]
    assert (rows[0]["response"], rows[0]["response_tokens"], rows[0]["prompt_tokens"]) == ("cdefghi", 7, 2)
    assert (rows[0]["extracted_answer"], rows[0]["extraction"], rows[0]["searches"]) == ("Rome", "answer", 1)
    assert rows[0]["note"] == "a?b"  # no UTF-8 holds what an agent may log
    assert rows[1]["turns"] == [{"by": "model", "text": "de", "tokens": 2}]
    assert (rows[1]["extracted_answer"], rows[1]["extraction"]) == (None, "none")
    assert [turn["by"] for turn in rows[2]["turns"]] == ["model", "environment"]
    assert [turn["text"] for turn in rows[3]["turns"]] == ["c", "d", "e"]
    assert "turns" not in rows[4] and rows[4]["response"] == ""


@given(st.lists(st.booleans(), max_size=30))
def test_turns_are_the_whole_response_in_order(mask):
    found = segments(mask)
    first = mask.index(True) if True in mask else len(mask)
    assert [place for _, start, end in found for place in range(start, end)] == list(range(first, len(mask)))
    assert all(mask[place] == (by == MODEL) for by, start, end in found for place in range(start, end))
    assert all(one[0] != other[0] for one, other in itertools.pairwise(found))


def test_numbers_about_turns():
    """Four conversations: 0, 1, 1 and 5 searches; five searches stand with four."""
    masks = [0, 1, 1], [0, 1, 1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    numbers = [(0, 1, 0, 0, 0.0), (1, 2, 0, 1, 1.0), (1, 2, 1, 0, 0.0), (5, 6, 2, 0, 1.0)]
    texts = [
        {"turn_seconds": "[1]", "search_latencies": "[]"}, {"turn_seconds": "[2, 3]", "search_latencies": "[0.1]"},
        {"turn_seconds": "[1, 1]", "search_latencies": "[0.2]"},
        {"turn_seconds": "[1, 1, 1, 1, 1, 1]", "search_latencies": "[0.1, 0.1, 0.1, 0.1, 0.9]"},
    ]  # fmt: skip
    samples = [
        conversation(mask, text, searches=float(s), turns=float(t), invalid_actions=float(i), information_cut=float(c),
                     correctness=r)
        for mask, text, (s, t, i, c, r) in zip(masks, texts, numbers, strict=True)
    ]  # fmt: skip
    latencies = [0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.9]
    assert turn_metrics(samples) == {
        "turn_tokens": pytest.approx(13 / 11), "turn_seconds": pytest.approx(14 / 11),
        "invalid_action_share": pytest.approx(3 / 11), "information_cut_share": pytest.approx(1 / 7),
        "search_latency_mean": pytest.approx(np.mean(latencies)),
        "search_latency_p95": pytest.approx(np.quantile(latencies, 0.95)),
        "searches_0_share": 0.25, "searches_1_share": 0.5, "searches_2_share": 0, "searches_3_share": 0,
        "searches_4_share": 0.25, "correctness_searches_0": 0, "correctness_searches_1": 0.5,
        "correctness_searches_4": 1,
    }  # fmt: skip
    found = sample_metrics(samples, 2)
    assert found["turn_tokens"] == pytest.approx(13 / 11) and found["group_count"] == 2


def test_numbers_about_turns_are_of_agents_that_log_them():
    assert turn_metrics([sample(1.0), sample(0.0)]) == {}
    assert turn_metrics([conversation([0, 1, 1], turns=1.0), sample(0.0)]) == {}
    assert turn_metrics([conversation([0, 1, 1], turns=1.0)]) == {"turn_tokens": 2}
    assert turn_metrics([conversation([0, 0, 0], turns=0.0)]) == {}


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (0, [])])
def test_training_samples_are_written_as_often_as_asked(tmp_path, monkeypatch, every, steps):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path))
    for step in range(1, 6):
        write_samples(keeping(every), step, [sample(1.0)], TOKENIZER)
    write_samples(keeping(every), 5, [sample(1.0)], TOKENIZER, EVALUATION)
    found = [(file.kind, file.step) for file in sample_files(tmp_path)]
    assert sorted(found) == [(EVALUATION, 5), *((TRAINING, step) for step in steps)]


def test_old_training_samples_go_first_when_the_bound_is_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path))
    write_samples(keeping(), 0, [sample(1.0)], TOKENIZER, EVALUATION)
    size = sample_files(tmp_path)[0].path.stat().st_size

    def kept(bound: float) -> list[tuple[str, int]]:
        for step in range(1, 5):
            write_samples(keeping(gigabytes=bound * size / 1e9), step, [sample(1.0)], TOKENIZER)
        return sorted((file.kind, file.step) for file in sample_files(tmp_path))

    assert kept(3.5) == [(EVALUATION, 0), (TRAINING, 3), (TRAINING, 4)]
    assert kept(1.5) == [(TRAINING, 4)]
    assert kept(0.5) == [(TRAINING, 4)]  # what was just written stays


def test_logs_of_every_kind_are_told_apart():
    logs = {
        "text": ["boxed"], "word": "x", "none": None, "numpy": np.float32(2), "tensor": torch.tensor([[3.0]]),
        "nan": math.nan, "flag": np.bool_(True), "object": object(), "empty": np.zeros(0), "texts": ["a", "b"],
    }  # fmt: skip
    numbers = numeric_only(logs)
    assert set(numbers) == {"none", "numpy", "tensor", "nan", "flag", "empty"}
    assert (numbers["numpy"], numbers["tensor"], numbers["flag"]) == (2.0, 3.0, 1.0)
    assert text_only(logs) == {"text": "boxed", "word": "x"}


def test_resume_takes_back_the_lines_of_later_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))
    metrics.rewind(0)
    for step in (1, 2, 3):
        metrics.log_training_step(step, {"reward": step})
    with (tmp_path / metrics.TRAINING_FILE).open("a") as file:
        file.write('{"global_step": 4, "rew')  # the kill
    metrics.rewind(2)
    kept = [json.loads(line) for line in (tmp_path / metrics.TRAINING_FILE).read_text().splitlines()]
    assert [record["global_step"] for record in kept] == [1, 2]
    assert len((tmp_path / "discarded_metrics.jsonl").read_text().splitlines()) == 2
    metrics.rewind(2)
    assert len((tmp_path / "discarded_metrics.jsonl").read_text().splitlines()) == 2


def test_resume_takes_back_evaluations_and_decisions_of_later_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))
    for step in (0, 2, 4):
        metrics.log_evaluation(step, {"eval_a_pass1": 0.5})
    decisions = [json.dumps({"global_step": step, "rule": "disk", "action": "watch"}) + "\n" for step in (1, 3)]
    (tmp_path / metrics.DECISIONS_FILE).write_text("".join(decisions))
    metrics.rewind(2)
    left = (tmp_path / metrics.EVAL_FILE).read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in left] == [0, 2]
    assert json.loads((tmp_path / "discarded_eval_metrics.jsonl").read_text())["global_step"] == 4
    assert (tmp_path / metrics.DECISIONS_FILE).read_text() == decisions[0]
    assert (tmp_path / "discarded_decisions.jsonl").read_text() == decisions[1]
    assert not (tmp_path / "discarded_metrics.jsonl").exists()
