"""The losses as their papers write them, token by token in float64: the reference for what is trained.

TIS: F. Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).
Token- and sequence-level MIS: J. Liu, Y. Li et al., "When Speed Kills Stability" (2025).
IcePop: Ling Team, "Every Step Evolves" (arXiv 2510.18855), M(k). PPO: arXiv 1707.06347, eq. 7. GRPO: arXiv 2402.03300.
"""

import math
from statistics import fmean, stdev

KINDS = ("tis", "token-mis", "seq-mis", "icepop")


def ratios(trainer: list[float], engine: list[float]) -> list[float]:
    return [math.exp(a - b) for a, b in zip(trainer, engine, strict=True)]


def weights(kind: str, trainer: list[float], engine: list[float], bounds: list[float]) -> list[float]:
    """Of one response, from the log-probabilities of its tokens before the update; bounds: [C], for IcePop [α, β]."""
    rho = ratios(trainer, engine)
    if kind == "tis":
        return [min(r, bounds[0]) for r in rho]
    if kind == "token-mis":
        return [r if r <= bounds[0] else 0.0 for r in rho]
    if kind == "seq-mis":
        product = math.exp(math.fsum(trainer) - math.fsum(engine))
        return [product if product <= bounds[0] else 0.0] * len(rho)
    return [r if bounds[0] <= r <= bounds[1] else 0.0 for r in rho]


def decisive(kind: str, trainer: list[float], engine: list[float]) -> list[float]:
    """The logarithms that are compared with the bounds'."""
    tokens = [a - b for a, b in zip(trainer, engine, strict=True)]
    return [math.fsum(tokens)] if kind == "seq-mis" else tokens


def clipped_term(new: float, old: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """min(r A, clip(r, 1 - low, 1 + high) A) of one token, and its derivative by log π(token)."""
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    if ratio * advantage <= clipped * advantage:
        return ratio * advantage, ratio * advantage
    return clipped * advantage, 0.0


def group_norm(rewards: list[float], epsilon: float) -> list[float]:
    mean, deviation = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (deviation + epsilon) for reward in rewards]


def k3(log_ratio: float) -> tuple[float, float]:
    """Of log(policy / reference) at a token that the policy sampled: the estimate, and its derivative by log π."""
    return math.exp(-log_ratio) - 1 + log_ratio, 1 - math.exp(-log_ratio)
