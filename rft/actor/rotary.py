"""Rotary positions as gpt-oss has them: the first half of a head is paired with its second half."""

import torch
import triton
import triton.language as tl


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def _rotated(q, k, cos, sin, sign: int) -> tuple[torch.Tensor, torch.Tensor]:
    if q.is_cuda and q.dtype != torch.float64:
        return launch(q, k, cos, sin, sign)
    return reference(q, cos, sin, sign), reference(k, cos, sin, sign)


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: int) -> torch.Tensor:
    """`launch` of one tensor, in plain torch."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(dtype).chunk(2, -1)
    c, s = cos.to(dtype)[:, None], sign * sin.to(dtype)[:, None]
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)


def launch(q, k, cos, sin, sign: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in one kernel; `sign` is 1 or -1, that of the angle."""
    q, k, cos, sin = (x.contiguous() for x in (q, k, cos, sin))
    tokens, heads, head_dim = q.shape
    kv_heads, block = k.shape[1], 32
    outs = torch.empty_like(q), torch.empty_like(k)
    _kernel[(tokens, triton.cdiv(heads, block) + triton.cdiv(kv_heads, block))](
        *(q, k, cos, sin, *outs),
        SIGN=sign,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK=block,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
    )
    return outs


@triton.jit
def _kernel(
    q, k, cos, sin, q_out, k_out,
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
        _heads(q, q_out, c, s, token, group * BLOCK, HEADS, HALF, BLOCK, BLOCK_HALF)
    else:
        _heads(k, k_out, c, s, token, (group - q_groups) * BLOCK, KV_HEADS, HALF, BLOCK, BLOCK_HALF)


@triton.jit
def _heads(
    x, out, c, s, token, begin,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    head = begin + tl.arange(0, BLOCK)[:, None]
    dim = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS) & (dim < HALF)
    place = (token * HEADS + head) * (2 * HALF) + dim
    first = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + place + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(out + place, (first * c[None, :] - second * s[None, :]).to(dtype), mask=inside)
    tl.store(out + place + HALF, (second * c[None, :] + first * s[None, :]).to(dtype), mask=inside)
