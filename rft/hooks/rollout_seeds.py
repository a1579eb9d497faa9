"""Rollouts that do not depend on the number of engines, on timing, or on a resume."""

import hashlib
from argparse import Namespace
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import SamplingParams


def sample_seed(seed: int, global_step: int, prompt: str, occurrence: int, sample: int) -> int:
    """A 63-bit sampling seed from what names a sample: the run's seed, the step, the prompt and the sample's number.

    `occurrence` tells equal prompts of one batch apart. Hashed, so that neighbouring seeds share no bits.
    """
    return _hashed(seed, global_step, prompt, occurrence, sample)


def plan(args: Namespace, prompts: list[str], generate_kwargs: dict, first_index: int) -> list[dict]:
    """What tells the samples of each prompt apart, and the time that their rewards may take: one dict a prompt.

    Args:
        args: OpenRLHF's; `rollout_seeds` is `request` or `engine`; `reward_timeout` in seconds.
        prompts: the prompts of one dispatch.
        generate_kwargs: with `global_step`, the number of steps already trained.
        first_index: prompts of this step dispatched before these.
    """
    seen, plans = Counter(), []
    for index, prompt in enumerate(prompts, first_index):
        place = {"prompt_index": index, "reward_timeout": args.reward_timeout}
        if args.rollout_seeds == "request":
            place |= {"seed": args.seed, "step": generate_kwargs.get("global_step", 0), "occurrence": seen[prompt]}
        seen[prompt] += 1
        plans.append(place)
    return plans


def assign(sampling_params: "SamplingParams", prompt: str, place: dict | None, sample: int):
    """A copy of `sampling_params` for one sample: its place in the batch, and its seed where requests have seeds.

    What the reward needs to know travels in `extra_args`, see `rft.hooks.rewards`.
    """
    params = deepcopy(sampling_params)
    place = place or {}
    kept = {name: place.get(name) for name in ("prompt_index", "reward_timeout")}
    params.extra_args = kept | {"sample_index": sample}
    if "seed" in place:
        params.seed = sample_seed(place["seed"], place["step"], prompt, place["occurrence"], sample)
    return params


def of_turn(sampling_params: "SamplingParams", seed: int | None, turn: int):
    """A copy of `sampling_params` for one turn of an agent, with a seed of that turn's own.

    A request's noise follows from its seed alone: with one seed for all turns, the first token of every answer is drawn
    with the same noise, the second likewise, and so on. Turn 0 keeps the sample's seed, so that a sample of one turn is
    what it was. A seed that the environment has set itself stays as it is.

    Args:
        sampling_params: those of this turn; an environment may have returned new ones, without a seed.
        seed: the sample's, see `assign`; None where engines seed, and then the turn has none either.
        turn: turns of this sample before this one.
    """
    params = deepcopy(sampling_params)
    if turn and seed is not None and params.seed in (None, seed):
        params.seed = _hashed(seed, "turn", turn)
    return params


def _hashed(*key) -> int:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
