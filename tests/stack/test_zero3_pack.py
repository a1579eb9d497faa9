"""What leaves the trainer is the adapter itself, whole and in order, whatever the number of ZeRO-3 ranks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rft.hooks.lora_manifest import layer_matrices

pytestmark = pytest.mark.stack
SHAPES = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}  # (out, in)


def pack(checkpoint: Path, out: Path, ranks: int) -> tuple[dict, torch.Tensor]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(Path(__file__).with_name("zero3_pack.py")), str(checkpoint), str(out)]
    processes = [
        subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        assert [p.wait(timeout=300) for p in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
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
