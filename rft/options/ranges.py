"""Values of single options that no training can have, whatever the others say: refused before anything is loaded.

Upstream takes them all: a temperature of 0 divides by zero, a negative coefficient turns its term around.
"""

import math
from argparse import Namespace
from typing import NamedTuple


class Range(NamedTuple):
    """The numbers an option may have, from `low` to `high`, and what to set instead."""

    low: float
    high: float
    repair: float
    with_low: bool = True  # whether `low` itself is allowed
    with_high: bool = True


CLIP = "0 < LOW <= 1, HIGH > 0"
POSITIVE = (0.0, math.inf)
RANGES = {
    "temperature": Range(*POSITIVE, 1, with_low=False),  # the trainer divides logits by it
    "eval_temperature": Range(*POSITIVE, 0),
    "top_p": Range(0, 1, 1, with_low=False),
    "eval_n_samples_per_prompt": Range(1, math.inf, 1),
    "lora_rank": Range(*POSITIVE, 32),  # 0: no adapter
    "lora_dropout": Range(0, 1, 0, with_high=False),
    "eps_clip": Range(0, 1, 0.2, with_low=False),  # 1 - LOW bounds a ratio, which is never negative
    "value_clip": Range(*POSITIVE, 0.5, with_low=False),
    "init_kl_coef": Range(*POSITIVE, 0),
    "kl_target": Range(*POSITIVE, 0.1, with_low=False),
    "kl_horizon": Range(1, math.inf, 10_000),
    "gamma": Range(0, 1, 1),
    "lambd": Range(0, 1, 1),
    "actor_learning_rate": Range(*POSITIVE, 2e-5),  # 0: a control
    "critic_learning_rate": Range(*POSITIVE, 9e-6),
    "lr_warmup_ratio": Range(0, 1, 0.05),
    "max_norm": Range(*POSITIVE, 1),  # 0: gradients are not clipped
    "l2": Range(*POSITIVE, 0),
    "ema_beta": Range(0, 1, 0.992),
    "vllm_gpu_memory_utilization": Range(0, 1, 0.9, with_low=False),
    "reward_timeout": Range(*POSITIVE, 600, with_low=False),
    "seed": Range(0, 2**32 - 1, 42),  # of numpy
}


def require_possible(args: Namespace) -> None:
    """Refuse a number outside of its range, and NaN.

    Args:
        args: settled (`rft.options.settled.settle`).

    Raises:
        ValueError: the first one: found, wanted, repair.
    """
    for name, bounds in RANGES.items():
        value = getattr(args, name)
        if value is not None and not fits(value, bounds):
            _refuse(name, f"{value:g}", words(bounds), f"{bounds.repair:g}")
    if args.lora_rank > 0 and args.lora_alpha < 1:
        _refuse("lora_alpha", str(args.lora_alpha), "1 or more: the adapter is scaled by alpha / rank", args.lora_rank)
    pairs = (
        ("eps_clip_low_high", lambda low, high: 0 < low <= 1 and 0 < high < math.inf, CLIP, "0.2 0.28"),
        ("adam_betas", lambda one, two: 0 <= one < 1 and 0 <= two < 1, "both at least 0 and below 1", "0.9 0.95"),
        ("reward_clip_range", lambda low, high: low < high, "LOW below HIGH", "-10 10"),
    )  # fmt: skip
    for name, fit, wanted, repair in pairs:
        values = getattr(args, name)
        if values is not None and not fit(*values):
            _refuse(name, " ".join(f"{value:g}" for value in values), wanted, repair)


def fits(value: float, bounds: Range) -> bool:
    """Whether a number is in its range; NaN and infinity are in none."""
    above = bounds.low <= value if bounds.with_low else bounds.low < value
    below = value <= bounds.high if bounds.with_high else value < bounds.high
    return above and below and math.isfinite(value)


def words(bounds: Range) -> str:
    """A range as text."""
    low = f"{bounds.low:g} or more" if bounds.with_low else f"above {bounds.low:g}"
    if math.isinf(bounds.high):
        return low
    high = f"at most {bounds.high:g}" if bounds.with_high else f"below {bounds.high:g}"
    return f"{low}, {high}"


def _refuse(name: str, found: str, wanted: str, repair: object) -> None:
    raise ValueError(
        f"--{name}: an impossible value\n  found:  --{name} {found}\n  wanted: {wanted}\n  repair: --{name} {repair}"
    )
