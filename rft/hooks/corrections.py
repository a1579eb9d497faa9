"""Importance weights for rollouts that another policy sampled than the one that the trainer computes: docs/loss.md."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from openrlhf.models import PolicyLoss


def correct(loss_fn: "PolicyLoss", log_ratio: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    """The weights for `loss_fn` (a `PolicyLoss`), which keeps them as `correction` for the step's metrics.

    Args:
        loss_fn: with `vllm_is_correction_type`, and the bounds as `vllm_is_truncated_threshold`.
        log_ratio, action_mask: see `rollout_weights`.
    """
    kind = loss_fn.vllm_is_correction_type
    weights, limited = rollout_weights(kind, log_ratio, action_mask, *loss_fn.vllm_is_truncated_threshold)
    loss_fn.correction = {"weight": weights, "truncated" if kind == "tis" else "masked": limited}
    return weights


def rollout_weights(
    kind: str, log_ratio: torch.Tensor, action_mask: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights of the trainer's policy over the engine's, without gradient, and which of them hit a bound.

    With ρ = p_trainer / p_engine of a token, and for `seq-mis` their product over the response instead:
    `tis` min(ρ, high); `token-mis` and `seq-mis` ρ where ρ <= high, else 0; `icepop` ρ where low <= ρ <= high, else 0.
    Sources: docs/loss.md.

    Args:
        kind: one of `rft.options.loss.CORRECTIONS`.
        log_ratio: trainer's minus engine's log-probability of each sampled token, (batch, actions), nats.
        action_mask: 1 for action tokens, (batch, actions); what other positions hold does not matter.
        low: IcePop's α; the others have no lower bound and do not look at it.
        high: the cap C, IcePop's β.

    Returns:
        The weights (batch, actions), dtype of `log_ratio`, finite for any finite ratio; and a bool tensor (batch,
        actions), true where a weight was truncated or set to 0.
    """
    dtype = log_ratio.dtype
    log_ratio = log_ratio.detach().masked_fill(~action_mask.bool(), 0.0)
    if kind == "seq-mis":  # in float64: a sum of thousands of terms
        log_ratio = log_ratio.double().sum(-1, keepdim=True).expand_as(log_ratio)
    ratio = log_ratio.exp()
    limited = ratio > high
    if kind == "icepop":
        limited |= ratio < low
    weights = ratio.clamp(max=high) if kind == "tis" else ratio.masked_fill(limited, 0.0)
    return weights.to(dtype), limited
