"""The engine's adapted layer on CUDA: its kernel, in Triton's interpreter, against float64; the op in a compiled graph.

The interpreter multiplies bf16 wrongly, so the kernel runs in fp16 here; benchmarks/exact_linear.py runs it in bf16.
"""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="the kernel needs Triton, which this machine's stack lacks")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CASES = [  # rows, out, in, width: less than a block of each, several blocks, ends that fill none
    (1, 40, 24, 8, True),
    (5, 200, 64, 24, False),
    (33, 130, 48, 96, True),
    (130, 136, 40, 72, False),
    (64, 256, 64, 64, True),
]


def layer(rows: int, outputs: int, inputs: int, width: int, has_bias: bool) -> tuple:
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, inputs), (outputs + width, inputs + width), (outputs,)
    x, wide, bias = (torch.randn(shape, generator=generator).half() for shape in shapes)
    wide[outputs:, inputs:] = float("nan")  # what lies there is never read
    return x, wide, width, bias if has_bias else None


def test_kernel_in_the_interpreter():
    """Triton decides when it is imported whether it interprets: another process runs the tests below."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * len(CASES)} passed" in done.stdout


@pytest.mark.skipif(not INTERPRETED, reason="runs within test_kernel_in_the_interpreter")
@pytest.mark.parametrize("case", CASES)
def test_interpreted_one_rounding(case):
    """The nearest fp16 number to the float64 sum, or at what is nearly a tie the other one."""
    from rft.hooks.wide_linear import few_rows

    x, wide, width, bias = layer(*case)
    outputs, inputs = wide.shape[0] - width, wide.shape[1] - width
    beside = (x.double() @ wide[outputs:, :inputs].double().T).half().double()
    wanted = x.double() @ wide[:outputs, :inputs].double().T + beside @ wide[:outputs, inputs:].double().T
    wanted += 0 if bias is None else bias.double()
    found = few_rows(x, wide, width, bias)
    assert found.dtype == torch.float16 and found.shape == wanted.shape
    size = x.double().abs().sum(1, keepdim=True) + beside.abs().sum(1, keepdim=True)
    # Half a spacing; float32 sums; and where bf16(x A'ᵀ) of float32 sums fell the other way, a spacing of it.
    bound = wanted.abs() * 2**-11 + size * 2**-14 + 2**-24
    assert ((found.double() - wanted).abs() <= bound).all()
    assert (found == wanted.half()).double().mean() > 0.95


@pytest.mark.skipif(not INTERPRETED, reason="runs within test_kernel_in_the_interpreter")
@pytest.mark.parametrize("case", CASES)
def test_interpreted_zero_adapter(case):
    from rft.hooks.wide_linear import few_rows, without_adapter

    x, wide, width, bias = layer(*case)
    off = without_adapter(x, wide, width, bias)
    assert not torch.equal(few_rows(x, wide, width, bias), off)
    wide[: wide.shape[0] - width, wide.shape[1] - width :] = 0
    assert torch.equal(few_rows(x, wide, width, bias), off)


def test_many_rows_are_the_formula():
    from rft.hooks.wide_linear import many_rows

    x, wide, width, bias = layer(*CASES[0])
    w, b, a = wide[:-width, :-width], wide[:-width, -width:], wide[-width:, :-width]
    wanted = torch.nn.functional.linear(torch.cat((x, x @ a.T), 1), torch.cat((w, b), 1), bias)
    assert torch.equal(many_rows(x, wide, width, bias), wanted)


def test_compilers_know_the_results_shape():
    from torch._subclasses import FakeTensorMode

    from rft.hooks.wide_linear import wide_linear

    x, wide, width, bias = layer(*CASES[2])
    with FakeTensorMode() as mode:
        fake = wide_linear(mode.from_tensor(x), mode.from_tensor(wide), width, mode.from_tensor(bias))
    assert (fake.shape, fake.dtype) == ((33, 130), torch.float16)
