"""Rollouts that do not depend on the number of engines, on timing, or on a resume."""

import hashlib
from collections import Counter
from copy import deepcopy


def sample_seed(seed: int, global_step: int, prompt: str, occurrence: int, sample: int) -> int:
    """A 63-bit sampling seed from what names a sample: the run's seed, the step, the prompt and the sample's number.

    `occurrence` tells equal prompts of one batch apart. Hashed, so that neighbouring seeds share no bits.
    """
    key = f"{seed}\0{global_step}\0{prompt}\0{occurrence}\0{sample}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def plan(args, prompts: list[str], generate_kwargs: dict, first_index: int) -> list[dict]:
    """What tells the samples of each prompt apart, for `assign`: one dict a prompt.

    Args:
        args: OpenRLHF's; `rollout_seeds` is `request` or `engine`.
        prompts: the prompts of one dispatch.
        generate_kwargs: with `global_step`, the number of steps already trained.
        first_index: prompts of this step dispatched before these.
    """
    seen, plans = Counter(), []
    for index, prompt in enumerate(prompts, first_index):
        place = {"prompt_index": index}
        if args.rollout_seeds == "request":
            place |= {"seed": args.seed, "step": generate_kwargs.get("global_step", 0), "occurrence": seen[prompt]}
        seen[prompt] += 1
        plans.append(place)
    return plans


def assign(sampling_params, prompt: str, place: dict | None, sample: int):
    """A copy of `sampling_params` for one sample: its place in the batch, and its seed where requests have seeds."""
    params = deepcopy(sampling_params)
    place = place or {}
    params.extra_args = {"prompt_index": place.get("prompt_index"), "sample_index": sample}
    if "seed" in place:
        params.seed = sample_seed(place["seed"], place["step"], prompt, place["occurrence"], sample)
    return params
