"""gpt-oss's SwiGLU with bias and clamp, and its backward pass, on rows sorted by expert.

Gate and up stand in turn in a row. Computed in float32 (float64 for float64), rounded once.
"""

import torch
import triton
import triton.language as tl

from rft.actor.device import on_triton

ALPHA = 1.702
LIMIT = 7.0
_ALPHA = tl.constexpr(ALPHA)  # behind a tensor only: before it, Triton 3.7's interpreter makes a constant of both
_LIMIT = tl.constexpr(LIMIT)
COLUMNS = 1024  # a program's at a time: 2,880 are three of them


def swiglu(h: torch.Tensor, bias: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """`(up + 1) * gate * sigmoid(1.702 * gate)` of `h + bias[expert]`, gate at most 7, up within -7 and 7.

    Args:
        h: the first product (rows, 2 x inner), contiguous.
        bias: (experts, 2 x inner), contiguous.
        experts: of each row, (rows,), any integer dtype.

    Returns:
        (rows, inner) in h's dtype.
    """
    if not on_triton(h):
        gate, up = _biased(h, bias, experts)
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return ((up + 1) * gate * torch.sigmoid(ALPHA * gate)).to(h.dtype)
    rows, inner = len(h), h.shape[1] // 2
    out = h.new_empty(rows, inner)
    _swiglu[(rows, triton.cdiv(inner, COLUMNS))](h, bias, experts, out, inner, COLUMNS=COLUMNS, num_warps=4)
    return out


def swiglu_backward(
    h: torch.Tensor,
    bias: torch.Tensor,
    experts: torch.Tensor,
    grad: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """The gradient of h, and the scalar product of each row's SwiGLU with `grad`.

    Args:
        h, bias, experts: see `swiglu`.
        grad: (rows, inner), of the rows' SwiGLU before each row's weight.
        weights: of the rows, (rows,).
        out: takes the gradient of h, `weights * grad` times SwiGLU's derivative; like h, and may be h.

    Returns:
        `<swiglu, grad>` of each row, (rows,) in float32 (float64 for float64).
    """
    if not on_triton(h):
        gate, up = _biased(h, bias, experts)
        grad = grad.to(gate.dtype)
        within_gate, within_up = gate <= LIMIT, (up >= -LIMIT) & (up <= LIMIT)
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        sigmoid = torch.sigmoid(ALPHA * gate)
        products = ((up + 1) * gate * sigmoid * grad).sum(-1)
        grad = grad * weights[:, None]
        out[:, ::2] = within_gate * grad * (up + 1) * sigmoid * (1 + ALPHA * gate * (1 - sigmoid))
        out[:, 1::2] = within_up * grad * gate * sigmoid
        return products
    rows, inner = len(h), h.shape[1] // 2
    products = torch.empty(rows, dtype=torch.float32, device=h.device)
    _swiglu_backward[(rows,)](h, bias, experts, grad, weights, out, products, inner, COLUMNS=COLUMNS, num_warps=8)
    return products


def _biased(h: torch.Tensor, bias: torch.Tensor, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(h.dtype, torch.float32)
    h = h.to(wide) + bias.to(wide)[experts.long()]
    return h[:, ::2], h[:, 1::2]


@triton.jit
def _load_biased(h, bias, start, inner, COLUMNS: tl.constexpr):
    """Gate and up of `COLUMNS` columns in float32. Biases gathered beforehand would cost as much as a GEMM."""
    both = 2 * start + tl.arange(0, 2 * COLUMNS)
    inside = both < 2 * inner
    total = tl.load(h + both, mask=inside, other=0).to(tl.float32)
    total += tl.load(bias + both, mask=inside, other=0).to(tl.float32)
    return tl.split(tl.reshape(total, (COLUMNS, 2)))


@triton.jit
def _swiglu(h, bias, experts, out, inner, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * COLUMNS
    expert = tl.load(experts + row).to(tl.int64)
    gate, up = _load_biased(h + row * 2 * inner, bias + expert * 2 * inner, start, inner, COLUMNS)
    gate = tl.minimum(gate, _LIMIT)
    up = tl.minimum(tl.maximum(up, -_LIMIT), _LIMIT)
    value = (up + 1) * gate * tl.sigmoid(gate * _ALPHA)
    columns = start + tl.arange(0, COLUMNS)
    tl.store(out + row * inner + columns, value.to(out.dtype.element_ty), mask=columns < inner)


@triton.jit
def _swiglu_backward(h, bias, experts, grad, weights, out, products, inner, COLUMNS: tl.constexpr):
    """A row a program, block by block: no block holds more than its registers, and the row's sum has one order."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.load(experts + row).to(tl.int64)
    weight = tl.load(weights + row).to(tl.float32)
    product = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, inner, COLUMNS):
        gate_in, up_in = _load_biased(h + row * 2 * inner, bias + expert * 2 * inner, start, inner, COLUMNS)
        columns = start + tl.arange(0, COLUMNS)
        d = tl.load(grad + row * inner + columns, mask=columns < inner, other=0).to(tl.float32)
        gate = tl.minimum(gate_in, _LIMIT)
        up = tl.minimum(tl.maximum(up_in, -_LIMIT), _LIMIT)
        sigmoid = tl.sigmoid(gate * _ALPHA)
        product += (up + 1) * gate * sigmoid * d
        d *= weight
        # torch.clamp passes the gradient at equality.
        d_gate = tl.where(gate_in <= _LIMIT, d * (up + 1) * sigmoid * (1 + gate * _ALPHA * (1 - sigmoid)), 0.0)
        d_up = tl.where((up_in >= -_LIMIT) & (up_in <= _LIMIT), d * gate * sigmoid, 0.0)
        both = 2 * start + tl.arange(0, 2 * COLUMNS)
        value = tl.interleave(d_gate, d_up).to(out.dtype.element_ty)
        tl.store(out + row * 2 * inner + both, value, mask=both < 2 * inner)
    tl.store(products + row, tl.sum(product))
