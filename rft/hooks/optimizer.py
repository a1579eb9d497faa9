"""Choose the Adam implementation that this machine can run."""

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam


def adam_class(adam_offload: bool) -> type[torch.optim.Optimizer]:
    """DeepSpeed's compiled Adam on an accelerator; torch's AdamW on the CPU.

    All three compute AdamW. DeepSpeed compiles its own at the first use, which costs about half a minute and needs a
    compiler: worth it for billions of parameters, not for a CPU run.
    """
    if get_accelerator().device_name() == "cpu":
        return torch.optim.AdamW
    return DeepSpeedCPUAdam if adam_offload else FusedAdam
