"""The actor's benchmark without the stack: where kernels belong, and what its tables say."""

import pytest
import torch
from torch.profiler import profile

from benchmarks import actor, kernel_families
from benchmarks.kernel_families import covered, family, forward_regions, marked, profiled, region, region_of
from rft.actor.qkv import rotated_qkv


class Doubled(torch.autograd.Function):
    """A function with its own backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x + x.sin() * 0 + x

    @staticmethod
    def backward(ctx, grad):
        return grad + grad.cos() * 0 + grad


class Experts(torch.nn.Module):
    def forward(self, x):
        return Doubled.apply(x.tanh())


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()

    def forward(self, x):
        return self.experts(x) * x.sigmoid()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.q_proj(x).softmax(-1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x.exp() + self.self_attn(x)
        return x + self.mlp(x)


class Model(torch.nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        self.layers, self.recompute = torch.nn.ModuleList([Layer()]), recompute

    def forward(self, x):
        (layer,) = self.layers
        x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        with region("head"):
            return x.cosh()


HOMES = {  # what operations of the model above, forward and backward, belong to
    "aten::exp": "other",
    "aten::addmm": "projections",
    "aten::mm": "projections",
    "aten::_softmax": "attention",
    "aten::_softmax_backward_data": "attention",
    "aten::sigmoid": "routing",
    "aten::sigmoid_backward": "routing",
    "aten::tanh": "experts",
    "aten::tanh_backward": "experts",
    "aten::sin": "experts",
    "aten::cos": "experts",
    "aten::cosh": "head",
    "aten::sinh": "head",
}


@pytest.mark.parametrize("recompute", [False, True])
def test_backward_belongs_to_where_the_forward_pass_did(recompute):
    model, x = Model(recompute), torch.randn(4, 8, requires_grad=True)
    with marked(model), profile() as found:
        model(x).sum().backward()
    operations = [event for event in found.events() if event.name in HOMES]
    assert {event.name for event in operations} == HOMES.keys()
    homes = forward_regions(list(found.events()))
    assert {(event.name, region_of(event, homes)) for event in operations} == set(HOMES.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_one_product_of_q_k_and_v_is_a_projection():
    x, angles = torch.randn(5, 8, requires_grad=True), torch.zeros(5, 2)
    layers = [(torch.randn(4, 8), None, torch.randn(2, 8), torch.randn(4, 2), 2.0) for _ in range(3)]
    with profile() as found:
        with region("attention"):
            q, k, v = rotated_qkv(x, layers, angles.cos(), angles.sin(), 4)
        (q + k + v).sum().backward()
    homes = forward_regions(list(found.events()))
    products = [region_of(event, homes) for event in found.events() if event.name == "aten::mm"]
    assert products == ["projections"] * len(products)
    assert len(products) == 6


def test_families_share_the_whole_time():
    model = Model()
    times = profiled(model, lambda: model(torch.randn(4, 8)).sum().backward())
    assert tuple(times) == kernel_families.FAMILIES
    assert all(times[name] > 0 for name in ("projections", "attention", "routing", "experts, other", "head", "other"))
    assert times["idle"] == times["dequantise"] == times["norms"] == 0


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ("_dequantize", "dequantise"),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<", "experts GEMM"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "experts GEMM"),
        ("aten::_grouped_mm", "experts GEMM"),
        ("aten::bmm", "experts GEMM"),
        ("_swiglu_backward", "experts, other"),
        ("void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<c10::BFloat16>", "experts, other"),
        ("aten::index_add_", "experts, other"),
    ],
)  # fmt: skip
def test_kernels_of_the_experts_are_told_apart(kernel, wanted):
    assert family("experts", kernel) == wanted
    assert family("attention", kernel) == "attention"
    assert family(None, kernel) == "other"


def test_what_intervals_cover_counts_once():
    assert covered([(5, 7), (1, 3), (2, 4), (2, 3)]) == (5, 6)
    assert covered([]) == (0, 0)


def passes(seconds: float) -> dict:
    found = {"tokens": 2048, "pass": "forward", "seconds": [seconds, 9 * seconds, seconds / 2], "peak_gib": 30.0}
    return {"device": "NVIDIA H200", "passes": [found], "profiles": {}}


def test_rows_have_rates_of_medians_and_the_ratio_to_eager():
    record = {"settings": {"shape": "20b", "layers": 24}, "parts": {"resident": passes(0.05), "eager": passes(1.0)}}
    resident, eager = actor.speed_rows(record)
    assert resident[:6] == ("resident", 2048, "forward", 0.05, "0.025-0.45", "40960")
    # TFLOP of 2,048 tokens in two sequences: `tests/unit/test_flops.py` counts 15.9 for one of 4,096 in all but the
    # head; half of it, less the attention between the two halves.
    assert resident[6] == pytest.approx(20 * eager[6])
    assert resident[6] * 0.05 == pytest.approx(15.0, rel=0.05)
    assert resident[7] == f"{resident[6] / 989:.0%}"
    assert resident[8:] == ("30.0", 20.0)
    assert eager[9] == 1


def test_distances_are_of_all_batches():
    exact = [(torch.zeros(2, 3), torch.tensor([3.0, 4.0])), (torch.zeros(2, 3), torch.tensor([0.0, 1.0]))]
    found = [(torch.full((2, 3), 0.5), torch.tensor([3.0, 5.0])), (torch.full((2, 3), -1.5), torch.tensor([0.0, 2.0]))]
    assert actor.compared(exact, found) == {
        "tokens": 12, "mean_abs": 1.0, "p99_abs": 1.5, "max_abs": 1.5,
        "gradient_error": pytest.approx(0.6), "gradient_error_max": 1.0,
    }  # fmt: skip
