"""What the trainer accepts as proof of a sync, and what an adapter directory must hold."""

import copy
import json

import pytest
import torch
from safetensors.torch import save_file

from rft.hooks.adapter_files import MARKER, _move_in
from rft.hooks.lora_manifest import accepted, buffer_from_bytes, build_manifest, layer_matrices
from rft.hooks.lora_sync import compare_receipts, receipt_metrics
from rft.hooks.saved_adapter import base_model_of, read_adapter

LAYER = {
    "name": "model.layers.0.self_attn.q_proj.weight",
    "rank": 2,
    "in_features": 3,
    "out_features": 4,
    "scaling": 2.0,
}
MANIFEST = build_manifest([dict(LAYER)], torch.bfloat16, version=7)


def receipt(rank: int, checksum: str) -> dict:
    seconds = {"resolve": 0.1, "copy": 0.2, "apply": 0.3, "checksum": 0.4}
    return {
        "version": 7, "layers": 1, "tp_rank": rank, "serving": "exact",
        "checksum": checksum, "kept_share": 0.9 - 0.1 * rank,
        "output_kept_share": 1.0, "output_moved_share": 0.7, "changed_share": 0.5,
        "seconds": seconds,
    }  # fmt: skip


TWO_ENGINES = [[receipt(0, "00000000000000aa"), receipt(1, "00000000000000bb")] for _ in range(2)]


def test_equal_receipts_pass_and_become_metrics():
    compare_receipts(MANIFEST, TWO_ENGINES, "exact")
    metrics = receipt_metrics(TWO_ENGINES, [0.0, 1.0, 3.0, 6.0, 10.0])
    assert metrics["sync_output_kept_share"] == 1.0
    assert metrics["sync_seconds"] == 10.0
    assert (metrics["sync_gather_seconds"], metrics["sync_rpc_seconds"]) == (1.0, 4.0)
    assert metrics["sync_kept_share"] == pytest.approx(0.8)
    assert metrics["sync_checksum32"] == 0xAA


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("checksum", "00000000000000cc", "engine 1, tensor-parallel rank 1 holds weights 00000000000000cc"),
        ("version", 6, r"engine 1, tensor-parallel rank 1 holds \(version, layers\) \(6, 1\), wanted \(7, 1\)"),
        ("layers", 0, r"\(7, 0\), wanted \(7, 1\)"),
        ("serving", "merged", "engine 1, tensor-parallel rank 1 serves the adapter merged, wanted exact"),
    ],
)
def test_receipt_that_differs_is_an_error_that_says_where(field, value, message):
    receipts = copy.deepcopy(TWO_ENGINES)
    receipts[1][1][field] = value
    with pytest.raises(ValueError, match=message):
        compare_receipts(MANIFEST, receipts, "exact")


def test_refusal_of_one_worker_is_raised():
    with pytest.raises(ValueError, match="no parameter"):
        accepted([receipt(0, "aa"), {"refused": "no parameter for it"}])


def test_buffer_and_manifest_must_agree():
    buffer = torch.arange(14, dtype=torch.bfloat16)
    payload = buffer.view(torch.uint8).numpy().tobytes()
    a, b = layer_matrices(MANIFEST["layers"][0], buffer_from_bytes(MANIFEST, payload, torch.device("cpu")))
    assert torch.equal(a, buffer[:6].view(2, 3))
    assert torch.equal(b, buffer[6:].view(4, 2))
    with pytest.raises(ValueError, match="27 bytes, its manifest describes 28"):
        buffer_from_bytes(MANIFEST, payload[:-1], torch.device("cpu"))


def write_adapter(path, tensors, **config):
    path.mkdir(exist_ok=True)
    defaults = {"r": 2, "lora_alpha": 4, "base_model_name_or_path": "base"}
    (path / "adapter_config.json").write_text(json.dumps(defaults | config))
    save_file(tensors, path / "adapter_model.safetensors")
    return path


def test_adapter_directory_is_read_or_refused_by_name(tmp_path):
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    a, b = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(4, 2, dtype=torch.bfloat16)
    good = {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
    manifest, buffer = read_adapter(write_adapter(tmp_path / "good", good), version=7)
    assert manifest == MANIFEST
    assert buffer.numel() == 14
    for broken, config, message in (
        ({f"{prefix}.lora_A.weight": a}, {}, "wanted pairs"),
        (good | {"lm_head.weight": b.clone()}, {}, "found lm_head.weight"),
        (good, {"use_dora": True}, "use_dora"),
        (good, {"r": 8}, "wanted rank 8"),
    ):
        with pytest.raises(ValueError, match=message):
            read_adapter(write_adapter(tmp_path / "broken", broken, **config))
    (tmp_path / "broken" / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        read_adapter(write_file(tmp_path / "broken"))
    with pytest.raises(ValueError, match="names no base_model_name_or_path"):
        base_model_of(write_adapter(tmp_path / "nameless", good, base_model_name_or_path=None))


def write_file(path):
    (path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    return path


def test_saving_an_adapter_keeps_other_files_of_the_directory(tmp_path):
    staging, target = tmp_path / "out.partial", tmp_path / "out"
    staging.mkdir()
    (target / "checkpoints").mkdir(parents=True)
    (target / "checkpoints" / "precious").write_text("kept")
    (target / MARKER).write_text("old")
    for name in (MARKER, "adapter_model.safetensors"):
        (staging / name).write_text("new")
    _move_in(str(staging), str(target))
    assert (target / "checkpoints" / "precious").read_text() == "kept"
    assert (target / MARKER).read_text() == "new"
    assert not staging.exists()
