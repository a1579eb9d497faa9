"""RMSNorm with a frozen weight, alone or of a sum, as transformers' `GptOssRMSNorm` rounds it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rft.actor.device import on_triton


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x / rms(x), computed in float32 (float64 stays), in x's dtype.

    Keeps x and a number a token for the backward pass.

    Args:
        x: (tokens, hidden).
        weight: (hidden,), of any float dtype. Frozen: it gets no gradient.
        eps: added to the mean square.
    """
    return _Norm.apply(x, weight, eps)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta, rounded to their dtype, and `rms_norm` of it, in one pass over memory each way.

    Keeps the sum, which lives on as the residual, and a number a token.
    """
    return _AddNorm.apply(x, delta, weight, eps)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        x, normed, rstd = _forward(x, None, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return normed

    @staticmethod
    def backward(ctx, grad):
        return _backward(grad, None, *ctx.saved_tensors), None, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, delta, weight, eps):
        total, normed, rstd = _forward(x, delta, weight, eps)
        ctx.save_for_backward(total, weight, rstd)
        return total, normed

    @staticmethod
    def backward(ctx, grad_total, grad_normed):
        # Both summands have the gradient of the sum: one tensor serves both.
        grad = _backward(grad_normed, grad_total, *ctx.saved_tensors)
        return grad, grad, None, None


def _forward(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x + delta, or x without delta; normed; 1 / rms (tokens,))."""
    return (launch_forward if on_triton(x) else reference_forward)(x, delta, weight, eps)


def _backward(grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of the sum: that of the norm, and `grad_total` where there is one."""
    return (launch_backward if on_triton(total) else reference_backward)(grad, grad_total, total, weight, rstd)


def reference_forward(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`launch_forward` in plain torch."""
    total = x if delta is None else x + delta
    exact = total.to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(exact.pow(2).mean(-1) + eps)
    return total, (weight * (exact * rstd[:, None])).to(x.dtype), rstd


def reference_backward(grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    """`launch_backward` in plain torch."""
    unit = total.to(rstd.dtype) * rstd[:, None]
    grad_unit = grad.to(rstd.dtype) * weight
    back = rstd[:, None] * (grad_unit - unit * (grad_unit * unit).mean(-1, keepdim=True))
    return (back if grad_total is None else back + grad_total).to(total.dtype)


def launch_forward(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel of `_forward`."""
    x, delta = x.contiguous(), None if delta is None else delta.contiguous()
    total = x if delta is None else torch.empty_like(x)
    normed, rstd = torch.empty_like(x), torch.empty(len(x), dtype=torch.float32, device=x.device)
    _forward_kernel[(len(x),)](x, delta, weight, total, normed, rstd, eps, **_row(x, delta))
    return total, normed, rstd


def launch_backward(grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    """The kernel of `_backward`."""
    grad, grad_total = grad.contiguous(), None if grad_total is None else grad_total.contiguous()
    out = torch.empty_like(total)
    _backward_kernel[(len(total),)](grad, grad_total, total, weight, rstd, out, **_row(total, grad_total))
    return out


def _row(x: Tensor, added: Tensor | None) -> dict:
    """A row a program: its mean is one sum in a fixed order, and every value is read once."""
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "ADD": added is not None, "BLOCK": block, "num_warps": 8 if block >= 2048 else 4}


@triton.jit
def _forward_kernel(
    x, delta, weight, total, normed, rstd, eps, WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * WIDTH + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(delta + place, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + place, rounded, mask=inside)
        value = rounded.to(tl.float32)  # the residual as it is kept, which is what the backward pass sees
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + eps)
    tl.store(rstd + row, scale)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + place, (gain * (value * scale)).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    grad, grad_total, total, weight, rstd, out, WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * WIDTH + column
    scale = tl.load(rstd + row)
    unit = tl.load(total + place, mask=inside, other=0.0).to(tl.float32) * scale
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    grad_unit = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32) * gain
    back = scale * (grad_unit - unit * (tl.sum(grad_unit * unit, 0) / WIDTH))
    if ADD:
        back += tl.load(grad_total + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, back.to(out.dtype.element_ty), mask=inside)
