"""Read a saved LoRA adapter as the manifest and buffer that the trainer's own sync would send."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from rft.hooks.lora_manifest import PEFT_PREFIX, build_manifest

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


def is_adapter(path: str | Path) -> bool:
    """Whether a directory holds a PEFT adapter."""
    return (Path(path) / "adapter_config.json").is_file()


def base_model_of(path: str | Path) -> str:
    """The base checkpoint that an adapter was trained on, as recorded by PEFT. Raises ValueError where none is."""
    try:
        base = json.loads((Path(path) / "adapter_config.json").read_text()).get("base_model_name_or_path")
    except ValueError as error:
        raise ValueError(f"{path}: adapter_config.json is not JSON ({error}); copy or save the adapter again") from None
    if not base:
        raise ValueError(
            f"{path}: adapter_config.json names no base_model_name_or_path; write the base checkpoint there"
        )
    return base


def read_adapter(path: str | Path, version: int = 1) -> tuple[dict, torch.Tensor]:
    """Manifest and flat buffer, shape (numel,), of the adapter in `path`.

    Raises:
        ValueError: the directory lacks the tensors, or holds others than LoRA A and B of linear layers, or options
            that the sync does not carry (DoRA, per-layer ranks).
    """
    path = Path(path)
    config = json.loads((path / "adapter_config.json").read_text())
    unsupported = [key for key in ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save") if config.get(key)]
    if unsupported:
        raise ValueError(f"{path}: the adapter uses {', '.join(unsupported)}; the sync carries plain LoRA only")
    file = path / "adapter_model.safetensors"
    if not file.is_file():
        raise ValueError(f"{path}: found no adapter_model.safetensors; wanted an adapter saved by the patched trainer")
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file}: not a complete safetensors file ({error}); copy or save the adapter again") from None
    prefixes = sorted(
        {name.removesuffix(suffix) for name in tensors for suffix in (A_SUFFIX, B_SUFFIX) if name.endswith(suffix)}
    )
    others = [name for name in tensors if not name.endswith((A_SUFFIX, B_SUFFIX))]
    if others or not prefixes or len(tensors) != 2 * len(prefixes):
        raise ValueError(f"{path}: wanted pairs of LoRA A and B only, found {others[0] if others else sorted(tensors)}")
    rank = config["r"]
    scaling = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    layers, matrices = [], []
    for prefix in prefixes:
        a, b = tensors[prefix + A_SUFFIX], tensors[prefix + B_SUFFIX]
        if not a.shape[0] == b.shape[1] == rank:
            raise ValueError(f"{path}: {prefix} has A {tuple(a.shape)} and B {tuple(b.shape)}, wanted rank {rank}")
        layers.append(
            {
                "name": f"{prefix.removeprefix(PEFT_PREFIX)}.weight",
                "rank": rank,
                "in_features": a.shape[1],
                "out_features": b.shape[0],
                "scaling": scaling,
            }
        )
        matrices += [a.flatten(), b.flatten()]
    return build_manifest(layers, matrices[0].dtype, version), torch.cat(matrices)
