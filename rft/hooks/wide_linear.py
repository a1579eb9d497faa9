"""A linear layer and its adapter on CUDA: `dtype(x Wᵀ + dtype(x A'ᵀ) Bᵀ + bias)`, summed in float32, rounded once.

Everything lies in one buffer, so that both ways of computing it find their operands without a copy:

              in    width
    out    [  W   |  B  ]
    width  [  A'  |     ]

Few rows, as in decoding: `[W; A']` is one matrix product that keeps its float32 sums, of which the last `width` columns
are `x A'ᵀ`; a short kernel adds their product with B, and rounds. No copy of x, and the kernel's sums are as short as
the adapter's rank: 2 to 3 us a layer. Many rows: float32 sums of all outputs would take more memory and time than
putting `x A'ᵀ` behind x, so there `[W | B]` is the matrix.
"""

import torch
import triton
import triton.language as tl

from rft.actor.products import wide_product

# Up to here the float32 sums stay in the GPU's L2 cache. Calculated; benchmarks/exact_linear.py measures it.
FEW_ROWS = 1024


@triton.jit(do_not_specialize=["rows_total"])  # or it would be compiled again for other numbers of requests
def _finish(
    sums, b, bias, out, rows_total, outputs, sums_stride, b_stride,
    WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows_total) & (column < outputs)
    total = tl.load(sums + row * sums_stride + column, inside, 0.0)
    # Unrolled, so that all loads are under way before the first product waits for one.
    for start in tl.static_range(0, WIDTH, BLOCK):
        across = start + tl.arange(0, BLOCK)
        beside = tl.load(
            sums + row * sums_stride + outputs + across[None, :], (row < rows_total) & (across[None, :] < WIDTH), 0.0
        )
        matrix = tl.load(b + column * b_stride + across[:, None], (column < outputs) & (across[:, None] < WIDTH), 0.0)
        total = tl.dot(beside.to(matrix.dtype), matrix, total)
    if HAS_BIAS:
        total += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)
    tl.store(out + row * outputs + column, total.to(out.dtype.element_ty), inside)


def _sums(x: torch.Tensor, wide: torch.Tensor, width: int) -> torch.Tensor:
    """`x [W; A']ᵀ`, (rows, out + width) in float32."""
    return wide_product(x, wide[:, : wide.shape[1] - width].T)


def few_rows(x: torch.Tensor, wide: torch.Tensor, width: int, bias: torch.Tensor | None) -> torch.Tensor:
    """`wide_linear` by float32 sums and `_finish`."""
    rows, outputs = x.shape[0], wide.shape[0] - width
    sums = _sums(x, wide, width)
    out = x.new_empty(rows, outputs)
    block_rows, block_columns = 16 if rows <= 128 else 64, 128
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(outputs, block_columns))
    b = wide[:outputs, wide.shape[1] - width :]
    _finish[grid](
        sums, b, bias, out, rows, outputs, sums.stride(0), b.stride(0), WIDTH=width, HAS_BIAS=bias is not None,
        ROWS=block_rows, COLUMNS=block_columns, BLOCK=min(64, max(16, triton.next_power_of_2(width))), num_warps=4,
    )  # fmt: skip
    return out


def many_rows(x: torch.Tensor, wide: torch.Tensor, width: int, bias: torch.Tensor | None) -> torch.Tensor:
    """`wide_linear` with `x A'ᵀ` behind x: `[x, x A'ᵀ] [W | B]ᵀ`, as on every other device."""
    outputs, features = wide.shape[0] - width, wide.shape[1] - width
    beside = torch.nn.functional.linear(x, wide[outputs:, :features])
    return torch.nn.functional.linear(torch.cat((x, beside), 1), wide[:outputs], bias)


@torch.library.custom_op("rft::wide_linear", mutates_args=(), device_types="cuda")
def wide_linear(x: torch.Tensor, wide: torch.Tensor, width: int, bias: torch.Tensor | None) -> torch.Tensor:
    """One op, so that a compiled graph is the same for any number of rows; a captured CUDA graph has one of the ways.

    Args:
        x: inputs (rows, in), bf16 or fp16.
        wide: (out + width, in + width) as above, in the dtype of x; a multiple of 8 elements a row.
        width: columns of B, rows of A'.
        bias: (out,) or None.

    Returns:
        (rows, out) in the dtype of x.
    """
    return (few_rows if x.shape[0] <= FEW_ROWS else many_rows)(x, wide, width, bias)


@wide_linear.register_fake
def _(x, wide, width, bias):
    return x.new_empty(x.shape[0], wide.shape[0] - width)


def without_adapter(x: torch.Tensor, wide: torch.Tensor, width: int, bias: torch.Tensor | None) -> torch.Tensor:
    """What `few_rows` gives with a zero adapter, bit for bit."""
    total = _sums(x, wide, width)[:, : wide.shape[0] - width]
    return (total if bias is None else total + bias).to(x.dtype)
