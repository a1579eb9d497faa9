"""What a training step did to the policy, over all its action tokens and all ranks.

Upstream averages per-micro-batch numbers, which is wrong for extremes and quantiles; here the tokens themselves are
kept, about 2 MB a quantity for 128 samples of 4,096 tokens, and reduced once a step.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from rft.hooks import trainer_devices
from rft.hooks.grad_norm import grad_norm
from rft.hooks.loss import LOG_RATIO_BOUND

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from openrlhf.models import PolicyLoss
    from openrlhf.trainer.ppo_utils.experience_maker import Experience


# What OpenRLHF reports of a micro-batch and is a mean over its action tokens; all else is one over its samples.
TOKEN_MEANS = ("policy_loss", "entropy_loss", "ppo_kl", "ppo_clip_ratio", "vllm_kl", "kl", "logprobs_diff")


class StepMetrics:
    """Collects one rank's training step, micro-batch by micro-batch; `reduce` empties it."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[np.ndarray]] = {}
        self.sums: dict[str, list[float]] = {}  # of OpenRLHF's own numbers: weighted sum, weight
        self.log_ratio_raw_max: list[float] = []
        self.grad_norms: list[float] = []
        self.optimizer_steps = 0

    def begin(self) -> None:
        """Call before the step's first micro-batch: the memory held up to now is the experience's."""
        trainer_devices.end_phase("experience")

    def add(
        self,
        engine: "DeepSpeedEngine",
        loss_fn: "PolicyLoss",
        experience: "Experience",
        new_log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        entropy: torch.Tensor | None,
    ) -> None:
        """Keep a micro-batch's action tokens; call between the loss and the backward pass.

        Args:
            engine: the actor's `DeepSpeedEngine`.
            loss_fn: the `PolicyLoss` after its forward, see `rft.hooks.loss.clamped_log_ratio` and, where it corrects
                for the engine's policy, `rft.hooks.corrections.correct`.
            experience: with `action_mask`, `advantages`, `action_log_probs` (of the trainer before the update) and
                `rollout_log_probs` (of the engine; None for other sources), each (batch, actions).
            new_log_probs, old_log_probs: (batch, actions), what the loss compared.
            entropy: (batch, seq - 1), nats, or None when it was not computed.
        """
        self.optimizer_steps = engine.global_steps
        mask = experience.action_mask.bool()
        self._keep("advantage", experience.advantages, mask)
        self._keep("log_ratio", new_log_probs - old_log_probs, mask)
        if entropy is not None:
            self._keep("entropy", entropy[:, -mask.shape[1] :], mask)
        if experience.rollout_log_probs is not None:
            self._keep("mismatch", experience.action_log_probs - experience.rollout_log_probs, mask)
        for name, values in getattr(loss_fn, "correction", {}).items():
            self._keep(f"correction_{name}", values, mask)
        if loss_fn.log_ratio_raw_max is not None:
            self.log_ratio_raw_max.append(loss_fn.log_ratio_raw_max)

    def add_status(self, status: dict[str, float], experience: "Experience", loss_fn: "PolicyLoss") -> None:
        """Keep what OpenRLHF reports of a micro-batch, see `status_sums`."""
        for name, (value, weight) in status_sums(status, experience, loss_fn.token_level_loss).items():
            kept = self.sums.setdefault(name, [0.0, 0.0])
            kept[0] += value
            kept[1] += weight

    def add_grad_norm(self, engine: "DeepSpeedEngine") -> None:
        """Keep the gradient's norm before clipping, if `engine` has made an optimizer step since `add`."""
        if engine.global_steps > self.optimizer_steps:
            self.grad_norms.append(grad_norm(engine))

    def reduce(self) -> dict[str, float]:
        """Metrics over the tokens and samples of every rank, equal on each; the collector is empty afterwards."""
        trainer_devices.end_phase("train")
        tokens = {name: np.concatenate(parts) for name, parts in self.tokens.items()}
        mine = tokens, self.log_ratio_raw_max, self.sums, trainer_devices.mine()
        everyone = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, mine)
        tokens = {
            name: np.concatenate([vectors[name] for vectors, *_ in everyone if name in vectors])
            for name in dict.fromkeys(name for vectors, *_ in everyone for name in vectors)
        }
        metrics = means([sums for _, _, sums, _ in everyone]) | token_metrics(tokens)
        metrics |= trainer_devices.metrics([device for *_, device in everyone])
        raw = [value for _, values, *_ in everyone for value in values]
        if raw:
            metrics["log_ratio_raw_max"] = max(raw)
        if self.grad_norms:
            metrics["grad_norm"] = sum(self.grad_norms) / len(self.grad_norms)
            metrics["grad_norm_max"] = max(self.grad_norms, key=lambda norm: math.inf if math.isnan(norm) else norm)
        self.__init__()
        return metrics

    def _keep(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        self.tokens.setdefault(name, []).append(values.detach()[mask].float().cpu().numpy())


def status_sums(
    status: dict[str, float], experience: "Experience", token_level_loss: bool
) -> dict[str, tuple[float, float]]:
    """(weighted sum, weight) of each number of a micro-batch; sums of both are divided once, over all of a step.

    A mean of means of micro-batches would weigh a token, or a sample, by the others of its micro-batch.

    Args:
        status: what `ActorPPOTrainer.training_step` returns: means over the micro-batch, by name.
        experience: with `action_mask` (batch, actions) and `info`, of a number or a tensor a sample, or a mean over the
            micro-batch's action tokens.
        token_level_loss: whether the policy loss is a mean over tokens; gspo's is one over responses.
    """
    tokens = experience.action_mask.sum(-1).double().cpu()
    ones = torch.ones_like(tokens)
    by_response = set() if token_level_loss else {"policy_loss"}
    found = {}
    for name, mean in status.items():
        values = torch.as_tensor(experience.info.get(name, mean), dtype=torch.float64).cpu()
        weight = tokens if name in TOKEN_MEANS and name not in by_response else ones
        # A sample without action tokens has the mean 0 / 0, and weighs nothing.
        terms = torch.where(weight > 0, values * weight, 0.0) if values.ndim else values * weight.sum()
        found[name] = (terms.sum().item(), weight.sum().item())
    return found


def means(sums: list[dict[str, list[float]]]) -> dict[str, float]:
    """Means of what ranks have summed up, each a dict of (weighted sum, weight); without what nothing weighs."""
    totals = {
        name: [sum(part[name][i] for part in sums if name in part) for i in (0, 1)] for part in sums for name in part
    }
    return {name: value / weight for name, (value, weight) in totals.items() if weight}


def token_metrics(tokens: dict[str, np.ndarray]) -> dict[str, float]:
    """Statistics of the token vectors (tokens,): see docs/metrics.md for each name.

    `mismatch` is the trainer's log-probability of a sampled token minus the engine's, before any update on it. Its KL
    is the k3 estimate of KL(engine, trainer), which is never negative (Schulman, "Approximating KL divergence").
    """
    metrics = {}
    if (advantage := tokens.get("advantage")) is not None and advantage.size:
        metrics["advantage_mean"] = advantage.mean()
        metrics["advantage_std"] = advantage.std()
        metrics["advantage_min"] = advantage.min()
        metrics["advantage_max"] = advantage.max()
    if (entropy := tokens.get("entropy")) is not None and entropy.size:
        metrics["entropy_mean"] = entropy.mean()
        metrics["entropy_p10"], metrics["entropy_p90"] = np.quantile(entropy, [0.1, 0.9])
    if (log_ratio := tokens.get("log_ratio")) is not None and log_ratio.size:
        clamped = np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        metrics["log_ratio_max"] = clamped.max()
        metrics["log_ratio_min"] = clamped.min()
        metrics["ratio_max"] = np.exp(clamped.max())
        metrics["log_ratio_abs_p99"] = np.quantile(np.abs(clamped), 0.99)
        metrics["tokens_in_batch"] = log_ratio.size
    if (weight := tokens.get("correction_weight")) is not None and weight.size:
        metrics["correction_weight_mean"] = weight.mean()
        for name in ("correction_truncated", "correction_masked"):
            if name in tokens:
                metrics[f"{name}_share"] = tokens[name].mean()
    if (mismatch := tokens.get("mismatch")) is not None and mismatch.size:
        metrics["mismatch_abs_mean"] = np.abs(mismatch).mean()
        metrics["mismatch_abs_p99"] = np.quantile(np.abs(mismatch), 0.99)
        bounded = np.clip(mismatch, -LOG_RATIO_BOUND, LOG_RATIO_BOUND).astype(np.float64)
        metrics["mismatch_kl"] = (np.expm1(bounded) - bounded).mean()
    return {name: float(value) for name, value in metrics.items()}
