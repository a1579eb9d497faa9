"""Rotary positions as gpt-oss has them: the first half of a head is paired with its second half."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rft.actor.device import on_triton


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k, rotated by their tokens' angles: computed in float32 (float64 stays), rounded once to their dtype.

    New tensors: rotating in place would read and write as many bytes, and nothing keeps q and k for a backward pass.

    Args:
        q: (tokens, heads, head_dim).
        k: (tokens, kv_heads, head_dim).
        cos, sin: (tokens, head_dim / 2), as transformers makes them: in the model's dtype, YaRN's factor in them. No
            gradient; they are all that the backward pass keeps.
    """
    return _Rotate.apply(q, k, cos, sin)


class _Rotate(torch.autograd.Function):
    """The backward pass is the rotation by the negative angle, whatever factor cosine and sine share."""

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _rotated(q, k, cos, sin, 1)

    @staticmethod
    def backward(ctx, grad_q, grad_k):
        return *_rotated(grad_q, grad_k, *ctx.saved_tensors, -1), None, None


def _rotated(q, k, cos, sin, sign: int) -> tuple[Tensor, Tensor]:
    outs = torch.empty_like(q), torch.empty_like(k)
    rotate_into(q, k, cos, sin, sign, *outs)
    return outs


def rotate_into(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sign: int, q_out: Tensor, k_out: Tensor) -> None:
    """`rotate` by `sign` (1 or -1) times the angles into given tensors, without a gradient.

    Rows may lie apart, as where q and k are columns of one tensor, and the results may be q and k themselves.
    """
    if on_triton(q) and all(x[0].is_contiguous() for x in (q, k, q_out, k_out)):
        _launch(q, k, cos.contiguous(), sin.contiguous(), sign, q_out, k_out)
        return
    for x, out in ((q, q_out), (k, k_out)):
        out.copy_(reference(x, cos, sin, sign))


def reference(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """The rotation of one tensor, in plain torch."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(dtype).chunk(2, -1)
    c, s = cos.to(dtype)[:, None], sign * sin.to(dtype)[:, None]
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)


def _launch(q, k, cos, sin, sign: int, q_out: Tensor, k_out: Tensor) -> None:
    """Both in one kernel."""
    tokens, heads, head_dim = q.shape
    kv_heads, block = k.shape[1], 32
    _kernel[(tokens, triton.cdiv(heads, block) + triton.cdiv(kv_heads, block))](
        *(q, k, cos, sin, q_out, k_out),
        *(x.stride(0) for x in (q, k, q_out, k_out)),
        SIGN=sign,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK=block,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
    )


@triton.jit
def _kernel(
    q, k, cos, sin, q_out, k_out, q_row, k_row, q_out_row, k_out_row,
    SIGN: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Some heads of one token a program: those of q first, then those of k."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    q_groups = tl.cdiv(HEADS, BLOCK)
    dim = tl.arange(0, BLOCK_HALF)
    c = tl.load(cos + token * HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + token * HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32) * SIGN
    if group < q_groups:
        _heads(q + token * q_row, q_out + token * q_out_row, c, s, group * BLOCK, HEADS, HALF, BLOCK, BLOCK_HALF)
    else:
        first = (group - q_groups) * BLOCK
        _heads(k + token * k_row, k_out + token * k_out_row, c, s, first, KV_HEADS, HALF, BLOCK, BLOCK_HALF)


@triton.jit
def _heads(
    x, out, c, s, begin,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    head = begin + tl.arange(0, BLOCK)[:, None]
    dim = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS) & (dim < HALF)
    place = head * (2 * HALF) + dim
    first = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + place + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(out + place, (first * c[None, :] - second * s[None, :]).to(dtype), mask=inside)
    tl.store(out + place + HALF, (second * c[None, :] + first * s[None, :]).to(dtype), mask=inside)
