"""Ranks: OpenRLHF's policy actor started from a saved adapter, at each ZeRO stage, eager and resident.

python init_adapter_checks.py CHECKPOINT ADAPTER OUT STAGE:ACTOR …      with RANK, LOCAL_RANK, WORLD_SIZE, …

Writes to OUT, for each case and `start` and `trained` (after an optimizer step), log-probabilities (1, columns) of
`policy`, `reference`, `off` (the adapter off) and `again` (the policy once more), `base` of an actor whose new adapter
is off, and in OUT.d/STAGE.ACTOR the adapter as it is saved after that step.
"""

import os
import sys
from pathlib import Path

import spike_train
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from safetensors.torch import save_file
from transformers import AutoTokenizer

from rft.hooks.reference import adapter_off

PROMPT, ACTIONS = 9, 31


def tokens() -> torch.Tensor:
    """(1, PROMPT + ACTIONS)"""
    return torch.randint(5, 60, (1, PROMPT + ACTIONS), generator=torch.Generator().manual_seed(2))


def inputs() -> dict[str, torch.Tensor]:
    ids = tokens()
    mask = torch.zeros(1, PROMPT - 1 + ACTIONS, dtype=torch.bool)
    mask[:, PROMPT - 1 :] = True
    return {"sequences": ids, "action_mask": mask, "attention_mask": torch.ones_like(ids)}


def policy_actor(args, strategy: DeepspeedStrategy, init_adapter: str | None):
    """The policy actor in this process, made from OpenRLHF's parts as it makes them."""
    lora = {"lora_rank": args.lora_rank, "lora_alpha": args.lora_alpha, "target_modules": args.target_modules}
    options = {"actor": args.actor, "init_adapter": init_adapter, "temperature": 1.0}
    config = strategy.get_ds_train_config(is_actor=True)
    actor = Actor(args.pretrain, attn_implementation="eager", ds_config=config, **lora, **options)
    optimizer = strategy.create_optimizer(actor, lr=1e-2, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    place = (os.environ[name] for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"))
    policy = PolicyModelActor.__ray_metadata__.modified_class(*place)
    policy.strategy = strategy
    policy.actor, policy.optimizer, policy.scheduler = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    return policy


def seen(policy) -> dict[str, torch.Tensor]:
    found = {"policy": policy.forward(**inputs()), "reference": policy.reference_forward(**inputs())}
    with adapter_off(policy.actor):
        found["off"] = policy.forward(**inputs())
    return found | {"again": policy.forward(**inputs())}


def main(checkpoint: str, adapter: str, out: str, *cases: str) -> None:
    found, ranks = {}, int(os.environ["WORLD_SIZE"])
    for case in cases:
        stage, which = case.split(":")
        args = spike_train.run_args(checkpoint, zero_stage=int(stage), world_size=ranks, dynamic=False)
        args.actor = which
        batches = {"micro_train_batch_size": 1, "train_batch_size": ranks}
        strategy = DeepspeedStrategy(zero_stage=int(stage), args=args, **batches)
        strategy.setup_distributed()
        found[f"{case}.base"] = seen(policy_actor(args, strategy, None))["reference"]
        policy = policy_actor(args, strategy, adapter)
        found |= {f"{case}.start.{name}": values for name, values in seen(policy).items()}
        policy.actor.train()
        loss = -policy.actor(**inputs()).sum()
        strategy.backward(loss, policy.actor, policy.optimizer)
        strategy.optimizer_step(policy.optimizer, policy.actor, policy.scheduler, name="actor")
        found |= {f"{case}.trained.{name}": values for name, values in seen(policy).items()}
        place = Path(f"{out}.d", f"{stage}.{which}")
        strategy.save_model(policy.actor, AutoTokenizer.from_pretrained(checkpoint), str(place))
    if torch.distributed.get_rank() == 0:
        save_file({name: values.float().contiguous() for name, values in found.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
