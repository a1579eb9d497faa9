"""Write a LoRA adapter from under ZeRO-3: only the adapter, whole tensors, safetensors, atomically."""

import os
import shutil

import deepspeed
import torch
from peft import PeftModel, get_peft_model_state_dict

from rft.hooks.lora_sync import lora_layers


def save_adapter(model: PeftModel, tokenizer, output_dir: str) -> None:
    """Gather the adapter and write it from rank 0 with config and tokenizer; call on every rank.

    PEFT's own `save_pretrained` under ZeRO-3 writes tensors of shape (0,). Files appear in a sibling folder that is
    renamed at the end, so that a kill never leaves half an adapter under the final name.
    """
    trainable = [p for _, layer in lora_layers(model) for p in layer.parameters() if p.requires_grad]
    partitioned = any(hasattr(p, "ds_id") for p in trainable)
    with deepspeed.zero.GatheredParameters(trainable, enabled=partitioned):
        if torch.distributed.get_rank() == 0:
            tensors = {name: p.detach().cpu().clone() for name, p in model.named_parameters() if p.requires_grad}
            staging = f"{output_dir.rstrip('/')}.partial"
            shutil.rmtree(staging, ignore_errors=True)
            _require_whole(get_peft_model_state_dict(model, tensors, save_embedding_layers=False))
            model.save_pretrained(staging, state_dict=tensors, save_embedding_layers=False)
            model.config.to_json_file(os.path.join(staging, "config.json"))
            tokenizer.save_pretrained(staging)
            shutil.rmtree(output_dir, ignore_errors=True)
            os.replace(staging, output_dir)
    torch.distributed.barrier()


def _require_whole(adapter: dict[str, torch.Tensor]) -> None:
    empty = [name for name, tensor in adapter.items() if not tensor.numel()]
    if empty:
        raise ValueError(
            f"adapter not saved: {len(empty)} tensors are empty (first: {empty[0]}), ZeRO-3 did not gather"
        )
