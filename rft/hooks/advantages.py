"""Advantages of a group's samples from their rewards; docs/loss.md says what each estimator means."""

import torch

GROUP_EPSILON = 1e-6  # rewards that differ by float32's rounding only (6e-8 at 1) then weigh next to nothing


def group_advantages(rewards: torch.Tensor, estimator: str) -> torch.Tensor:
    """Each sample's advantage over the samples of the same prompt, (groups, samples), dtype of `rewards`.

    A group whose rewards are all equal has advantages of exactly 0. The mean of eight times 0.9 is not 0.9 in float32;
    upstream divides what is left by `std + 1e-9`, and the group that can teach nothing gets the largest advantages.

    Args:
        rewards: (groups, samples), floating point.
        estimator: `--advantage_estimator`. `gae` and `reinforce` have no group baseline: rewards as they are.
    """
    if estimator == "rloo":
        others = (rewards.sum(-1, keepdim=True) - rewards) / (rewards.size(-1) - 1)
        centred = rewards - others
    elif estimator in ("reinforce_baseline", "dr_grpo", "group_norm"):
        centred = rewards - rewards.mean(-1, keepdim=True)
    else:
        return rewards
    if estimator == "group_norm":
        centred = centred / (rewards.std(-1, keepdim=True) + GROUP_EPSILON)
    constant = rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)
    return centred.masked_fill(constant, 0.0)
