"""The weight sync on real vLLM engines, TP=1 and TP=2: served weights, receipts, refusals, tokens."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from tiny_adapter import LAYERS, NAMES, adapter, one_update

from rft.hooks.lora_manifest import build_manifest
from rft.serving.engine import sync_engine
from rft.serving.served import expected_layer, merged, read_layer

pytestmark = pytest.mark.stack


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
