"""Numerical safety and diagnostics of the policy loss; every tensor is (batch, actions) unless noted."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from openrlhf.models import PolicyLoss
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from torch.utils.data import DataLoader

LOG_RATIO_BOUND = 20.0  # exp(20) = 4.9e8: far beyond any useful ratio, far below overflow


def clamped_log_ratio(loss_fn: "PolicyLoss", log_ratio: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
    """Clamp log(new / old) to [-20, 20] and leave the micro-batch's tails on `loss_fn` (a `PolicyLoss`).

    Sets `log_ratio_raw_max` (before the clamp), `log_ratio_max`, `log_ratio_min`, `ratio_max`, `log_ratio_abs_p99` and
    `tokens_in_batch`, plain numbers over action tokens only; nats, but for the ratio and the count. A micro-batch
    without action tokens has None for each but the count.

    Source: upstream clamps from 0.10.3 on and has no tails; clamp and tails as in the first recipe (docs/sources.md).
    """
    clamped = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    mask = torch.ones_like(log_ratio, dtype=torch.bool) if action_mask is None else action_mask.bool()
    for name, value in ratio_tails(log_ratio.detach()[mask], clamped.detach()[mask]).items():
        setattr(loss_fn, name, value)
    return clamped


def ratio_tails(raw: torch.Tensor, clamped: torch.Tensor) -> dict[str, float | None]:
    """The tails of a micro-batch's log-ratios, from the vectors (tokens,) before and after clamping."""
    names = ("log_ratio_raw_max", "log_ratio_max", "log_ratio_min", "ratio_max", "log_ratio_abs_p99")
    if not raw.numel():
        return {**dict.fromkeys(names), "tokens_in_batch": 0}
    clamped = clamped.float()
    # The nearest rank by selection: torch.quantile sorts, and refuses more than 16 million values.
    rank = max(1, round(0.99 * clamped.numel()))
    p99 = clamped.abs().kthvalue(rank).values
    highest = clamped.max()
    values = torch.stack([raw.float().max(), highest, clamped.min(), highest.exp(), p99]).tolist()
    return {**dict(zip(names, values, strict=True)), "tokens_in_batch": raw.numel()}


def token_weights(token_counts: list[int], accumulation: int, ranks: int, all_reduce: Callable) -> list[float]:
    """Factors that turn means over micro-batches into one mean over all action tokens of an optimizer step.

    DeepSpeed averages the losses of `accumulation` micro-batches and of `ranks` data-parallel ranks, and each of them
    is a mean over its own tokens: a token in a short micro-batch counts more. The factor `tokens · accumulation ·
    ranks / tokens of the whole step` takes that out, so that the gradient does not depend on the split (upstream from
    0.10.4 on, #1249).

    Args:
        token_counts: action tokens of each micro-batch of this rank, in the order in which they are trained on.
        accumulation: micro-batches an optimizer step.
        ranks: data-parallel ranks.
        all_reduce: sums a float tensor (steps,) over the ranks and returns it.
    """
    counts = torch.tensor(token_counts, dtype=torch.float64)
    steps = counts.split(accumulation)
    totals = all_reduce(torch.stack([step.sum() for step in steps])).tolist()
    return [
        count * len(step) * ranks / (total or 1)  # a step of cut answers, all masked, has no token
        for step, total in zip(steps, totals, strict=True)
        for count in step.tolist()
    ]


def with_loss_scales(dataloader: "DataLoader", strategy: "DeepspeedStrategy") -> list:
    """The micro-batches of an epoch, each with `loss_scale`, its factor of `token_weights`."""
    experiences = list(dataloader)
    counts = [int(e.action_mask.sum()) for e in experiences]
    scales = token_weights(
        counts, strategy.accumulated_gradient, strategy.world_size, lambda tensor: strategy.all_reduce(tensor, "sum")
    )
    for experience, scale in zip(experiences, scales, strict=True):
        experience.loss_scale = scale
    return experiences
