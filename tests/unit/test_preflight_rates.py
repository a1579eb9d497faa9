"""Preflight's line on the learning rate: the values that it judges, and what merged weights keep of the updates."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from preflight_options import CONFIG_20B, CONFIG_120B, changed, options, refused, verdicts
from safetensors.torch import save_file

from rft.runs import lr_schedule
from rft.runs.preflight import rounding
from rft.runs.preflight.learning_rate import check_learning_rate, schedule, schedulers
from rft.runs.preflight.lines import GO, NO_GO, WARN

SMALL = CONFIG_20B | {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300}
RANK = "--lora_rank 32 --lora_alpha 32"


@pytest.mark.parametrize(
    ("text", "config", "verdict", "measured", "repair"),
    [
        # The launchers' own, and the sweep's.
        ("--lora_alpha 16 --actor_learning_rate 3e-3", SMALL, GO, "small model", ""),
        (f"{RANK} --actor_learning_rate 2e-5", CONFIG_20B, GO, "1e-05 to 0.0003", ""),
        (f"{RANK} --actor_learning_rate 1e-5", CONFIG_120B, GO, "1e-05 to 0.0003", ""),
        (f"{RANK} --actor_learning_rate 1e-4", CONFIG_20B, GO, "1e-05 to 0.0003", ""),
        ("--lora_rank 32 --lora_alpha 64 --actor_learning_rate 5e-6", CONFIG_20B, GO, "1e-05 to 0.0003", ""),
        (f"{RANK} --actor_learning_rate 0", CONFIG_20B, WARN, "0: nothing is learned", "2e-05"),
        # Too low: the first recipe's, and what no one would call a rate.
        ("--lora_rank 32 --lora_alpha 64 --actor_learning_rate 5e-7", CONFIG_20B, WARN, "will move little", "1e-05"),
        ("--lora_rank 64 --lora_alpha 128 --actor_learning_rate 1e-6", CONFIG_120B, WARN, "will move little", "1e-05"),
        (f"{RANK} --actor_learning_rate 1e-12", CONFIG_20B, WARN, "will move little", "2e-05, or RECIPE=tuned"),
        ("--lora_alpha 16 --actor_learning_rate 1e-12", SMALL, WARN, "will move little", "0.003"),
        # Too high.
        (f"{RANK} --actor_learning_rate 3e-3", CONFIG_20B, WARN, "may diverge", "2e-05"),
        (f"{RANK} --actor_learning_rate 3e-3", {}, WARN, "may diverge", "2e-05"),
        (f"{RANK} --actor_learning_rate 1e-2", CONFIG_20B, NO_GO, "collapsed", "2e-05"),
        ("--lora_alpha 16 --actor_learning_rate 5", SMALL, NO_GO, "collapsed", "0.003"),
        # All weights.
        ("--lora_rank 0 --actor_learning_rate 1e-6", CONFIG_20B, GO, "1e-06 to 5e-06", ""),
        ("--lora_rank 0 --actor_learning_rate 2e-5", CONFIG_20B, WARN, "may diverge", "1e-06"),
    ],
)
def test_the_value_is_judged(text, config, verdict, measured, repair):
    found = check_learning_rate(options(text), config, 768)
    refused(found, measured, repair, verdict)
    assert verdict == GO or found[0].repair


@pytest.mark.parametrize("rate", [math.nan, math.inf, -2e-5])
def test_what_is_no_rate_is_no_go(rate):
    """Also where nobody has refused it before."""
    found = check_learning_rate(changed(actor_learning_rate=rate), CONFIG_20B, 768)
    refused(found, "is no learning rate; usual for LoRA", "--actor_learning_rate 1e-05")


def test_an_alpha_of_zero_is_left_to_its_own_check():
    found = check_learning_rate(changed(actor_learning_rate=2e-5, lora_alpha=0), CONFIG_20B, 768)
    refused(found, "x alpha / rank = 0 will move little", "--actor_learning_rate 2e-05", WARN)


def test_the_schedule_is_judged():
    constant = "--lr_scheduler constant_with_warmup --lr_warmup_ratio 0.03"
    for kind in ("", constant, "--lr_scheduler constant"):
        assert verdicts(check_learning_rate(options(kind), SMALL, 768)) == {GO}
    slow = options("--num_episodes 400 --lr_warmup_ratio 0.5")
    refused(check_learning_rate(slow, SMALL, 768), "after optimizer step 20 of 9,600", "--lr_warmup_ratio")
    early = options("--num_episodes 100 --lr_warmup_ratio 0.0390 --lr_scheduler constant_with_warmup")
    refused(check_learning_rate(early, SMALL, 768), "warm-up of 94; ", "--lr_warmup_ratio", WARN)  # of 2,400
    if "inverse_sqrt" in schedulers():
        refused(check_learning_rate(options("--lr_scheduler inverse_sqrt"), SMALL, 768), "not judged", "cosine", WARN)
    refused(check_learning_rate(options(), SMALL, None), "not judged", "cosine", WARN)
    refused(check_learning_rate(options("--lr_scheduler linear"), SMALL, 768), "does not take", "cosine_with_min_lr")
    refused(check_learning_rate(options("--train_batch_size 256"), SMALL, 1), "no optimizer step", "more prompts")


def test_schedulers_that_the_trainer_can_build_are_known():
    from transformers.optimization import SchedulerType, get_scheduler

    for kind in SchedulerType:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        try:
            get_scheduler(kind, optimizer, 1, 10, {"min_lr_rate": lr_schedule.MIN_RATE})
            built = True
        except TypeError:
            built = False
        assert built == (kind.value in schedulers()), kind


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_a_number_is_rounded_as_torch_rounds_it(value):
    assert rounding.as_bf16(value) == float(torch.tensor(value, dtype=torch.float32).bfloat16())


def test_the_share_kept_is_the_one_of_merged_weights():
    """Of a real weight with B and A of a rank, every element of B as large as the sum of the rates."""
    torch.manual_seed(0)
    rows, features, rank = 64, 2880, 32
    weight = (0.02 * torch.randn(rows, features)).bfloat16()
    a = (torch.rand(rank, features) * 2 - 1) / math.sqrt(features)
    for moved, low, high in ((5e-6, 0.0, 0.2), (1e-4, 0.2, 0.8), (3e-3, 0.95, 1.05)):
        update = 2 * moved * torch.sign(torch.randn(rows, rank)) @ a
        change = (weight.float() + update).bfloat16().float() - weight.float()
        measured = float((change * update).sum() / (update * update).sum())
        deviation = 2 * math.sqrt(rank / (3 * features)) * moved
        drawn = random.Random(2).sample(weight.flatten().tolist(), rounding.DRAWN)
        assert low <= measured <= high
        assert rounding.kept_share(drawn, deviation) == pytest.approx(measured, abs=0.05)


def test_merged_serving_is_told_what_it_keeps():
    """The first recipe's 1,200 updates, against the tuned one's 100: the arithmetic of research_log.md."""
    first = "--lora_rank 32 --lora_alpha 64 --lr_warmup_ratio 0.05 --actor_learning_rate 5e-7 --rollout_batch_size 16"
    first += " --n_samples_per_prompt 8 --train_batch_size 16 --micro_train_batch_size 16"
    tuned = f"{RANK} --lr_scheduler constant_with_warmup --actor_learning_rate 2e-5 --rollout_batch_size 64"
    tuned += " --n_samples_per_prompt 16 --train_batch_size 1024"
    for recipe, prompts in ((first, 2400), (tuned, 6400)):
        assert len(check_learning_rate(options(recipe), CONFIG_20B, prompts)) == 1
    found = check_learning_rate(options(f"{first} --lora_serving merged"), CONFIG_20B, 2400)
    refused(found[1:], "keep at most 0.00", "--lora_serving exact", WARN)
    assert "after 8, " in found[1].measured and "after 1,200 of 1,200 updates" in found[1].measured
    found = check_learning_rate(options(f"{tuned} --lora_serving merged"), CONFIG_20B, 6400)
    assert [line.verdict for line in found] == [GO, GO] and found[1].name == "rounding"
    control = check_learning_rate(options(f"{tuned} --lora_serving merged --actor_learning_rate 0"), CONFIG_20B, 6400)
    assert [line.name for line in control] == ["learning rate"]


def test_the_weights_are_those_of_the_checkpoint(tmp_path):
    values = torch.linspace(-1, 1, 2 * rounding.DRAWN).bfloat16()
    tensors = {"a": torch.ones(3), "model.layers.0.self_attn.q_proj.weight": values}
    save_file(tensors, tmp_path / "model-00001-of-00002.safetensors")
    found, origin = rounding.read_weights(tmp_path)
    assert found == values[: rounding.DRAWN].tolist() and "model-00001-of-00002.safetensors" in origin


@pytest.mark.parametrize("content", [b"", b"\1\0\0", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_a_broken_file_is_left_to_the_line_about_the_model(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    found, origin = rounding.read_weights(tmp_path)
    assert len(found) == rounding.DRAWN and "typical" in origin
    assert check_with(tmp_path)[0].name == "rounding"


def check_with(folder):
    args = options(f"{RANK} --lora_serving merged --actor_learning_rate 2e-5")
    args.pretrain = str(folder)
    return rounding.check_rounding(args, CONFIG_20B, schedule(args, 768))
