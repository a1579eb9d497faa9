"""Load MXFP4 checkpoints as OpenRLHF's actor does under ZeRO-3; each rank writes what it has found to OUT/RANK.json.

python zero3_load.py CHECKPOINT LARGE OUT      with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
"""

import ctypes
import gc
import json
import os
import sys
import types
from pathlib import Path

import deepspeed
import torch
from listeners import listeners_of
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from transformers import GptOssForCausalLM, Mxfp4Config


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def large_tensors_apart() -> None:
    """Let tensors above 64 KiB have pages of their own, as those above 32 MiB always have, which the real weights are.

    Otherwise glibc puts them into holes that others have left, and the peak is that of its puzzle.
    """
    mmap_threshold = -3  # malloc.h
    assert ctypes.CDLL(None).mallopt(mmap_threshold, 1 << 16)


def different(actor: Actor, checkpoint: str) -> list[str]:
    """Parameters and buffers that are not, bit for bit and in dtype, what transformers loads; nothing is left out."""
    wanted = GptOssForCausalLM.from_pretrained(
        checkpoint, quantization_config=Mxfp4Config(dequantize=True), torch_dtype=torch.bfloat16
    )
    tensors = dict(wanted.named_parameters()) | dict(wanted.named_buffers())
    parameters = dict(actor.model.named_parameters())
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        held = parameters | dict(actor.model.named_buffers())
        assert held.keys() == tensors.keys()
        rotary = actor.model.model.rotary_emb
        held["original"], tensors["original"] = rotary.original_inv_freq, wanted.model.rotary_emb.original_inv_freq
        return [n for n, t in tensors.items() if t.dtype != held[n].dtype or not torch.equal(t, held[n])]


def main(checkpoint: str, large: str, out: str) -> None:
    large_tensors_apart()
    args = types.SimpleNamespace(param_dtype="bf16", local_rank=-1, zpg=1)
    ranks = int(os.environ["WORLD_SIZE"])
    strategy = DeepspeedStrategy(
        max_norm=1.0, micro_train_batch_size=1, train_batch_size=ranks, zero_stage=3, args=args
    )
    strategy.setup_distributed()
    config = strategy.get_ds_train_config(is_actor=True)
    actor = Actor(checkpoint, attn_implementation="eager", ds_config=config)
    found = {
        "different": different(actor, checkpoint),
        "quantized": hasattr(actor.model.config, "quantization_config"),
        "training": actor.model.training,
        "random_state": torch.get_rng_state().sum().item(),
        "listens": [place for place, _ in listeners_of([os.getpid()])],
    }
    gc.collect()
    torch.distributed.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    actor = Actor(large, attn_implementation="eager", ds_config=config)
    found["peak"] = status("VmHWM") - before
    found["weights"] = sum(2 * parameter.ds_numel for parameter in actor.model.parameters())
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
