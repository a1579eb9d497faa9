"""The sums of `rft.tiny.task`, warm-started on answers of which few have their box: what a base model is to SFT.

Three of ten answers of the warm start are `\\boxed{46}`, the others `{46}`; nothing in the problem says which. The
rows to learn from (`supervised`) are answers in the same two styles, careless and careful, all of them boxed: what they
teach is the format, and the habit that GRPO improves stays as it was.
"""

import random

from rft.tiny import task

SIZES = task.SIZES | {"sft_train": 512, "sft_dev": 64}
TEXTS = task.TEXTS
BOXED_SHARE = 0.3
CARELESS_SHARE = 0.65  # as in the warm start (rft.tiny.supervised)

read_split = task.read_split


def make_splits(seed: int = 0, sizes: dict[str, int] = SIZES) -> dict[str, list[dict]]:
    """`rft.tiny.task.make_splits`; the rows of `sft_train` and `sft_dev` have the turn to learn in `output`."""
    splits = task.make_splits(seed, sizes)
    draw = random.Random(seed)
    for name in ("sft_train", "sft_dev"):
        splits[name] = [supervised(problem, draw) for problem in splits[name]]
    return splits


def supervised(problem: dict, draw: random.Random) -> dict:
    """A problem with a worked and boxed answer, in one of the two styles."""
    style = "careless" if draw.random() < CARELESS_SHARE else "careful"
    thinking, content = task.worked_turn(problem, style)
    return problem | {"output": [{"role": "assistant", "thinking": thinking, "content": content}]}


def worked_turn(problem: dict, style: str) -> tuple[str, str]:
    """Analysis and final text for the warm start; drawn by the problem, the same each time."""
    analysis, final = task.worked_turn(problem, style)
    boxed = random.Random(problem["id"]).random() < BOXED_SHARE
    return analysis, final if boxed else final.removeprefix("\\boxed")
