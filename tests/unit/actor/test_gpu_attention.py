"""Attention, norms and rotary positions on a GPU, against float64.

Needs torch, triton, pytest and rft.actor alone: `pytest --confcutdir tests/unit/actor` leaves out fixtures of others.
"""

import pytest
import torch

from rft.actor import norm, rotary
from rft.actor.attention import sink_attention
from rft.actor.packed import pack
from rft.actor.qkv import rotated_qkv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HEADS, KV_HEADS, DIM, HIDDEN, EPS = 64, 8, 64, 2880, 1e-5
RAGGED = [1, 2, 127, 128, 129, 300, 1156]


def drawn(*shape: int, seed: int = 0, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def attended(q, k, v, sinks, grad, lengths, window, **options) -> list[torch.Tensor]:
    """The result and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = sink_attention(*leaves, sinks, pack(lengths, "cuda"), window, DIM**-0.5, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def inputs(tokens: int) -> list[torch.Tensor]:
    """q, k, v, sinks and the gradient of the result."""
    shapes = (tokens, HEADS, DIM), (tokens, KV_HEADS, DIM), (tokens, KV_HEADS, DIM), (HEADS,), (tokens, HEADS, DIM)
    return [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("lengths", [RAGGED, [1, 1, 1], [640]], ids=str)
@pytest.mark.parametrize("window", [None, 1, 128])
def test_attention_is_within_bf16_of_float64(lengths, window):
    """bf16 keeps 8 bits. The kernel rounds P and dS, its results, and dk and dv a query head before their sum: a few
    times half a spacing, 2**-9, each at random; dense bf16 gets 0.007. A wrong window or sink is off by far more."""
    half = inputs(sum(lengths))
    found = attended(*half, lengths, window)
    exact = attended(*(x.double() for x in half), lengths, window)
    for name, one, other in zip(("out", "dq", "dk", "dv"), found, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - other).norm() <= 2**-7 * other.norm(), name


@pytest.mark.parametrize("lengths", [RAGGED, [2048]], ids=str)
@pytest.mark.parametrize("window", [None, 128])
def test_attention_is_the_same_bit_for_bit(lengths, window):
    runs = [attended(*inputs(sum(lengths)), lengths, window) for _ in range(4)]
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))


def test_torch_keeps_its_settings():
    before = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    attended(*inputs(5), [5], None)
    assert before == (torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory)


def test_atomics_only_change_the_order_of_sums():
    half = inputs(2048)
    fixed, atomics = (attended(*half, [2048], None, deterministic=way) for way in (True, False))
    for one, other in zip(fixed, atomics, strict=True):
        assert (one.double() - other.double()).norm() <= 2**-8 * other.double().norm()


def test_packed_is_one_sequence_at_a_time():
    half = inputs(sum(RAGGED))
    together = attended(*half, RAGGED, 128)
    apart = []
    for q, k, v, grad in zip(*(half[i].split(RAGGED) for i in (0, 1, 2, 4)), strict=True):
        apart.append(attended(q, k, v, half[3], grad, [len(q)], 128))
    for one, other in zip(together, zip(*apart, strict=True), strict=True):
        assert (one.double() - torch.cat(other).double()).norm() <= 2**-8 * one.double().norm()


def test_views_of_one_projection():
    """q, k and v as slices of one buffer, as a joint projection gives them."""
    q, k, v, sinks, grad = inputs(300)
    joint = torch.cat([x.flatten(1) for x in (q, k, v)], 1)
    parts = joint.split([x[0].numel() for x in (q, k, v)], 1)
    views = [part.view(x.shape) for part, x in zip(parts, (q, k, v), strict=True)]
    leaves = [[x.detach().requires_grad_() for x in way] for way in ((q, k, v), views)]
    outs = [sink_attention(*way, sinks, pack([300], "cuda"), 128, DIM**-0.5) for way in leaves]
    assert torch.equal(*outs)
    grads = [torch.autograd.grad(out, way, grad) for out, way in zip(outs, leaves, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("add", [True, False])
def test_norm_is_its_reference(dtype, weight_dtype, add):
    """Sums in another order: a spacing of the dtype where that crosses a rounding boundary."""
    x, delta, grad, grad_total = (drawn(1000, HIDDEN, seed=seed, dtype=dtype) for seed in range(4))
    weight = drawn(HIDDEN, seed=4, dtype=weight_dtype)
    delta, grad_total = delta if add else None, grad_total if add else None
    total, normed, rstd = norm.launch_forward(x, delta, weight, EPS)
    wanted = norm.reference_forward(x, delta, weight, EPS)
    assert torch.equal(total, wanted[0])
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(normed, wanted[1], rtol=eps, atol=1e-5)
    torch.testing.assert_close(rstd, wanted[2], rtol=1e-6, atol=0)
    args = grad, grad_total, total, weight, rstd
    torch.testing.assert_close(norm.launch_backward(*args), norm.reference_backward(*args), rtol=eps, atol=1e-4)
    again = norm.launch_forward(x, delta, weight, EPS)
    assert all(torch.equal(one, other) for one, other in zip(again, (total, normed, rstd), strict=True))


def test_norm_of_no_token():
    """A batch without an action scores none."""
    x = drawn(0, HIDDEN).requires_grad_()
    norm.rms_norm(x, drawn(HIDDEN), EPS).sum().backward()
    assert x.grad.shape == (0, HIDDEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sign", [1, -1])
def test_rotation_is_its_reference(dtype, sign):
    q, k = drawn(500, HEADS, DIM, dtype=dtype), drawn(500, KV_HEADS, DIM, seed=1, dtype=dtype)
    angles = drawn(500, DIM // 2, dtype=torch.float32) * 100
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    for found, x in zip(rotary._rotated(q, k, cos, sin, sign), (q, k), strict=True):
        wanted = rotary.reference(x, cos, sin, sign)
        torch.testing.assert_close(found, wanted, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_qkv_in_one_product():
    """Against float64: inputs are bf16, `x A'ᵀ` and the gradients beside it are rounded, and so is each result."""
    tokens, rank = 700, 32
    cos, sin = (drawn(tokens, DIM // 2, seed=seed) for seed in (1, 2))
    x = drawn(tokens, HIDDEN, seed=3)
    tensors = [x]
    for seed, heads in enumerate((HEADS, KV_HEADS, KV_HEADS), 4):
        weight, a = (drawn(rows, HIDDEN, seed=seed * 10) / HIDDEN**0.5 for rows in (heads * DIM, rank))
        tensors += [weight, drawn(heads * DIM, seed=seed), a, drawn(heads * DIM, rank, seed=seed + 10) / rank**0.5]
    grads = [drawn(tokens, heads, DIM, seed=heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]

    def run(dtype):
        x, *rest = (one.to(dtype, copy=True) for one in tensors)
        layers = [(*rest[i : i + 4], 2.0) for i in (0, 4, 8)]
        leaves = [one.requires_grad_() for one in (x, *(one for layer in layers for one in layer[2:4]))]
        made = rotated_qkv(x, layers, cos.to(dtype), sin.to(dtype), DIM)
        return [*made, *torch.autograd.grad(made, leaves, [grad.to(dtype) for grad in grads])]

    for one, other in zip(run(torch.bfloat16), run(torch.float64), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - other).norm() <= 2**-7 * other.norm()
