"""The kernels of attention, norms and rotary positions against their references, in Triton's interpreter.

It has to be chosen before Triton is imported, so these tests run in a process of their own. It cuts bf16 off where a
GPU rounds, so equality is to a spacing of the dtype.
"""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton import knobs

from rft.actor import norm, rotary
from rft.actor.attention import add_sinks

interpreted = pytest.mark.skipif(not knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1 from the start")
EPS = 1e-5


@pytest.mark.skipif(knobs.runtime.interpret, reason="this is that process")
def test_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "4 passed, 1 skipped" in done.stdout


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@interpreted
@given(
    tokens=st.integers(0, 4),
    hidden=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    weight_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    add=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_norm_is_its_reference(tokens, hidden, dtype, weight_dtype, add, seed):
    x, delta, grad, grad_total = (drawn(tokens, hidden, seed=seed + i).to(dtype) for i in range(4))
    weight = drawn(hidden, seed=seed + 4).to(weight_dtype)
    delta, grad_total = delta if add else None, grad_total if add else None

    def close(found, wanted):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, rtol=2 * torch.finfo(wanted.dtype).eps, atol=1e-4)

    total, normed, rstd = norm.launch_forward(x, delta, weight, EPS)
    close(total, x if delta is None else x + delta)
    _, wanted, wanted_rstd = norm.reference_forward(total, None, weight, EPS)
    close(normed, wanted)
    close(rstd, wanted_rstd)
    args = grad, grad_total, total, weight, rstd
    close(norm.launch_backward(*args), norm.reference_backward(*args))


@interpreted
@given(
    tokens=st.integers(1, 3),
    heads=st.integers(1, 70),
    kv_heads=st.integers(1, 40),
    half=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    sign=st.sampled_from([1, -1]),
)
def test_rotation_is_its_reference(tokens, heads, kv_heads, half, dtype, sign):
    shapes = (tokens, heads, 2 * half), (tokens, kv_heads, 2 * half), (tokens, half), (tokens, half)
    q, k, cos, sin = (drawn(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes))
    found = rotary._rotated(q, k, cos, sin, sign)
    for one, x in zip(found, (q, k), strict=True):
        torch.testing.assert_close(one, rotary.reference(x, cos, sin, sign), rtol=torch.finfo(dtype).eps, atol=1e-5)


@interpreted
def test_rotation_of_views_of_one_buffer():
    """q and k as slices of a joint projection."""
    q, k, cos, sin = drawn(5, 6, 8), drawn(5, 2, 8, seed=1), drawn(5, 4, seed=2), drawn(5, 4, seed=3)
    joint = torch.cat((q.flatten(1), k.flatten(1)), 1)
    views = (part.view(x.shape) for part, x in zip(joint.split((48, 16), 1), (q, k), strict=True))
    for one, other in zip(rotary._rotated(*views, cos, sin, 1), rotary._rotated(q, k, cos, sin, 1), strict=True):
        assert torch.equal(one, other)


@interpreted
@given(tokens=st.integers(1, 130), heads=st.integers(1, 3), dim=st.sampled_from([8, 24, 64]), size=st.floats(-200, 200))
def test_kernel_adds_sinks(tokens, heads, dim, size):
    """Against float64; sinks far from the log-sum-exps overflow no exponential."""
    out, lse, sinks = drawn(tokens, heads, dim), drawn(heads, tokens, seed=1), (size + drawn(heads)).to(torch.bfloat16)
    wanted = torch.logaddexp(lse.double(), sinks.double()[:, None])
    scaled = out.double() * (lse.double() - wanted).exp().T[..., None]
    without = lse.clone()
    found = add_sinks(out, lse, sinks)
    assert torch.equal(lse, without)  # several warps read it
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out.double(), scaled, rtol=1e-5, atol=1e-30)
