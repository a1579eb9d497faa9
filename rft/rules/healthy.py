"""Which numbers of a training step to look at, and between which bounds they are healthy.

Tiers and bounds: docs/sources.md; the names and units are those of docs/metrics.md, whose last column is checked
against these bounds. The monitor colours by them, the diagnosis and early stopping build on them; trends are theirs.
"""

from typing import NamedTuple


class Healthy(NamedTuple):
    """Bounds of one metric, inclusive; None where there is none. `tier`: 1 signal, 2 stability, 3 collapse."""

    tier: int
    low: float | None = None
    high: float | None = None


HEALTHY = {
    "sft_loss": Healthy(1),  # of a supervised run
    "reward_mean": Healthy(1),
    "correctness": Healthy(1, 0.02, 0.98),  # outside there is nothing left to learn from
    "correctness_lenient": Healthy(1),
    "lenient_disagreement": Healthy(1, high=0.05),
    "has_boxed": Healthy(1, low=0.9),
    "has_program": Healthy(1, low=0.9),
    "answered": Healthy(1, low=0.9),
    "searches": Healthy(1),
    "correctness_searches_0": Healthy(1),
    "correctness_searches_1": Healthy(1),
    "correctness_searches_2": Healthy(1),
    "group_mixed_share": Healthy(1, low=0.3),
    "grad_norm": Healthy(2, low=1e-9, high=50),
    "ppo_kl": Healthy(2, -0.05, 0.05),
    "ppo_clip_ratio": Healthy(2, high=0.4),
    "advantage_std": Healthy(2, low=1e-6),
    "entropy_mean": Healthy(2),
    "log_ratio_raw_max": Healthy(2, high=5),
    "ratio_max": Healthy(2, high=10),
    "log_ratio_abs_p99": Healthy(2, high=0.5),
    "mismatch_abs_mean": Healthy(2, high=0.05),  # docs/diagnosis.md says why
    "sync_kept_share": Healthy(2, low=0.5),
    "sync_output_kept_share": Healthy(2, low=0.5),
    "adapter_output_kept_share": Healthy(2, low=0.5),
    "sync_seconds": Healthy(2),
    "tokens_per_second_step": Healthy(2),
    "model_flops_utilization": Healthy(2),
    "turn_seconds": Healthy(2),
    "search_latency_p95": Healthy(2, high=10),
    "response_length": Healthy(3),
    "truncated": Healthy(3, high=0.5),
    "response_clip_ratio": Healthy(3, high=0.8),
    "high_reward_but_wrong": Healthy(3, high=0.0),
    "turn_tokens": Healthy(3),
    "forced_answer": Healthy(3),
    "invalid_action_share": Healthy(3, high=0.1),
    "information_cut_share": Healthy(3, high=0.5),
}


def is_healthy(name: str, value: float | None) -> bool | None:
    """Whether a value lies within its metric's bounds; None where there is no value or no bound."""
    bounds = HEALTHY.get(name)
    if bounds is None or value is None or bounds.low is bounds.high is None:
        return None
    return (bounds.low is None or value >= bounds.low) and (bounds.high is None or value <= bounds.high)
