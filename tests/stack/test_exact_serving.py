"""Adapters beside the weights of real vLLM engines, TP=1 and TP=2: layers, logits, repeated syncs, refusals."""

import sys

import cloudpickle
import pytest
import torch
from safetensors.torch import load_file
from tiny_adapter import LAYERS, NAMES, SCALING, adapter, one_update

from rft.hooks.lora_manifest import build_manifest, layer_matrices
from rft.serving.engine import sync_engine

pytestmark = pytest.mark.stack
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
PARTS = ("q_proj", "k_proj", "v_proj")


def run_layers(worker) -> dict[str, list[torch.Tensor]]:
    """Inputs, outputs without bias, weight and bias-free base outputs of each attention layer of this rank."""
    found = {}
    for name, layer in worker.model_runner.get_model().named_modules():
        if name.endswith(("qkv_proj", "o_proj")):
            generator = torch.Generator().manual_seed(len(found))
            x = torch.randn(5, layer.weight.shape[1], generator=generator).to(torch.bfloat16)
            found[name] = [x, layer.quant_method.apply(layer, x), layer.weight.clone()]
    return found


def expected(x: torch.Tensor, weight: torch.Tensor, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """`bf16([x, x A'ᵀ] [W | B]ᵀ)`, projection by projection, in float64 but for what the formula rounds."""
    rows, outputs = weight.split([len(b) for _, b in parts]), []
    for base, (a, b) in zip(rows, parts, strict=True):
        beside = (x.double() @ (a * SCALING).double().T).to(torch.bfloat16)
        outputs.append((x.double() @ base.double().T + beside.double() @ b.double().T).to(torch.bfloat16))
    return torch.cat(outputs, -1)


def shards(name: str, manifest: dict, buffer: torch.Tensor, rank: int, ranks: int) -> list[tuple]:
    """(A, B) of this tensor-parallel rank for each projection of a layer, cut by hand."""
    number = name.split(".")[2]
    matrices = {layer["name"].split(".")[-2]: layer_matrices(layer, buffer) for layer in manifest["layers"]
                if layer["name"].startswith(f"model.layers.{number}.")}  # fmt: skip
    if name.endswith("o_proj"):
        a, b = matrices["o_proj"]
        return [(a.chunk(ranks, dim=1)[rank], b)]
    return [(a, b.chunk(ranks)[rank]) for a, b in (matrices[part] for part in PARTS)]


def spacing(values: torch.Tensor) -> torch.Tensor:
    """The distance to the next bf16 number, of each value's size."""
    return 2.0 ** (values.double().abs().clamp(min=2**-126).log2().floor() - 7)


def assert_same_bits(found: list[dict], wanted: list[dict]) -> None:
    for layers, others in zip(found, wanted, strict=True):
        assert layers.keys() == others.keys()
        assert all(torch.equal(a, b) for name in layers for a, b in zip(layers[name], others[name], strict=True))


def assert_formula(engine, manifest: dict, buffer: torch.Tensor) -> None:
    ranks = engine.collective_rpc(run_layers)
    for rank, layers in enumerate(ranks):
        assert len(layers) == 4
        for name, (x, found, weight) in layers.items():
            wanted = expected(x, weight, shards(name, manifest, buffer, rank, len(ranks)))
            # One rounding from float32 sums: at a tie, or where bf16(x A'ᵀ) fell the other way, the neighbour.
            difference = (found.double() - wanted.double()).abs()
            assert (difference <= 1.01 * spacing(wanted) + 1e-4).all(), name
            assert (difference == 0).float().mean() > 0.9, name


def test_layer_computes_the_formula(exact_engine):
    manifest, buffer = adapter(seed=11)
    receipts = sync_engine(exact_engine, manifest, buffer)
    assert [(r["serving"], r["kept_share"], r["version"], r["layers"]) for r in receipts] == [
        ("exact", 1.0, 11, len(NAMES))
    ] * len(receipts)
    assert all(0.9 < r["output_kept_share"] < 1.1 for r in receipts)
    assert_formula(exact_engine, manifest, buffer)


def test_a_small_update_is_served(exact_engine):
    """One update of 5e-7, of which merged weights and PEFT's sum of rounded outputs keep under 1%."""
    receipts = sync_engine(exact_engine, *one_update(seed=12))
    # 4,000 outputs a layer: the standard error is 15%.
    assert all(0.5 < receipt["output_kept_share"] < 1.5 for receipt in receipts)


def test_weights_stay_and_syncs_leave_nothing_behind(exact_engine, checkpoint):
    """After many adapters, one of another rank and a zero one: the same bits as after the first of them."""
    before = exact_engine.collective_rpc(run_layers)
    manifest, buffer = adapter(seed=1)
    first = sync_engine(exact_engine, manifest, buffer)
    held = exact_engine.collective_rpc(run_layers)
    for seed in range(2, 20):
        sync_engine(exact_engine, *adapter(seed))
    thin = build_manifest([{**layer, "rank": 3} for layer in LAYERS], torch.bfloat16, version=30)
    thin_buffer = adapter(seed=2)[1][: thin["numel"]]
    sync_engine(exact_engine, thin, thin_buffer)
    assert_formula(exact_engine, thin, thin_buffer)
    again = sync_engine(exact_engine, manifest, buffer)
    assert [r["checksum"] for r in again] == [r["checksum"] for r in first]
    assert_same_bits(exact_engine.collective_rpc(run_layers), held)
    reversed_layers = build_manifest(LAYERS[::-1], torch.bfloat16, version=1)
    order = [layer_matrices(layer, buffer) for layer in manifest["layers"][::-1]]
    turned = torch.cat([matrix.flatten() for pair in order for matrix in pair])
    assert [r["checksum"] for r in sync_engine(exact_engine, reversed_layers, turned)] == [r["checksum"] for r in first]
    zero = sync_engine(exact_engine, manifest, torch.zeros_like(buffer))
    assert all(r["kept_share"] is None and r["output_kept_share"] is None and not r["changed_share"] for r in zero)
    stored = load_file(checkpoint / "model.safetensors")["model.layers.0.self_attn.o_proj.weight"]
    after = exact_engine.collective_rpc(run_layers)
    for rank, layers in enumerate(after):
        for name, (_, _, weight) in layers.items():
            assert torch.equal(weight, before[rank][name][2])
        assert torch.equal(layers["model.layers.0.attn.o_proj"][2], stored.chunk(len(after), dim=1)[rank])


def test_zero_adapter_is_the_base(exact_engine):
    manifest, buffer = adapter(seed=5)
    sync_engine(exact_engine, manifest, torch.zeros_like(buffer))
    for layers in exact_engine.collective_rpc(run_layers):
        for name, (x, output, weight) in layers.items():
            plain = torch.nn.functional.linear(x, weight)
            assert ((output.double() - plain.double()).abs() <= spacing(plain)).all(), name


def test_log_probabilities_are_float32_sums(exact_engine):
    """Not bf16 logits: the differences between a token's alternatives lie on no bf16 grid."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, logprobs=5)
    (output,) = exact_engine.generate([{"prompt_token_ids": list(range(5, 30))}], params, use_tqdm=False)
    values = torch.tensor([entry.logprob for entry in output.outputs[0].logprobs[0].values()])
    gaps = values[:-1] - values[1:]
    assert (gaps * 2**12 % 1 != 0).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 17}, "adapter of rank 17, the engine has room for 16"),
        ({"name": "model.layers.0.self_attn.qq_proj.weight"}, "self_attn.qq_proj.weight"),
    ],
    ids=["no-room", "misnamed"],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(exact_engine, change, message):
    manifest, buffer = adapter(seed=21)
    sync_engine(exact_engine, manifest, buffer)
    broken = build_manifest([{**LAYERS[0], **change}, *LAYERS[1:]], torch.bfloat16, version=22)
    with pytest.raises(Exception, match=message):
        sync_engine(exact_engine, broken, torch.ones(broken["numel"], dtype=torch.bfloat16))
    assert_formula(exact_engine, manifest, buffer)
