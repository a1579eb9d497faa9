"""The gradient norm of the last optimizer step, honest about gradients that were not finite."""

import math
from typing import TYPE_CHECKING

import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def grad_norm(engine: "DeepSpeedEngine") -> float:
    """Global 2-norm of the last step's gradient, before clipping; NaN where it was not finite. Call on every rank.

    DeepSpeed's ZeRO optimizers put -1 in the place of a norm that is not finite (`get_grad_norm_direct`, 0.18.5), and
    `engine.get_global_grad_norm` then returns the absolute value, 1.0: a plausible number. Such a gradient leaves its
    mark in the parameters (Adam divides inf by inf), so those are looked at too, since the gradient itself is gone.
    """
    parts = [local_part(p, padded=False) for p in trainable(engine)]
    broken = (~torch.nn.utils.get_total_norm(parts).isfinite()).float().to(get_accelerator().current_device_name())
    dist.all_reduce(broken)  # a rank may hold no broken element
    return math.nan if broken.item() else float(engine.get_global_grad_norm())


def trainable(engine: "DeepSpeedEngine") -> list[torch.nn.Parameter]:
    """The parameters that the optimizer moves, in model order."""
    return [p for p in engine.module.parameters() if p.requires_grad]


def local_part(parameter: torch.nn.Parameter, padded: bool = True) -> torch.Tensor:
    """What this rank owns of a parameter: under ZeRO-3 its flat partition, otherwise all of it.

    ZeRO-3 pads partitions to one size for all ranks; the padding is uninitialised memory.
    """
    if not hasattr(parameter, "ds_tensor"):
        return parameter.detach()
    partition = parameter.ds_tensor.detach()
    if padded:
        return partition
    start = dist.get_rank(group=parameter.ds_process_group) * partition.numel()
    return partition[: max(0, parameter.ds_numel - start)]
