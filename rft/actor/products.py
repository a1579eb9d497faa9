"""Matrix products that keep more digits than their operands have."""

import torch


def wide_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`a @ b` of matrices of one dtype, summed and kept in float32 (float64 of float64 ones)."""
    if a.is_cuda and a.dtype.itemsize == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    wide = torch.promote_types(a.dtype, torch.float32)
    return a.to(wide) @ b.to(wide)  # the CPU has no such kernel; its models are tiny
