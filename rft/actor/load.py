"""Read a gpt-oss checkpoint as the resident actor holds it: experts packed, all else in one dtype, each byte once."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, GptOssForCausalLM

from rft.actor.experts import ResidentExperts
from rft.actor.meta import without_weights
from rft.actor.model import ResidentGptOss, make_resident
from rft.actor.sharded import ShardedExperts, gathering
from rft.options.actor import is_packed, read_config

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


def load_resident(
    checkpoint: str, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, shard: int = 1
) -> ResidentGptOss:
    """A gpt-oss checkpoint in MXFP4, in evaluation mode.

    Every tensor goes from its file to `device` by itself: neither the host nor the device ever holds a dequantised
    model, nor a second copy.

    Args:
        checkpoint: a folder, or the name of a model in the hub's local cache.
        dtype: of the parameters; the packed experts are uint8.
        shard: ranks that split the experts among them, neighbours in the process group; 1: each holds all.

    Raises:
        ValueError: the checkpoint is no gpt-oss in MXFP4, or lacks a tensor, or has one too many or of another shape.
    """
    folder = local_folder(checkpoint)
    stored = read_config(str(folder))
    if not is_packed(stored):
        raise ValueError(
            f"{folder}: the resident actor trains gpt-oss with experts in MXFP4\n"
            f"  found:  model_type {stored.get('model_type')}, quantisation {stored.get('quantization_config')}\n"
            "  wanted: gpt_oss, mxfp4\n  repair: --actor eager"
        )
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    with without_weights():
        model = GptOssForCausalLM(config)
    together = gathering(shard) if shard > 1 else None
    for layer in model.model.layers:
        experts = (
            ShardedExperts(config, device, dtype, together) if together else ResidentExperts(config, "meta", dtype)
        )
        layer.mlp.experts = experts
    fill(model, folder, torch.device(device), dtype)
    model.model.rotary_emb.to(device)
    return make_resident(model).eval()


def local_folder(checkpoint: str) -> Path:
    """The folder of a checkpoint, or of a hub's model that has been downloaded."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, allow_patterns=["*.json", "*.safetensors"], ignore_patterns="*/*"))


def files(folder: Path) -> dict[str, list[str]]:
    """Names of the tensors by file, each in the order of the index. Raises ValueError where there is none."""
    if (folder / INDEX).is_file():
        by_file: dict[str, list[str]] = {}
        for name, file in json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].items():
            by_file.setdefault(file, []).append(name)
        return by_file
    if not (folder / WHOLE).is_file():
        raise ValueError(f"{folder}: found neither {INDEX} nor {WHOLE}, wanted a checkpoint in safetensors")
    with safe_open(folder / WHOLE, framework="pt") as opened:
        return {WHOLE: list(opened.keys())}


def fill(model: torch.nn.Module, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Set every parameter and packed buffer of a model from the files of a checkpoint. Raises ValueError, see above."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    packed = {name for name in buffers if ".experts." in name}
    wanted = {*parameters, *packed}
    by_file = files(folder)
    found = {name for names in by_file.values() for name in names}
    if found != wanted:
        name = sorted(found ^ wanted)[0]
        raise ValueError(f"{folder}: {'lacks' if name in wanted else 'has an unknown'} tensor {name}")
    for file, names in by_file.items():
        with safe_open(folder / file, framework="pt", device=str(device)) as opened:
            for name in names:
                place, _, attribute = name.rpartition(".")
                module, stored = model.get_submodule(place), opened.get_slice(name)
                held = buffers[name] if name in packed else parameters[name]
                rows = module.held if name in packed else slice(None)
                wanted_shape = [len(range(*rows.indices(stored.get_shape()[0]))), *stored.get_shape()[1:]]
                if wanted_shape != list(held.shape):
                    raise ValueError(
                        f"{folder}: {name} has shape {stored.get_shape()}, wanted {list(held.shape)} by config.json"
                    )
                if name in packed:
                    module._buffers[attribute] = stored[rows]
                else:
                    module._parameters[attribute] = torch.nn.Parameter(stored[:].to(dtype), requires_grad=False)
