"""`--micro_train_tokens`: what it settles, what it is refused with, and what preflight says of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_options import CONFIG_20B, EIGHT_GPUS, changed, options, refused, verdicts

from rft.options import batches, command
from rft.runs.preflight import batches as preflight
from rft.runs.preflight import memory
from rft.runs.preflight.lines import GO, WARN

# The tiny launcher's samples have up to 160 tokens; a rollout is 256 of them and one optimizer step.
TOKENS = "--actor resident --loss_normalization batch --micro_train_tokens"


def test_a_budget_counts_instead_of_sizes_in_samples():
    args = options(f"{TOKENS} 1600 --micro_train_batch_size 64 --micro_rollout_tokens 3200")
    assert args.use_dynamic_batch and not args.packing_samples
    assert (args.micro_train_batch_size, args.micro_rollout_batch_size, args.micro_rollout_tokens) == (1, 1, 3200)
    assert options(f"{TOKENS} 1600").micro_rollout_tokens == 1600
    off = options(f"{TOKENS} 1600 --micro_train_tokens 0")
    assert (off.use_dynamic_batch, off.micro_train_batch_size, off.micro_rollout_batch_size) == (False, 64, 64)


@pytest.mark.parametrize(
    ("text", "found", "repair"),
    [
        ("--use_dynamic_batch", "found:  --use_dynamic_batch\n", "--micro_train_tokens 640 --loss_normalization batch"),
        (
            "--use_dynamic_batch --train_max_tokens_per_gpu 9000 --rollout_max_tokens_per_gpu 18000",
            "--use_dynamic_batch --train_max_tokens_per_gpu 9000 --rollout_max_tokens_per_gpu 18000\n",
            "--micro_train_tokens 9000 --micro_rollout_tokens 18000 --loss_normalization batch",
        ),
        (f"{TOKENS} 900 --train_max_tokens_per_gpu 90", "found:  --train_max_tokens_per_gpu 90", "_tokens 90"),
        ("--micro_rollout_tokens 900", "--micro_rollout_tokens 900 without", "--micro_train_tokens 900"),
        (f"{TOKENS} 159", "wanted: 160 or more (--prompt_max_len 96 + --generate", "--micro_train_tokens 160"),
        (f"{TOKENS} -1", "found:  --micro_train_tokens -1", "--micro_train_tokens 160"),
        (f"{TOKENS} 900 --micro_rollout_tokens 80", "found:  --micro_rollout_tokens 80", "--micro_rollout_tokens 160"),
        (f"{TOKENS} 900 --loss_normalization micro_batch", "900 --loss_normalization micro_batch", "ion batch"),
        (f"{TOKENS} 900 --advantage_estimator gae", "a critic is not trained", "--micro_train_tokens 0"),
        (
            "--policy_loss_type gspo --micro_train_tokens 900 --entropy_loss_coef 0.01",
            "_coef 0.01",
            "without --entropy",
        ),
        (
            "--policy_loss_type gspo --micro_train_tokens 900 --use_kl_loss --init_kl_coef 0.1",
            "gspo --use_kl_loss\n",
            "without --use_kl_loss, or --micro_train_tokens 0",
        ),
        (f"{TOKENS} 900 --train_batch_size 100", "256 samples a rollout, --train_batch_size 100", "_size 64"),
        (f"{TOKENS} 900 --actor_num_gpus_per_node 3", "--train_batch_size 256, 3 ranks", "33 --train_batch_size 264"),
        (f"{TOKENS} 900 --train_batch_size 512", "256 samples a rollout", "--train_batch_size 256"),
        (f"{TOKENS} 900 --adam_offload --zero_stage 2", "found:  --zero_stage 2 --adam_offload", "--zero_stage 3"),
        (
            f"{TOKENS} 900 --init_kl_coef 0.1 --separate_reference_model --actor eager",
            "8 GPUs of --ref_num_nodes",
            "--ref_num_gpus_per_node 1",
        ),
    ],
)
def test_what_a_budget_does_not_go_with_is_refused(text, found, repair):
    with pytest.raises(ValueError, match=r"found:? (.|\n)*\n  wanted: (.|\n)*\n  repair: ") as refusal:
        options(text)
    assert found in str(refusal.value)
    assert repair in str(refusal.value).splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        f"{TOKENS} 160", f"{TOKENS} 900 --adam_offload", f"{TOKENS} 900 --zero_stage 2",
        f"{TOKENS} 900 --train_batch_size 64 --max_epochs 2", f"{TOKENS} 900 --on_policy_ratio_one",
        "--policy_loss_type gspo --micro_train_tokens 900", f"{TOKENS} 900 --use_dynamic_batch",
    ],
)  # fmt: skip
def test_what_goes_with_a_budget_is_not_refused(text):
    assert options(text).use_dynamic_batch


@settings(max_examples=200)
@given(prompts=st.integers(1, 40), n=st.integers(1, 9), train=st.integers(1, 400), actors=st.integers(1, 9))
def test_following_the_repair_ends_with_shares_that_are_even(prompts, n, train, actors):
    sizes = {"rollout_batch_size": prompts, "n_samples_per_prompt": n, "train_batch_size": train}
    args = changed(**sizes, actor_num_gpus_per_node=actors)
    try:
        batches.require_even_shares(args)
    except ValueError as refusal:
        words = str(refusal).splitlines()[-1].removeprefix("  repair: ").split()
        sizes |= {k.removeprefix("--"): int(v) for k, v in zip(words[::2], words[1::2], strict=True)}
        batches.require_even_shares(changed(**sizes, actor_num_gpus_per_node=actors))
    samples = sizes["rollout_batch_size"] * n
    assert samples % sizes["train_batch_size"] == sizes["train_batch_size"] % actors == 0


def test_preflight_says_how_many_micro_batches_there_are_at_the_most():
    (line,) = preflight.check_batches(options(f"{TOKENS} 1600 --micro_rollout_tokens 3200"))
    # 10 of 160 tokens in 1,600, so 26 for 256 samples; 20 in 3,200, so 13.
    assert line.verdict == GO and "at most 26 a rank and optimizer step, where samples have 160" in line.measured
    assert line.measured.endswith("before the update 13 of 3,200")
    eight = preflight.check_batches(options(f"{EIGHT_GPUS} {TOKENS} 16384"))
    assert verdicts(eight) == {GO} and "at most 2 a rank" in eight[0].measured  # 3 of 5,120: 6 for 16, on 4 ranks
    eager = preflight.check_batches(options(f"{TOKENS} 1600 --actor eager"))
    refused(eager, "--actor eager pads", "--actor resident", WARN)


def test_memory_counts_the_budget():
    """A budget of four of the longest samples is as much as four of them."""
    four = options(f"{EIGHT_GPUS} --micro_train_batch_size 4 --micro_rollout_batch_size 4 --actor eager")
    tokens = options(f"{EIGHT_GPUS} {TOKENS} {4 * (1024 + 4096)} --actor eager")
    assert memory.actor_bytes(tokens, CONFIG_20B) == pytest.approx(memory.actor_bytes(four, CONFIG_20B))


def test_a_command_with_sizes_below_one_is_left_to_preflight():
    args = command.settle(options(f"{TOKENS} 900 --ring_attn_size 1"))
    args.ring_attn_size = 0
    batches.require_even_shares(args)
