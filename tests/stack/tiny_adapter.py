"""Adapters of the tiny gpt-oss by hand, as the sync sends them."""

from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

from rft.hooks.lora_manifest import PEFT_PREFIX, build_manifest, layer_matrices
from rft.hooks.saved_adapter import A_SUFFIX, B_SUFFIX

RANK, SCALING = 8, 2.0
SHAPES = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}  # (out, in)
NAMES = [f"model.layers.{layer}.self_attn.{part}.weight" for layer in range(2) for part in SHAPES]
LAYERS = [
    {"name": n, "rank": RANK, "scaling": SCALING, "out_features": o, "in_features": i}
    for n in NAMES
    for o, i in [SHAPES[n.split(".")[-2]]]
]


def adapter(seed: int, scale: float = 0.1) -> tuple[dict, torch.Tensor]:
    """Manifest, with `seed` as its version, and flat buffer (numel,), bf16, of random A and B."""
    generator = torch.Generator().manual_seed(seed)
    manifest = build_manifest(LAYERS, torch.bfloat16, version=seed)
    return manifest, (torch.randn(manifest["numel"], generator=generator) * scale).to(torch.bfloat16)


def one_update(seed: int) -> tuple[dict, torch.Tensor]:
    """The same after one optimizer step at a learning rate of 5e-7: every element of B is that or its opposite."""
    manifest, buffer = adapter(seed)
    for layer in manifest["layers"]:
        _, b = layer_matrices(layer, buffer)
        b.copy_(5e-7 * b.sign())
    return manifest, buffer


def save(folder: Path, base: str | Path, seed: int = 5, scale: float = 0.1) -> Path:
    """`adapter` as a PEFT folder over the checkpoint `base`, with the values that the trainer would save, bf16."""
    manifest, buffer = adapter(seed, scale)
    tensors = {}
    for layer in manifest["layers"]:
        name = PEFT_PREFIX + layer["name"].removesuffix(".weight")
        for suffix, matrix in zip((A_SUFFIX, B_SUFFIX), layer_matrices(layer, buffer), strict=True):
            tensors[name + suffix] = matrix.contiguous()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    LoraConfig(
        r=RANK, lora_alpha=RANK * SCALING, target_modules=list(SHAPES), task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
    ).save_pretrained(folder)  # fmt: skip
    return folder
