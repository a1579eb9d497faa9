"""Linear layers on a CPU whose rows do not depend on the batch, for rollouts that can be repeated.

A bf16 product of one row is summed in another order than the same row among others, so a token's log-probabilities
change with what the scheduler put beside it, and now and then the sample does. vLLM's own batch-invariant mode is for
CUDA. In float64 the order matters at 1e-16, which rounding to bf16 all but always hides.
"""

import torch

from rft.record.flags import flag

SWITCH = "RFT_BATCH_INVARIANT_CPU"  # set by OpenRLHF's engine actor with --full_determinism


def rows_alone() -> bool:
    """Whether `SWITCH` is set."""
    return flag(SWITCH)


def linear():
    """`torch.nn.functional.linear`, or with `SWITCH` set `in_float64`; asked once a layer, when it is loaded."""
    return in_float64 if rows_alone() else torch.nn.functional.linear


def in_float64(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`inputs` @ `weight`.T + `bias`, rounded once; shapes and dtype of `torch.nn.functional.linear`."""
    bias = None if bias is None else bias.double()
    return torch.nn.functional.linear(inputs.double(), weight.double(), bias).to(inputs.dtype)
