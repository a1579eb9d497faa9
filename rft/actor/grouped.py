"""Matrix products of rows that are sorted by expert, one matrix an expert."""

from functools import cache

import torch


def grouped_mm(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor, transpose: bool) -> torch.Tensor:
    """`x[rows of e] @ weight[e]`, or `weight[e].T` with `transpose`, for every expert; sums in float32 on a GPU.

    Args:
        x: (rows, columns of x), sorted by expert.
        weight: (experts, n, k), of x's dtype.
        ends: where each expert's rows end, int32 (experts,), on x's device; an expert may have none.
        transpose: x is (rows, k) and the result (rows, n), or else x is (rows, n) and the result (rows, k).

    Returns:
        (rows, n) or (rows, k), in x's dtype.
    """
    matrices = weight.transpose(1, 2) if transpose else weight
    if _in_one_launch(x.device, x.dtype):
        return torch._grouped_mm(x, matrices, offs=ends)
    out, begin = x.new_empty(len(x), matrices.shape[2]), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        if begin < end:
            torch.mm(x[begin:end], matrix, out=out[begin:end])
        begin = end
    return out


@cache
def _in_one_launch(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has a grouped kernel for this device: compute capability 9 (H100, H200) and 10 (B200), bf16."""
    fast = (
        device.type == "cuda"
        and dtype == torch.bfloat16
        and torch.cuda.get_device_capability(device)[0] in (9, 10)
        and hasattr(torch, "_grouped_mm")
    )
    way = "torch._grouped_mm" if fast else "one product an expert (H100, H200 and B200 have a grouped one in bf16)"
    print(f"resident actor: experts on {device} in {dtype}: {way}", flush=True)
    return fast
