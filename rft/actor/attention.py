"""Attention with sinks over packed sequences, by torch's own flash kernels.

A sink is one more logit a head, with no value behind it. Flash attention gives the output O and the log-sum-exp L of a
softmax without it; with s the sink, L' = log(exp L + exp s) and O' = O exp(L - L'). The backward pass computes
P = exp(S - L'), D = rowsum(dO * O') and dS = P * (dP - D), whatever gave it O' and L': handed these two, the unmodified
kernel returns the exact gradients of attention with sinks. Sinks are frozen, so no gradient passes through L'.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch.utils import deterministic as uninitialized

from rft.actor.packed import Packed


def sink_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor,
    packed: Packed,
    window: int | None,
    scale: float,
    deterministic: bool = True,
) -> torch.Tensor:
    """Causal attention with sinks within each sequence, (tokens, heads, head_dim).

    Half precision on CUDA runs flash kernels, which keep q, k, v, the result and its log-sum-exp for the backward pass.
    Everything else is a dense softmax a sequence, in float32 at least: for tiny shapes, and to test the other.

    Args:
        q: (tokens, heads, head_dim).
        k, v: (tokens, kv_heads, head_dim); query head i reads key head i // (heads // kv_heads).
        sinks: (heads,), logits as they are, not scaled. Frozen: they get no gradient.
        packed: where each sequence begins.
        window: keys that a token sees, itself included; None: all before it.
        scale: of the logits q kᵀ.
        deterministic: two backward passes give the same bits; otherwise the flash kernel adds up dq with atomics.
    """
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _Flash.apply(q, k, v, sinks, packed, window, scale, deterministic)
    return _dense(q, k, v, sinks.detach(), packed, window, scale)


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor,
    packed: Packed,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """The definition, one sequence at a time; autograd has its backward pass."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads, kv_heads = q.shape[1], k.shape[1]
    outs = []
    for q_, k_, v_ in zip(*(x.to(dtype).split(packed.lengths) for x in (q, k, v)), strict=True):
        places = torch.arange(len(q_), device=q.device)
        back = places[:, None] - places
        seen = (back >= 0) & (back < (window or packed.longest))
        grouped = q_.unflatten(1, (kv_heads, heads // kv_heads))
        logits = torch.einsum("qhgd,khd->hgqk", grouped, k_) * scale
        logits = logits.masked_fill(~seen, float("-inf")).flatten(0, 1)
        sink = sinks.to(dtype)[:, None, None].expand(heads, len(q_), 1)
        weights = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
        outs.append(torch.einsum("hgqk,khd->qhgd", weights.unflatten(0, (kv_heads, -1)), v_).flatten(1, 2))
    return torch.cat(outs).to(q.dtype)


class _Flash(torch.autograd.Function):
    """torch's flash kernels, as private as aten's: the same schema in torch 2.9 to 2.11; 2.12 adds keywords."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, packed, window, scale, deterministic):
        # The kernel counts the keys left of the token. Right 0, though causal says it: a batch of one-token sequences
        # is not causal to it, and goes through another layout of q and the log-sum-exp without.
        ctx.window = {"window_size_left": None if window is None else window - 1, "window_size_right": 0}
        ctx.longest, ctx.scale, ctx.deterministic = packed.longest, scale, deterministic
        layout = (packed.starts, packed.starts, packed.longest, packed.longest)
        out, lse, *random, _ = torch.ops.aten._flash_attention_forward.default(
            q, k, v, *layout, 0.0, True, False, scale=scale, **ctx.window
        )
        lse = add_sinks(out, lse, sinks)
        ctx.save_for_backward(q, k, v, out, lse, packed.starts, *random)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse, starts, *random = ctx.saved_tensors
        with _same_bits(ctx.deterministic):
            grads = torch.ops.aten._flash_attention_backward.default(
                *(grad.contiguous(), q, k, v, out, lse, starts, starts, ctx.longest, ctx.longest, 0.0, True, *random),
                scale=ctx.scale,
                **ctx.window,
            )
        return *grads, None, None, None, None, None


@contextmanager
def _same_bits(wanted: bool) -> Iterator[None]:
    """Flash attention's backward pass adds up dq without atomics exactly where torch's global switch says so.

    It then gives one head of a sequence to as few blocks as fill the GPU, each with a float32 dq of its own. The switch
    also fills fresh memory with NaN, which costs a pass over it: left off here.
    """
    before = torch.get_deterministic_debug_mode(), uninitialized.fill_uninitialized_memory
    if wanted:
        torch.set_deterministic_debug_mode("error")
        uninitialized.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        uninitialized.fill_uninitialized_memory = before[1]


def add_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Make the output of a softmax, in place, and its log-sum-exp, returned, those of a softmax with sinks, in one pass.

    The log-sum-exp is not written in place: several warps of a program read each value, and one that comes late would
    read what another has written.

    Args:
        out: (tokens, heads, head_dim), its last dimension contiguous.
        lse: (heads, tokens) float32, contiguous, natural logarithm.
        sinks: (heads,).
    """
    tokens, heads, head_dim = out.shape
    block, total = 64, torch.empty_like(lse)
    _add_sinks[(triton.cdiv(tokens, block), heads)](
        *(out, lse, total, sinks, tokens, out.stride(0), out.stride(1)),
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        BLOCK=block,
    )
    return total


@triton.jit
def _add_sinks(
    out, lse, with_sinks, sinks, tokens, row, column,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of tokens of one head a program."""
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = token < tokens
    without = tl.load(lse + head * tokens + token, mask=real, other=0.0)
    sink = tl.load(sinks + head).to(tl.float32)
    # Relative to the larger of both, so that neither exponential overflows.
    top = tl.maximum(without, sink)
    share = tl.exp(without - top)
    total = share + tl.exp(sink - top)
    tl.store(with_sinks + head * tokens + token, top + tl.log(total), mask=real)
    dim = tl.arange(0, BLOCK_DIM)
    place = out + token[:, None] * row + head * column + dim[None, :]
    inside = real[:, None] & (dim[None, :] < HEAD_DIM)
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32) * (share / total)[:, None]
    tl.store(place, value.to(out.dtype.element_ty), mask=inside)
