"""The warm start: its loss is the full sequence's, its experts are the stored ones, its cache knows what matters."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from rft import mxfp4_codec
from rft.tiny import programs, supervised, warmstart
from rft.tiny.checkpoint import EXPERT_WEIGHTS, build_model
from rft.tiny.task import STYLES, make_splits, operands, write_splits
from rft.tiny.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[2]
PROBLEMS = make_splits(0, {"warm": 48})["warm"]
TOKENIZER = build_tokenizer()


@pytest.fixture
def data(tmp_path):
    write_splits({"warm": PROBLEMS}, tmp_path)
    return tmp_path / "warm.jsonl"


@pytest.fixture
def three_steps(monkeypatch):
    """Training cut to three steps, and a list that counts how often it ran."""
    runs, train = [], supervised.train

    def short(problems, seed, task):
        runs.append(seed)
        return train(problems, seed, steps=3, task=task)

    monkeypatch.setattr(supervised, "train", short)
    return runs


def test_answers_are_the_template_s_text():
    prompt, answer, learned = supervised.conversation(TOKENIZER, PROBLEMS[0], "careful")
    text = TOKENIZER.decode(answer)
    assert TOKENIZER.decode(prompt).endswith("<|start|>assistant")
    assert text.startswith("<|channel|>analysis<|message|>") and text.endswith("}<|return|>")
    assert f"<|channel|>final<|message|>\\boxed{{{PROBLEMS[0]['label']}}}" in text
    assert len(answer) <= 45 and learned == [True] * len(answer)


def test_styles_part_only_where_there_is_a_carry():
    for problem in PROBLEMS:
        careful, careless = (supervised.conversation(TOKENIZER, problem, style)[1] for style in ("careful", "careless"))
        carries = sum(term % 10 for term in operands(problem["input"][-1]["content"])) > 9
        assert (careful != careless) == carries
        assert len(careful) - len(careless) in (0, 1, 2)


def test_shared_prefix_changes_neither_loss_nor_gradient():
    model = build_model(seed=0)
    batch = [supervised.conversation(TOKENIZER, p, s) for p, s in zip(PROBLEMS[:6], STYLES * 3, strict=True)]
    shared = 40
    assert len({tuple(prompt[:shared]) for prompt, _, _ in batch}) == 1
    supervised.answer_loss(model, batch, shared, TOKENIZER.pad_token_id).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    total = sum(len(answer) for _, answer, _ in batch)
    losses = []
    for prompt, answer, _ in batch:
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        losses.append(F.cross_entropy(logits, torch.tensor(answer), reduction="sum") / total)
    loss = sum(losses)
    loss.backward()
    assert supervised.answer_loss(model, batch, shared, TOKENIZER.pad_token_id).item() == pytest.approx(
        loss.item(), 1e-5
    )
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_experts_are_the_stored_ones_only_within():
    model = build_model(seed=0)
    experts = model.model.layers[0].mlp.experts
    masters = {name: getattr(experts, name).detach().clone() for name in EXPERT_WEIGHTS}
    with supervised.stored_experts(model):
        for name in EXPERT_WEIGHTS:
            assert getattr(experts, name).equal(mxfp4_codec.decode(*mxfp4_codec.encode(masters[name]), torch.float32))
    for name in EXPERT_WEIGHTS:
        assert getattr(experts, name).equal(masters[name])


def test_training_is_deterministic_by_seed_and_lowers_the_loss():
    first, again, other = (supervised.train(PROBLEMS, seed, steps=12) for seed in (0, 0, 1))
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert a.equal(b)
    assert not first.lm_head.weight.equal(other.lm_head.weight)
    batch = [supervised.conversation(TOKENIZER, p, "careful") for p in PROBLEMS[:8]]
    untrained = build_model(0, std=supervised.INIT_STD)
    before, after = (supervised.answer_loss(m, batch, 40, TOKENIZER.pad_token_id).item() for m in (untrained, first))
    assert after < 0.8 * before


def test_cache_is_hit_until_something_that_matters_changes(data, tmp_path, three_steps):
    cache = tmp_path / "cache"
    place = warmstart.warm_started(data, 0, cache)
    stamp = (place / "model.safetensors").stat().st_mtime_ns
    assert warmstart.warm_started(data, 0, cache) == place and three_steps == [0]
    assert (place / "model.safetensors").stat().st_mtime_ns == stamp
    assert warmstart.warm_started(data, 1, cache) != place and three_steps == [0, 1]
    write_splits({"warm": PROBLEMS[:-1]}, data.parent)
    assert warmstart.warm_started(data, 0, cache) != place and three_steps == [0, 1, 0]
    assert len(list((cache / "sums").iterdir())) == 3  # nothing partial is left


def test_a_task_has_its_own_checkpoint_and_tokenizer(tmp_path, three_steps):
    write_splits({"warm": programs.make_splits(0, {"warm": 48})["warm"]}, tmp_path)
    place = warmstart.warm_started(tmp_path / "warm.jsonl", 0, tmp_path / "cache", "code")
    tokens = AutoTokenizer.from_pretrained(place).tokenize("    return x")
    assert len(tokens) == 5 and three_steps == [0]  # not letter by letter
    with pytest.raises(ValueError, match="exactly one sum"):
        warmstart.warm_started(tmp_path / "warm.jsonl", 0, tmp_path / "cache")


def test_a_failed_training_leaves_no_cache_entry(data, tmp_path, monkeypatch):
    def broken(problems, seed, task):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(supervised, "train", broken)
    with pytest.raises(RuntimeError):
        warmstart.warm_started(data, 0, tmp_path / "cache")
    assert not list((tmp_path / "cache/sums").iterdir())


def test_command_line_uses_the_cache_without_importing_torch(data, tmp_path, three_steps):
    cache = tmp_path / "cache"
    place = warmstart.warm_started(data, 0, cache)
    out = tmp_path / "model"
    arguments = ["--data", str(data), "--cache", str(cache), "--out", str(out)]
    command = [sys.executable, "-X", "importtime", "-m", "rft.tiny.warmstart", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (out / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "rft.tiny.task" in imported and not imported & {"torch", "transformers", "reasoning_gym"}


def test_missing_data_gets_one_message(tmp_path):
    arguments = ["--data", str(tmp_path / "no.jsonl"), "--cache", str(tmp_path / "c"), "--out", str(tmp_path / "m")]
    done = subprocess.run(
        [sys.executable, "-m", "rft.tiny.warmstart", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0 and "found no file" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "c").exists() and not (tmp_path / "m").exists()
