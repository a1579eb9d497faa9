"""Numbers about a step's samples: how rewards are spread, and how many groups carry a gradient."""

import numpy as np

from rft.hooks.turn_metrics import column, turn_metrics


def sample_metrics(samples: list, n_samples_per_prompt: int) -> dict[str, float]:
    """Statistics over the rollouts of one training step.

    Args:
        samples: OpenRLHF `Experience`s of one sample each, the samples of a prompt side by side: `rewards` (1,), and
            `info` with tensors (1,), `correctness` among them where the reward function logs it.
        n_samples_per_prompt: group size.

    Returns:
        `group_count`; `reward_mean`, `reward_std` (population), `reward_min`, `reward_max`, `reward_p90`; with groups
        of two or more
        `group_zero_variance_share` (no advantage, so no gradient) and `group_mixed_share` (some samples right, some
        wrong); `high_reward_but_wrong`, the share of samples with a reward above 0.5 whose answer is wrong, where
        `correctness` is known: below 0.5 of it, or of `pass_rate`, where a program may be right in part; and what
        `turn_metrics` finds in conversations.

    Groups without variance: a binary reward leaves 43% of groups of 8 without a gradient at a solve rate of 0.1.
    """
    if any(sample.rewards is None for sample in samples):  # a reward model scores later
        return {}
    rewards = np.array([float(sample.rewards[0]) for sample in samples])
    metrics = {
        "group_count": len(samples) / n_samples_per_prompt,
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
        "reward_min": rewards.min(),
        "reward_max": rewards.max(),
        "reward_p90": np.quantile(rewards, 0.9),
    }
    correct = column(samples, "correctness")
    if n_samples_per_prompt > 1:
        groups = rewards.reshape(-1, n_samples_per_prompt)
        metrics["group_zero_variance_share"] = (groups.max(1) == groups.min(1)).mean()
        right = (rewards if correct is None else correct).reshape(-1, n_samples_per_prompt) > 0.5
        metrics["group_mixed_share"] = (right.any(1) & ~right.all(1)).mean()
    if correct is not None:
        passed = column(samples, "pass_rate")
        metrics["high_reward_but_wrong"] = ((rewards > 0.5) & ((correct if passed is None else passed) < 0.5)).mean()
    return {name: float(value) for name, value in metrics.items()} | turn_metrics(samples)
