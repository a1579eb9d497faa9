"""One rank: what OpenRLHF's strategy makes of the actor and of a model for evaluation, with ZeRO-2 and with ZeRO-3.

python prepared_actor.py CHECKPOINT OUT      with RANK, LOCAL_RANK, WORLD_SIZE, …; OUT.input has `ids` (1, tokens)

Writes for STAGE 2 and 3 and MODEL trained and resident (both with a new adapter, which changes nothing) and evaluated:
`STAGE.MODEL.held.NAME` every parameter, whole, and buffer of the base model, `STAGE.MODEL.logprobs` (tokens - 1,), and
once `cos` and `sin` (tokens, head dimension / 2) and `bf16_frequencies.logprobs`, of frequencies that were cast.
"""

import sys

import deepspeed
import spike_train
import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from safetensors.torch import load_file, save_file


def prepared(checkpoint: str, stage: int) -> dict[str, Actor]:
    args = spike_train.run_args(checkpoint, zero_stage=stage, world_size=1, dynamic=False)
    strategy = DeepspeedStrategy(zero_stage=stage, micro_train_batch_size=1, train_batch_size=1, args=args)
    strategy.setup_distributed()
    lora = {"lora_rank": args.lora_rank, "lora_alpha": args.lora_alpha, "target_modules": args.target_modules}
    config = strategy.get_ds_train_config(is_actor=True)
    actors = {}
    for name, which in (("trained", "eager"), ("resident", "resident")):
        actor = Actor(checkpoint, attn_implementation="eager", ds_config=config, actor=which, **lora)
        optimizer = strategy.create_optimizer(actor, lr=1e-3, weight_decay=0.0)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        actor, *_ = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
        actors[name] = actor.eval()
    evaluated = Actor(checkpoint, attn_implementation="eager", ds_config=strategy.get_ds_eval_config())
    return actors | {"evaluated": strategy.prepare(evaluated, is_rlhf=True).eval()}


def held(actor: Actor) -> dict[str, torch.Tensor]:
    """Parameters and buffers of the base model under their checkpoint names."""
    model = actor.model.module
    parameters = dict(model.named_parameters())
    partitioned = [parameter for parameter in parameters.values() if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(partitioned, enabled=bool(partitioned)):
        found = {name: tensor.detach().clone() for name, tensor in parameters.items()}
    found |= {name: tensor.clone() for name, tensor in model.named_buffers()}
    plain = {n.removeprefix("base_model.model.").replace(".base_layer.", "."): t for n, t in found.items()}
    return {name: tensor for name, tensor in plain.items() if ".lora_" not in name}


@torch.no_grad()
def logprobs(actor: Actor, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    return actor(ids, action_mask=mask[:, 1:].bool(), attention_mask=mask)[0].float()


def main(checkpoint: str, out: str) -> None:
    ids, found = load_file(f"{out}.input")["ids"], {}
    for stage in (2, 3):
        actors = prepared(checkpoint, stage)
        for name, actor in actors.items():
            found |= {f"{stage}.{name}.held.{key}": tensor for key, tensor in held(actor).items()}
            found[f"{stage}.{name}.logprobs"] = logprobs(actor, ids)
    (rotary,) = (module for module in actors["trained"].modules() if "inv_freq" in module._buffers)
    cos, sin = rotary(torch.zeros(1, dtype=torch.bfloat16), torch.arange(ids.shape[1])[None])
    rotary.inv_freq = rotary.inv_freq.bfloat16()
    found |= {"cos": cos[0], "sin": sin[0], "bf16_frequencies.logprobs": logprobs(actors["trained"], ids)}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
