"""Values that no training can have are refused by launcher, preflight and trainer with one message, and one repair."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_options import TINY, options

from rft.options import check, command
from rft.options.ranges import RANGES, Range, fits, words

IMPOSSIBLE = [
    ("--temperature 0", "above 0"),
    ("--temperature=-1", "above 0"),
    ("--temperature nan", "above 0"),
    ("--temperature inf", "above 0"),
    ("--eval_temperature=-0.1", "0 or more"),
    ("--top_p 0", "above 0, at most 1"),
    ("--top_p 7", "above 0, at most 1"),
    ("--eval_n_samples_per_prompt 0", "1 or more"),
    ("--lora_rank=-8", "0 or more"),
    ("--lora_alpha 0", "alpha / rank"),
    ("--lora_alpha=-16", "alpha / rank"),
    ("--lora_dropout 1", "0 or more, below 1"),
    ("--eps_clip 20", "above 0, at most 1"),
    ("--eps_clip 0", "above 0, at most 1"),
    ("--eps_clip_low_high 20 20", "0 < LOW <= 1"),
    ("--eps_clip_low_high 0.2 0", "HIGH > 0"),
    ("--init_kl_coef=-0.01", "0 or more"),
    ("--actor_learning_rate=-5e-7", "0 or more"),
    ("--actor_learning_rate inf", "0 or more"),
    ("--critic_learning_rate=-1", "0 or more"),
    ("--lr_warmup_ratio 5", "0 or more, at most 1"),
    ("--gamma 1.5", "0 or more, at most 1"),
    ("--lambd=-1", "0 or more, at most 1"),
    ("--max_norm=-1", "0 or more"),
    ("--adam_betas 0.9 1", "below 1"),
    ("--reward_clip_range 1 1", "LOW below HIGH"),
    ("--vllm_gpu_memory_utilization 90", "above 0, at most 1"),
    ("--reward_timeout 0", "above 0"),
    ("--seed=-1", "0 or more"),
    ("--advantage_estimator group_norm --n_samples_per_prompt 1", "2 or more"),
    ("--n_samples_per_prompt 0", "2 or more"),
]
POSSIBLE = (
    "--actor_learning_rate 0",
    "--eval_temperature 0",
    "--lora_rank 0 --lora_alpha 0",
    "--max_norm 0",
    "--top_p 1e-6",
)
POSSIBLE += ("--eps_clip_low_high 0.2 0.28", "--eps_clip 1", "--init_kl_coef 0", "--seed 4294967295")  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), IMPOSSIBLE)
def test_launcher_preflight_and_trainer_refuse_with_one_message(text, wanted):
    with pytest.raises(ValueError, match=r"\n  found:  (.|\n)*\n  wanted: (.|\n)*\n  repair: ") as refusal:
        options(text)
    assert wanted in str(refusal.value).splitlines()[-2]
    with pytest.raises(SystemExit) as trainer:
        check(command.trainer_parser().parse_args([*TINY.split(), *text.split()]))
    assert trainer.value.code == f"error: {refusal.value}"
    repair = str(refusal.value).rpartition("repair: ")[2]
    options(f"{text} {repair}" if repair.startswith("--") else "")  # pasted behind the command, it is taken


@pytest.mark.parametrize("text", POSSIBLE)
def test_edges_that_mean_something_stay(text):
    options(text)


def test_defaults_and_repairs_are_possible():
    parser = command.trainer_parser()
    for name, bounds in RANGES.items():
        default = parser.get_default(name)
        assert default is None or fits(default, bounds), name
        assert fits(bounds.repair, bounds), name


@given(st.floats(allow_nan=True), st.floats(-5, 5), st.floats(0, 5), st.booleans(), st.booleans())
def test_a_range_is_what_its_words_say(value, low, width, with_low, with_high):
    bounds = Range(low, low + width, 0, with_low, with_high)
    text = words(bounds)
    lower = value >= low if text.startswith(f"{low:g} or more") else value > low
    upper = value <= low + width if "at most" in text else value < low + width
    assert fits(value, bounds) == (lower and upper)
