"""Which tensors Triton's kernels take."""

import torch
from triton import knobs


def on_triton(x: torch.Tensor) -> bool:
    """Whether a kernel runs on `x`, or its plain torch reference.

    Kernels run on CUDA devices, and on CPUs in Triton's interpreter (`TRITON_INTERPRET=1`, set before anything imports
    triton). float64 is left to the references, as kernels compute in float32.
    """
    return x.dtype != torch.float64 and (x.is_cuda or knobs.runtime.interpret)
