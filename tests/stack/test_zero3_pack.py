"""What leaves the trainer is the adapter itself, whole and in order, whatever the number of ZeRO-3 ranks."""

import json
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from safetensors import safe_open

from rft.hooks.lora_manifest import layer_matrices

pytestmark = pytest.mark.stack
SHAPES = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}  # (out, in)


def pack(checkpoint: Path, out: Path, ranks: int) -> tuple[dict, torch.Tensor]:
    run_ranks("zero3_pack.py", ranks, checkpoint, out)
    with safe_open(out, framework="pt") as file:
        return json.loads(file.metadata()["manifest"]), file.get_tensor("buffer")


@pytest.mark.parametrize("ranks", [1, 2])
def test_packed_adapter_is_exact_from_any_number_of_ranks(checkpoint, tmp_path, ranks):
    manifest, buffer = pack(checkpoint, tmp_path / "adapter.safetensors", ranks)
    assert manifest["version"] == 5
    assert buffer.dtype == torch.bfloat16
    assert buffer.numel() == manifest["numel"]
    generator = torch.Generator().manual_seed(7)
    names = [f"model.layers.{layer}.self_attn.{part}.weight" for layer in range(2) for part in SHAPES]
    assert sorted(layer["name"] for layer in manifest["layers"]) == sorted(names)
    for layer in manifest["layers"]:
        out_features, in_features = SHAPES[layer["name"].split(".")[-2]]
        assert (layer["out_features"], layer["in_features"], layer["scaling"]) == (out_features, in_features, 2.0)
        for found in layer_matrices(layer, buffer):
            assert torch.equal(found, torch.randn(found.shape, generator=generator).to(torch.bfloat16))
