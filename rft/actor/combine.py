"""From rows sorted by expert to tokens and back. Each token gathers its rows and adds them in one order: no atomics."""

import torch
import triton
import triton.language as tl

from rft.actor.device import on_triton

COLUMNS = 1024  # a program's at a time


def combine(
    rows: torch.Tensor,
    inverse: torch.Tensor,
    weights: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """`sum over j of weights[t, j] * (rows[inverse[t, j]] + bias[indices[t, j]])`, in the order of j, in float32.

    Args:
        rows: sorted by expert, (tokens x k, hidden), contiguous.
        inverse: the row of each token's j-th expert, integers (tokens, k).
        weights, bias, indices: (tokens, k), (experts, hidden) and integers (tokens, k), all contiguous; or none, for
            the plain sum of a token's rows.

    Returns:
        (tokens, hidden) in the dtype of `rows`; float64 is added in float64.
    """
    tokens, chosen = inverse.shape
    hidden = rows.shape[1]
    if not on_triton(rows):
        wide = torch.promote_types(rows.dtype, torch.float32)
        total = torch.zeros(tokens, hidden, dtype=wide, device=rows.device)
        for j in range(chosen):
            each = rows[inverse[:, j]].to(wide)
            if weights is not None:
                each = weights[:, j, None] * (each + bias[indices[:, j]].to(wide))
            total += each
        return total.to(rows.dtype)
    out = rows.new_empty(tokens, hidden)
    grid = (tokens, triton.cdiv(hidden, COLUMNS))
    _combine[grid](rows, inverse, weights, bias, indices, out, hidden, CHOSEN=chosen, COLUMNS=COLUMNS, num_warps=4)
    return out


def combine_backward(
    grad: torch.Tensor, order: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row its token's gradient, and the part of its weight's gradient that the bias has.

    Args:
        grad: of the tokens, (tokens, hidden), contiguous.
        order: each row's place among the tokens' choices, `token * k + j`, integers (tokens x k,).
        experts: of the rows, integers (tokens x k,).
        bias: (experts, hidden), contiguous.

    Returns:
        the gradients (tokens x k, hidden), and `<gradient, bias[expert]>` (tokens x k,) in float32 (float64 for
        float64).
    """
    tokens, hidden = grad.shape
    chosen = len(order) // tokens
    if not on_triton(grad):
        wide = torch.promote_types(grad.dtype, torch.float32)
        rows = grad[order // chosen]
        return rows, (rows.to(wide) * bias.to(wide)[experts.long()]).sum(-1)
    rows = grad.new_empty(len(order), hidden)
    products = torch.empty(len(order), dtype=torch.float32, device=grad.device)
    _combine_backward[(len(order),)](
        grad, order, experts, bias, rows, products, hidden, CHOSEN=chosen, COLUMNS=COLUMNS, num_warps=4
    )
    return rows, products


@triton.jit
def _combine(rows, inverse, weights, bias, indices, out, hidden, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < hidden
    total = tl.zeros((COLUMNS,), tl.float32)
    for j in tl.static_range(CHOSEN):
        row = tl.load(inverse + token * CHOSEN + j).to(tl.int64)
        each = tl.load(rows + row * hidden + columns, mask=inside, other=0).to(tl.float32)
        if weights is not None:
            expert = tl.load(indices + token * CHOSEN + j).to(tl.int64)
            each += tl.load(bias + expert * hidden + columns, mask=inside, other=0).to(tl.float32)
            each *= tl.load(weights + token * CHOSEN + j).to(tl.float32)
        total += each
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _combine_backward(grad, order, experts, bias, rows, products, hidden, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(order + row).to(tl.int64) // CHOSEN
    expert = tl.load(experts + row).to(tl.int64)
    product = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, hidden, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < hidden
        value = tl.load(grad + token * hidden + columns, mask=inside, other=0)
        tl.store(rows + row * hidden + columns, value, mask=inside)
        at_bias = tl.load(bias + expert * hidden + columns, mask=inside, other=0)
        product += value.to(tl.float32) * at_bias.to(tl.float32)
    tl.store(products + row, tl.sum(product))
