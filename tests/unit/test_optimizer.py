"""Which Adam trains where DeepSpeed's own cannot be compiled."""

import types

import pytest
import torch
from deepspeed.ops.op_builder import FusedAdamBuilder

from rft.hooks import optimizer


@pytest.fixture
def no_build_tools(monkeypatch):
    monkeypatch.setenv("PATH", "")


def test_what_stops_the_build_is_named(no_build_tools):
    assert "ninja" in optimizer.why_not_built(FusedAdamBuilder())


def test_accelerator_without_build_tools_trains_with_torch_s_fused_adamw(no_build_tools, monkeypatch, capsys):
    monkeypatch.setattr(optimizer, "get_accelerator", lambda: types.SimpleNamespace(device_name=lambda: "cuda"))
    chosen = optimizer.adam_class(adam_offload=False)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "torch's fused AdamW" in printed
    assert "ninja" in printed
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    for weight, make in zip(weights, (chosen, torch.optim.AdamW), strict=True):
        adam = make([weight], lr=0.1, betas=(0.9, 0.95), weight_decay=0.0)
        assert type(adam) is torch.optim.AdamW
        weight.grad = torch.tensor([1.0, -2.0, 3.0, 0.0])
        adam.step()
    assert torch.allclose(*weights)
    assert not torch.equal(weights[0], torch.ones(4))


def test_cpu_uses_torch_s_adamw_without_trying_to_build():
    assert optimizer.adam_class(adam_offload=False) is torch.optim.AdamW
    assert optimizer.adam_class(adam_offload=True) is torch.optim.AdamW


def test_offloaded_adam_without_a_cuda_toolkit_is_torch_s(monkeypatch, capsys):
    """As on a machine with a GPU, ninja and no toolkit: there DeepSpeed's builder dies, of one error or another."""
    from deepspeed.ops.op_builder.cpu_adam import CPUAdamBuilder

    monkeypatch.setattr(optimizer, "get_accelerator", lambda: types.SimpleNamespace(device_name=lambda: "cuda"))
    monkeypatch.setattr(optimizer, "CPUAdamBuilder", CPUAdamBuilder)
    with monkeypatch.context() as gpu:
        gpu.setattr("torch.cuda.is_available", lambda: True)
        gpu.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
        gpu.setattr("torch.utils.cpp_extension.verify_ninja_availability", lambda: None)
        chosen = optimizer.adam_class(adam_offload=True)
    printed = capsys.readouterr().out
    assert printed.count("torch's fused AdamW, since DeepSpeed's DeepSpeedCPUAdam cannot be built here (") == 1
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    chosen([weight], lr=0.1).step()
    assert (weight < 1).all()


def test_torch_s_adamw_is_the_adamw_of_the_paper():
    """Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, in float64; the bound is a rounding of the weight a step.

    DeepSpeed's is the same: compiled on a CPU (221 s), it was within 18 such roundings of torch's after these steps.
    """
    steps, rate, beta1, beta2, epsilon, decay = 50, 1e-3, 0.9, 0.95, 1e-8, 0.1
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(1000, generator=generator))
    wanted = weight.detach().double()
    first, second = torch.zeros_like(wanted), torch.zeros_like(wanted)
    make = optimizer.adam_class(adam_offload=True)
    adam = make([weight], lr=rate, betas=(beta1, beta2), weight_decay=decay)  # as OpenRLHF's create_optimizer calls it
    for step in range(1, steps + 1):
        weight.grad = torch.randn(1000, generator=generator)
        gradient = weight.grad.double()
        adam.step()
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        corrected = (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
        wanted -= rate * (corrected + decay * wanted)
    error = (weight.detach().double() - wanted).abs() / torch.finfo(torch.float32).eps
    assert (error <= steps * (wanted.abs() + rate)).all()
