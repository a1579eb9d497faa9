"""Rotary positions: against transformers' own."""

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb
from triton import knobs

from rft.actor.rotary import rotate

FACTOR = 1.3465735902799727  # YaRN's, in gpt-oss's cosines and sines
# The interpreter cuts bf16 off where torch rounds; test_attention_kernels.py compares to a spacing there.
pytestmark = pytest.mark.skipif(knobs.runtime.interpret, reason="of the plain references: not with TRITON_INTERPRET=1")


def tensors(dtype, tokens: int = 5, heads: int = 6, kv_heads: int = 2, dim: int = 8, seed: int = 0) -> list:
    """q, k, cos, sin."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(tokens, n, dim, generator=generator, dtype=torch.float64) for n in (heads, kv_heads))
    angles = torch.rand(tokens, dim // 2, generator=generator, dtype=torch.float64) * 100
    return [x.to(dtype) for x in (q, k, FACTOR * angles.cos(), FACTOR * angles.sin())]


def test_gradients_are_those_of_the_formula():
    q, k, cos, sin = tensors(torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: rotate(a, b, cos, sin), [q.requires_grad_(), k.requires_grad_()])


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float64, 0), (torch.float32, 3), (torch.bfloat16, 3)])
def test_transformers_own(dtype, roundings):
    """Theirs rounds two products and their sum, ours the sum alone. The products may cancel: theirs is off by them."""
    q, k, cos, sin = tensors(dtype)
    wanted = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos[None], sin[None])
    for x, found, theirs in zip((q, k), rotate(q, k, cos, sin), wanted, strict=True):
        terms = sum(part.abs() for part in x.chunk(2, -1)).repeat(1, 1, 2) * FACTOR
        bound = (roundings + 1e-12) * torch.finfo(dtype).eps * terms
        assert found.dtype == dtype
        assert ((found - theirs[0].transpose(0, 1)).abs() <= bound).all()


def test_bf16_is_rounded_once():
    q, k, cos, sin = tensors(torch.bfloat16)
    wanted = rotate(*(x.double() for x in (q, k, cos, sin)))
    for found, exact in zip(rotate(q, k, cos, sin), wanted, strict=True):
        assert ((found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


def test_only_cosines_and_sines_are_kept():
    q, k, cos, sin = tensors(torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rotate(q.requires_grad_(), k.requires_grad_(), cos, sin)
    assert [t.data_ptr() for t in kept] == [cos.data_ptr(), sin.data_ptr()]
