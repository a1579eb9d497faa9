"""Choose the Adam implementation that this machine can run."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder
from deepspeed.ops.op_builder.builder import CUDAMismatchException, MissingCUDAException

from rft.hooks.compiled_ops import drop_abandoned_lock

if TYPE_CHECKING:
    from deepspeed.ops.op_builder.builder import OpBuilder


def adam_class(adam_offload: bool) -> Callable[..., torch.optim.Optimizer]:
    """DeepSpeed's compiled Adam on an accelerator; torch's AdamW on the CPU, and where DeepSpeed's cannot be built.

    All of them compute AdamW, torch's also on the partitions that `--adam_offload` keeps in host memory. DeepSpeed
    compiles its own at the first use, which costs about half a minute and needs a compiler, and a CUDA toolkit where
    there is a GPU: worth it for billions of parameters, not for a CPU run.
    """
    if get_accelerator().device_name() == "cpu":
        return torch.optim.AdamW
    builder, built = (CPUAdamBuilder, DeepSpeedCPUAdam) if adam_offload else (FusedAdamBuilder, FusedAdam)
    reason = why_not_built(builder())
    if reason is None:
        return built
    name = built.__name__
    print(f"optimizer: torch's fused AdamW, since DeepSpeed's {name} cannot be built here ({reason})", flush=True)
    return partial(torch.optim.AdamW, fused=True)


def why_not_built(builder: "OpBuilder") -> str | None:
    """None when a DeepSpeed op loads, prebuilt or compiled now; else the first line of what stopped it.

    Trying is the only test: in DeepSpeed 0.18.5 `is_compatible()` of a CUDA op is always true, whatever compiler, CUDA
    headers or matching nvcc are missing (deepspeed/ops/op_builder/builder.py). Where there is no toolkit at all, some
    builders join its path from None: a TypeError.
    """
    drop_abandoned_lock(builder.NAME)
    try:
        builder.load()
    except (RuntimeError, OSError, ImportError, TypeError, CUDAMismatchException, MissingCUDAException) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None
