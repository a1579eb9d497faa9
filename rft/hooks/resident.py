"""The resident actor (`rft.actor`) behind OpenRLHF's `Actor`: padded micro-batches in, log-probabilities out."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from deepspeed.accelerator import get_accelerator

from rft.actor.load import load_resident
from rft.actor.model import ResidentGptOss
from rft.actor.packed import pack

if TYPE_CHECKING:
    from openrlhf.models import Actor


@dataclass(frozen=True)
class Resident:
    """What an `Actor` with `--actor resident` does otherwise."""

    float32_logits: bool  # --head_dtype
    entropy_in_loss: bool  # whether --entropy_loss_coef is a term of the loss, or only logs
    shard_experts: int  # ranks that split the experts

    def load(self, pretrain: str, *, torch_dtype: torch.dtype, **_: object) -> ResidentGptOss:
        """In the place of `from_pretrained`, whose arguments it takes: `load_resident` on this rank's device."""
        device = get_accelerator().current_device_name()
        model = load_resident(pretrain, device, torch_dtype, self.shard_experts)
        held = sum(buffer.numel() for name, buffer in model.named_buffers() if ".experts." in name)
        print(f"resident actor: {held / 2**30:.1f} GiB of experts stay in MXFP4 on {device}", flush=True)
        return model

    def forward(
        self,
        actor: "Actor",
        sequences: torch.Tensor,
        action_mask: torch.Tensor | None,
        attention_mask: torch.Tensor,
        return_output: bool,
        return_entropy: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, SimpleNamespace]:
        """What `Actor.forward` returns, computed without padding and for the actions alone.

        Args:
            actor: its `model` is the resident one, in PEFT, in a DeepSpeed engine.
            sequences: (batch, seq) token ids.
            action_mask: (batch, actions): column j speaks of the token in column seq - actions + j.
            attention_mask: (batch, seq), 1 on tokens; those of a row need not be together on one side.
            return_entropy: give the policy's entropies as well, with a gradient if the loss has a term of them.

        Returns:
            log-probabilities (batch, actions), 0 where the mask is; with `return_output` also an object whose
            `entropy` is (batch, actions) or None.

        Raises:
            ValueError: no action mask.
        """
        if action_mask is None:
            raise ValueError("the resident actor scores actions only: found no action_mask; use --actor eager")
        mask, chosen = attention_mask.bool(), action_mask.bool()
        batch, seq = mask.shape
        place = (mask.flatten().cumsum(0) - 1).view(batch, seq)  # of each token among the packed ones
        before = place[:, seq - 1 - chosen.shape[1] : seq - 1]  # whose hidden state predicts the action
        mode = "none" if not return_entropy else "gradient" if self.entropy_in_loss else "metric"
        found, entropies = actor.model(
            sequences[mask],
            packed=pack(mask.sum(1).tolist(), sequences.device),
            rows=before[chosen],
            targets=sequences[:, -chosen.shape[1] :][chosen],
            temperature=actor.temperature,
            float32_logits=self.float32_logits,
            entropy=mode,
        )
        log_probs, entropy = (
            None if values is None else values.new_zeros(chosen.shape).masked_scatter(chosen, values)
            for values in (found, entropies)
        )
        return (log_probs, SimpleNamespace(entropy=entropy)) if return_output else log_probs


def settings(options: dict) -> Resident | None:
    """Of an `Actor` made with these keyword arguments; None with `--actor eager`."""
    if options.get("actor") != "resident":
        return None
    return Resident(
        float32_logits=options.get("head_dtype") == "float32",
        entropy_in_loss=bool(options.get("entropy_loss_coef")),
        shard_experts=options.get("shard_experts", 1),
    )
