"""Attention with sinks over packed sequences: the definition, transformers' own, the flash identity."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from rft.actor.attention import sink_attention
from rft.actor.packed import pack

RAGGED = [1, 2, 127, 128, 129, 300]
HEADS, KV_HEADS, DIM, SCALE = 4, 2, 8, 8**-0.5


def inputs(tokens: int, dtype=torch.float64, heads=HEADS, kv_heads=KV_HEADS, seed: int = 0) -> list[torch.Tensor]:
    """q, k, v, sinks and the gradient of the result."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(tokens, heads, DIM), (tokens, kv_heads, DIM), (tokens, kv_heads, DIM), (heads,), (tokens, heads, DIM)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def with_gradients(attend, q, k, v, grad) -> list[torch.Tensor]:
    """The result of `attend(q, k, v)` and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def mask_of(lengths: list[int], window: int | None) -> torch.Tensor:
    """(tokens, tokens), whether the row's token sees the column's: said another way than the code says it."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (owner[:, None] == owner).tril()
    return seen if window is None else seen.triu(1 - window)


def by_hand(q, k, v, sinks, seen, scale: float) -> torch.Tensor:
    """exp over the sum of exps and of the sink's, a head and all sequences at a time."""
    outs = []
    for head in range(q.shape[1]):
        at = head * k.shape[1] // q.shape[1]
        exps = (q[:, head] @ k[:, at].T * scale).exp() * seen
        outs.append(exps @ v[:, at] / (exps.sum(1, keepdim=True) + sinks[head].exp()))
    return torch.stack(outs, 1)


def agree(found, wanted, tolerance: float) -> None:
    for name, one, other in zip(("out", "dq", "dk", "dv"), found, wanted, strict=True):
        assert (one.double() - other.double()).norm() <= tolerance * other.double().norm(), name


@pytest.mark.parametrize("window", [None, 1, 128])
def test_ragged_sequences_by_hand(window):
    q, k, v, sinks, grad = inputs(sum(RAGGED))
    packed = pack(RAGGED, "cpu")
    found = with_gradients(lambda *qkv: sink_attention(*qkv, sinks, packed, window, SCALE), q, k, v, grad)
    seen = mask_of(RAGGED, window)
    agree(found, with_gradients(lambda *qkv: by_hand(*qkv, sinks, seen, SCALE), q, k, v, grad), 1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("window", [None, 128])
def test_transformers_own(window, dtype, tolerance):
    """Each sequence in a batch of its own, with an additive mask as transformers makes it."""
    q, k, v, sinks, grad = inputs(sum(RAGGED), dtype)
    packed = pack(RAGGED, "cpu")
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, sinks=sinks, training=True)

    def theirs(*qkv):
        outs = []
        for one in zip(*(x.split(RAGGED) for x in qkv), strict=True):
            seen = mask_of([len(one[0])], window)
            unseen = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
            batch = (x.transpose(0, 1)[None] for x in one)
            outs.append(eager_attention_forward(module, *batch, unseen[None, None], SCALE)[0][0])
        return torch.cat(outs)

    found = with_gradients(lambda *qkv: sink_attention(*qkv, sinks, packed, window, SCALE), q, k, v, grad)
    agree(found, with_gradients(theirs, q, k, v, grad), tolerance)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 10),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_any_shape_by_hand(lengths, window, kv_heads, groups, seed):
    q, k, v, sinks, grad = inputs(sum(lengths), heads=kv_heads * groups, kv_heads=kv_heads, seed=seed)
    packed = pack(lengths, "cpu")
    found = with_gradients(lambda *qkv: sink_attention(*qkv, sinks, packed, window, SCALE), q, k, v, grad)
    seen = mask_of(lengths, window)
    agree(found, with_gradients(lambda *qkv: by_hand(*qkv, sinks, seen, SCALE), q, k, v, grad), 1e-12)


def test_half_precision_is_computed_in_float32():
    """The result rounds once: half a spacing of bf16 at most, and float32's own error far below it."""
    q, k, v, sinks, _ = inputs(sum(RAGGED), torch.bfloat16)
    packed = pack(RAGGED, "cpu")
    out = sink_attention(q, k, v, sinks, packed, 128, SCALE)
    exact = sink_attention(*(x.double() for x in (q, k, v, sinks)), packed, 128, SCALE)
    assert out.dtype == torch.bfloat16
    assert ((out.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


@pytest.mark.parametrize("window", [None, 128])
def test_flash_backward_with_the_sink_in_its_inputs(window):
    """What the flash kernels compute, in float64, with O' and L' put in: the exact gradients."""
    q, k, v, sinks, grad = inputs(sum(RAGGED), heads=HEADS, kv_heads=HEADS)
    packed, seen = pack(RAGGED, "cpu"), mask_of(RAGGED, window)
    logits = torch.einsum("qhd,khd->hqk", q, k) * SCALE
    logits = logits.masked_fill(~seen, float("-inf"))
    lse = logits.logsumexp(-1)
    out = torch.einsum("hqk,khd->qhd", (logits - lse[..., None]).exp(), v)
    without, lse = lse, torch.logaddexp(lse, sinks[:, None])
    out *= (without - lse).exp().T[..., None]

    p = (logits - lse[..., None]).exp()
    dp = torch.einsum("qhd,khd->hqk", grad, v)
    ds = p * (dp - (grad * out).sum(-1).T[..., None]) * SCALE
    flash = [out, torch.einsum("hqk,khd->qhd", ds, k), torch.einsum("hqk,qhd->khd", ds, q)]
    flash.append(torch.einsum("hqk,qhd->khd", p, grad))
    wanted = with_gradients(lambda *qkv: sink_attention(*qkv, sinks, packed, window, SCALE), q, k, v, grad)
    agree(flash, wanted, 1e-12)
