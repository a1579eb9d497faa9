"""Per-token estimates of KL(policy, reference): J. Schulman, "Approximating KL divergence" (2020), k1, k2 and k3."""

import torch

from rft.hooks.loss import LOG_RATIO_BOUND

PENALTY_BOUND = 10.0  # nats, upstream's: one token's share of a reward


def approx_kl(log_probs: torch.Tensor, log_probs_base: torch.Tensor, kl_estimator: str = "k1") -> torch.Tensor:
    """The estimate for each token, float32, shape of `log_probs`; with u = log(reference / policy): -u, u²/2, eᵘ-1-u.

    As a loss (`log_probs` has a gradient) each estimate pulls every token back, however far it has moved: k3 continues
    as its tangent where u exceeds 20 nats, so that value and gradient stay finite. Upstream clamps the finished
    estimate to 10, which takes the gradient from the tokens that have moved farthest (k3 beyond 2.6 nats, k2 beyond
    4.5), and makes NaN where eᵘ overflows, beyond 88. As a penalty in the reward, which has no gradient, the estimate
    stays within ±10 as upstream's.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens, nats.
        log_probs_base: the reference policy's.
        kl_estimator: `k1`, `k2` or `k3`.
    """
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_estimator == "k1":
        kl = log_ratio
    elif kl_estimator == "k2":
        kl = log_ratio.square() / 2
    else:
        kl = _k3(-log_ratio)
    return kl if log_probs.requires_grad else kl.clamp(-PENALTY_BOUND, PENALTY_BOUND)


def _k3(u: torch.Tensor) -> torch.Tensor:
    """eᵘ - 1 - u up to the bound, its tangent there beyond. A policy samples such a token once in e²⁰ times."""
    bounded = u.clamp(max=LOG_RATIO_BOUND)
    grown = bounded.exp()
    return grown - 1 - bounded + (grown - 1) * (u - bounded)  # within the bound upstream's value, bit for bit
