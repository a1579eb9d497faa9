"""Write a LoRA adapter from under ZeRO-3: only the adapter, complete tensors, safetensors, atomically."""

import os
import shutil
from typing import TYPE_CHECKING

import deepspeed
import torch
from peft import PeftModel

from rft.hooks.lora_sync import ADAPTER, lora_layers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKER = "adapter_config.json"


def save_adapter(model: PeftModel, tokenizer: "PreTrainedTokenizerBase", output_dir: str) -> None:
    """Gather the adapter and write it from rank 0 with config and tokenizer; call on every rank.

    PEFT's own `save_pretrained` under ZeRO-3 writes tensors of shape (0,). Files are written in a sibling folder and
    moved in, `adapter_config.json` last: a kill never leaves what looks like an adapter and is half of one. Other files
    in `output_dir` stay, since OpenRLHF's default checkpoint folder lies inside its default save folder.
    """
    trainable = [p for _, layer in lora_layers(model) for p in layer.parameters() if p.requires_grad]
    partitioned = any(hasattr(p, "ds_id") for p in trainable)
    with deepspeed.zero.GatheredParameters(trainable, enabled=partitioned):
        if torch.distributed.get_rank() == 0:
            tensors = {name: p.detach().cpu().clone() for name, p in model.named_parameters() if p.requires_grad}
            staging = f"{output_dir.rstrip('/')}.partial"
            if os.path.exists(staging):
                shutil.rmtree(staging)
            _require_whole(tensors)
            # By its name: a reference adapter (rft.hooks.init_adapter) beside it was not trained.
            model.save_pretrained(staging, state_dict=tensors, save_embedding_layers=False, selected_adapters=[ADAPTER])
            model.config.to_json_file(os.path.join(staging, "config.json"))
            tokenizer.save_pretrained(staging)
            _move_in(staging, output_dir)
    torch.distributed.barrier()


def _move_in(staging: str, output_dir: str) -> None:
    """Move the files of `staging` into `output_dir`; what makes a directory an adapter goes first and comes last."""
    os.makedirs(output_dir, exist_ok=True)
    marker = os.path.join(output_dir, MARKER)
    if os.path.exists(marker):
        os.remove(marker)
    for name in sorted(os.listdir(staging), key=lambda name: name == MARKER):
        os.replace(os.path.join(staging, name), os.path.join(output_dir, name))
    os.rmdir(staging)


def _require_whole(adapter: dict[str, torch.Tensor]) -> None:
    empty = [name for name, tensor in adapter.items() if not tensor.numel()]
    if empty:
        raise ValueError(
            f"adapter not saved: {len(empty)} tensors are empty (first: {empty[0]}), ZeRO-3 did not gather"
        )
