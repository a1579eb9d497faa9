"""One ZeRO-3 rank: load the actor as OpenRLHF does, give its adapter known values, pack it, write it from rank 0.

python zero3_pack.py CHECKPOINT OUT      with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
"""

import json
import os
import sys
import types

import deepspeed
import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from safetensors.torch import save_file

from rft.hooks.lora_sync import lora_layers, pack_adapter

GATHERS = 200  # without rft.hooks.cpu_collectives three to eight are read too early


def main(checkpoint: str, out: str) -> None:
    args = types.SimpleNamespace(param_dtype="bf16", local_rank=-1, zpg=1)
    strategy = DeepspeedStrategy(
        max_norm=1.0, micro_train_batch_size=1, train_batch_size=int(os.environ["WORLD_SIZE"]), zero_stage=3, args=args
    )
    strategy.setup_distributed()
    actor = Actor(
        checkpoint,
        attn_implementation="eager",
        lora_rank=8,
        lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        ds_config=strategy.get_ds_train_config(is_actor=True),
    )
    optimizer = strategy.create_optimizer(actor, lr=1e-3, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, *_ = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    model = actor.model.module
    trainable = [p for p in model.parameters() if p.requires_grad]
    with deepspeed.zero.GatheredParameters(trainable, modifier_rank=0):
        generator = torch.Generator().manual_seed(7)
        for _, layer in lora_layers(model):
            for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
                matrix.data.copy_(torch.randn(matrix.shape, generator=generator))
    partitioned = [p for p in model.parameters() if hasattr(p, "ds_id")]
    assert partitioned, "ZeRO-3 has not partitioned the model"
    packed = []
    for _ in range(GATHERS):
        with deepspeed.zero.GatheredParameters(trainable):
            packed.append(pack_adapter(lora_layers(model), version=5))
    if torch.distributed.get_rank() == 0:
        manifest, buffer = packed[0]
        assert all(torch.equal(other, buffer) for _, other in packed), "a gather was read before it was complete"
        save_file({"buffer": buffer}, out, metadata={"manifest": json.dumps(manifest)})
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
