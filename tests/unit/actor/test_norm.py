"""RMSNorm of a sum: against transformers' own."""

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from triton import knobs

from rft.actor.norm import add_rms_norm, rms_norm

EPS = 1e-5
# The interpreter cuts bf16 off where torch rounds; test_attention_kernels.py compares to a spacing there.
pytestmark = pytest.mark.skipif(knobs.runtime.interpret, reason="of the plain references: not with TRITON_INTERPRET=1")


def tensors(dtype, tokens: int = 5, hidden: int = 45, seed: int = 0) -> list[torch.Tensor]:
    """x, delta, weight (float64), and the gradients of the sum and of the norm."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(tokens, hidden, generator=generator, dtype=torch.float64) for _ in range(4)]
    weight = 1 + torch.randn(hidden, generator=generator, dtype=torch.float64) / 4
    x, delta, *grads = (one.to(dtype) for one in made)
    return [x, delta, weight, *grads]


def theirs(weight: torch.Tensor) -> GptOssRMSNorm:
    """Theirs computes in float32 and rounds the weight nowhere, so it gets the weight in what it computes in."""
    module = GptOssRMSNorm(len(weight), EPS)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


def test_gradients_of_both_are_those_of_the_formula():
    x, delta, weight, *_ = tensors(torch.float64)
    assert torch.autograd.gradcheck(lambda a: rms_norm(a, weight, EPS), [x.requires_grad_()])
    assert torch.autograd.gradcheck(lambda a, b: add_rms_norm(a, b, weight, EPS), [x, delta.requires_grad_()])


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_transformers_own_bit_for_bit(dtype, weight_dtype):
    x, delta, weight, *_ = tensors(dtype)
    weight = weight.to(weight_dtype)
    total, normed = add_rms_norm(x, delta, weight, EPS)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, theirs(weight)(x + delta))
    assert torch.equal(rms_norm(total, weight, EPS), normed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_rounded_once(dtype):
    x, delta, weight, *grads = tensors(dtype)
    x, delta = x.requires_grad_(), delta.requires_grad_()
    weight = weight.to(dtype)
    torch.autograd.backward(add_rms_norm(x, delta, weight, EPS), grads)
    # In float64 from the rounded sum on, which is what the layers above saw.
    total = (x + delta).detach().double().requires_grad_()
    torch.autograd.backward((total, rms_norm(total, weight.double(), EPS)), [g.double() for g in grads])
    half = torch.finfo(dtype).eps / 2
    assert ((x.grad.double() - total.grad).abs() <= half * total.grad.abs() + 1e-5).all()
    assert torch.equal(x.grad, delta.grad)


def test_only_the_sum_and_a_number_a_token_are_kept():
    x, delta, weight, *_ = tensors(torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        total, _ = add_rms_norm(x.requires_grad_(), delta, weight, EPS)
    assert sorted(t.data_ptr() for t in kept[:2]) == sorted([total.data_ptr(), weight.data_ptr()])
    assert [(t.shape, t.dtype) for t in kept[2:]] == [((len(x),), torch.float32)]
