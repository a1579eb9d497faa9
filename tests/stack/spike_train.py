"""One rank that trains the tiny actor on made-up experience through OpenRLHF's own `ActorPPOTrainer`, without Ray.

python spike_train.py CHECKPOINT OUT ZERO_STAGE KIND        with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT

Two rollouts of two updates of two micro-batches, or with KIND `dynamic` of micro-batches by tokens; with one rank their
very last sample has an infinite advantage. With `turns` the samples are conversations, and with `turns-noise` the same
ones with other log-probabilities (old, engine's, reference's) and advantages wherever nothing was sampled. Rank 0
writes to OUT the adapter as it was before every micro-batch and at the end (`adapters.safetensors`), and what each
training step reported, with the metrics of each rollout (`status.json`).
"""

import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience_maker import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.deepspeed import DeepspeedStrategy
from safetensors.torch import save_file
from transformers import AutoTokenizer

from rft.hooks import token_batches
from rft.hooks.lora_sync import lora_layers

MICRO, MICROS_AN_UPDATE, UPDATES, ROLLOUTS = 2, 2, 2, 2
KL_COEFFICIENT = 0.05


def run_args(checkpoint: str, zero_stage: int, world_size: int, dynamic: bool) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        actor="eager",
        actor_num_gpus_per_node=world_size,
        actor_num_nodes=1,
        attn_implementation="eager",
        async_train=False,
        aux_loss_coef=0,
        colocate_all_models=False,
        ds_tensor_parallel_size=1,
        dual_clip=None,
        enable_vllm_is_correction=True,
        entropy_loss_coef=0,
        eps_clip_low_high=[0.2, 0.3],
        full_determinism=False,
        gradient_checkpointing=False,
        init_adapter=None,
        init_kl_coef=KL_COEFFICIENT,
        kl_estimator="k3",
        load_in_4bit=False,
        local_rank=-1,
        loss_normalization="batch",
        lora_alpha=16,
        lora_dropout=0,
        lora_rank=8,
        max_epochs=1,
        max_norm=1.0,
        micro_train_batch_size=1 if dynamic else MICRO,
        micro_train_tokens=96 if dynamic else 0,
        n_samples_per_prompt=2,
        on_policy_ratio_one=False,
        packing_samples=False,
        param_dtype="bf16",
        policy_loss_type="ppo",
        pretrain=checkpoint,
        ring_attn_size=1,
        rollout_seeds="request",
        rollout_batch_size=MICRO * MICROS_AN_UPDATE * UPDATES * world_size // 2,
        seed=11,
        shard_experts=1,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        temperature=0.9,
        train_batch_size=MICRO * MICROS_AN_UPDATE * world_size,
        use_dynamic_batch=dynamic,
        use_kl_loss=True,
        use_liger_kernel=False,
        use_wandb="a-secret-key",
        vllm_is_correction_type="tis",
        vllm_is_bounds=[2.0],
        vllm_is_truncated_threshold=[0.5, 5.0],  # upstream's default
        vllm_num_engines=0,
        vllm_sync_backend="gloo",
        vllm_sync_with_ray=False,
        zero_stage=zero_stage,
        zpg=1,
    )


def build_trainer(args: types.SimpleNamespace) -> ActorPPOTrainer:
    strategy = DeepspeedStrategy(
        seed=args.seed,
        max_norm=args.max_norm,
        micro_train_batch_size=args.micro_train_batch_size,
        train_batch_size=args.train_batch_size,
        zero_stage=args.zero_stage,
        args=args,
    )
    strategy.setup_distributed()
    actor = Actor(
        args.pretrain,
        attn_implementation=args.attn_implementation,
        lora_rank=args.lora_rank,
        lora_alpha=args.lora_alpha,
        target_modules=args.target_modules,
        ds_config=strategy.get_ds_train_config(is_actor=True),
        temperature=args.temperature,
    )
    if args.param_dtype == "fp32":
        actor.float()
    generator = torch.Generator().manual_seed(7)
    for _, layer in lora_layers(actor.model):  # with B = 0 no gradient reaches A
        matrix = layer.lora_B["default"].weight
        matrix.data.copy_(torch.randn(matrix.shape, generator=generator) * 0.02)
    optimizer = strategy.create_optimizer(actor, lr=1e-2, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    return ActorPPOTrainer(
        strategy,
        actor,
        ema_model=None,
        actor_optim=optimizer,
        actor_scheduler=scheduler,
        micro_train_batch_size=args.micro_train_batch_size,
        tokenizer=AutoTokenizer.from_pretrained(args.pretrain),
        dataloader_pin_memory=False,
    )


def fill_buffer(trainer: ActorPPOTrainer, rollout: int, kind: str) -> None:
    """As the driver fills it: with this rank's share of the samples, or of the micro-batches made of all of them."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not trainer.args.use_dynamic_batch:
        made = samples(trainer, rollout, rank, kind)
    else:
        whole = [experience for other in range(ranks) for experience in samples(trainer, rollout, other, kind)]
        for number, experience in enumerate(whole):
            experience.index = [number]
        made = share(token_batches.for_training(whole, trainer.args), rank, ranks)
    for experience in made:
        trainer.replay_buffer.append(experience)


def share(experiences: list[Experience], rank: int, ranks: int) -> list[Experience]:
    """What `RayActorGroup.async_run_method_batch` sends to a rank, of as many experiences for each."""
    size = len(experiences) // ranks
    return experiences[rank * size : (rank + 1) * size]


def samples(trainer: ActorPPOTrainer, rollout: int, rank: int, kind: str) -> Iterator[Experience]:
    """Samples of several lengths, whose old log-probabilities are off the policy's by noise of a known size."""
    generator = torch.Generator().manual_seed(100 * rollout + rank)
    for sample in range(MICRO * MICROS_AN_UPDATE * UPDATES):
        prompt, response = 9 + sample % 3, 12 + 2 * (sample % 4)
        sequences = torch.randint(5, 60, (1, prompt + response), generator=generator)
        attention_mask = torch.ones_like(sequences)
        action_mask = torch.zeros(1, prompt + response - 1, dtype=torch.bool)
        action_mask[:, prompt - 1 :] = True
        if kind.startswith("turns"):  # two observations, the first one longer
            action_mask[:, prompt + 1 : prompt + 5] = action_mask[:, prompt + 7 : prompt + 8] = False
        with torch.no_grad():
            log_probs = trainer.actor(sequences, action_mask, attention_mask=attention_mask)
        noise = [0.3 * torch.randn(log_probs.shape, generator=generator) * action_mask for _ in range(3)]
        numbers = {"total_length": prompt + response, "response_length": response, "reward": 1, "return": 1, "kl": 0}
        advantages = torch.randn(1, 1, generator=generator).expand(log_probs.shape) * action_mask
        of_tokens = [*(log_probs + one for one in noise), advantages]
        if kind == "turns-noise":
            other = torch.Generator().manual_seed(rollout + 7)
            for values in of_tokens:
                values += 20 * torch.randn(values.shape, generator=other) * ~action_mask
        yield Experience(
            sequences=sequences,
            attention_mask=attention_mask,
            action_mask=action_mask,
            action_log_probs=of_tokens[0],
            base_action_log_probs=of_tokens[1],
            rollout_log_probs=of_tokens[2],
            advantages=of_tokens[3],
            info={k: torch.tensor([float(v)]) for k, v in {**numbers, "adapter_version": rollout}.items()},
        )


def adapter_now(trainer: ActorPPOTrainer) -> dict[str, torch.Tensor]:
    named = {n: p for n, p in trainer.actor.model.module.named_parameters() if p.requires_grad}
    partitioned = any(hasattr(p, "ds_id") for p in named.values())
    with deepspeed.zero.GatheredParameters(list(named.values()), enabled=partitioned):
        return {name.replace(".default", ""): p.detach().clone() for name, p in named.items()}


def main(checkpoint: str, out: str, zero_stage: str, kind: str) -> None:
    args = run_args(checkpoint, int(zero_stage), int(os.environ["WORLD_SIZE"]), dynamic=kind == "dynamic")
    trainer = build_trainer(args)
    adapters, reports, metrics, stock_step = {}, [], [], trainer.training_step

    def observed_step(experience, kl_ctl, step):
        prefix = f"{len(reports)}.{trainer.actor.model.global_steps}."
        adapters.update({prefix + name: tensor for name, tensor in adapter_now(trainer).items()})
        report = stock_step(experience, kl_ctl, step)
        reports.append(report.get("metrics", report))  # from 0.9.10 on, with their weights beside them
        return report

    trainer.training_step = observed_step
    for rollout in range(ROLLOUTS):
        fill_buffer(trainer, rollout, kind)
        if args.use_dynamic_batch and rollout == ROLLOUTS - 1 and torch.distributed.get_world_size() == 1:
            trainer.replay_buffer.items[-1].advantages.fill_(float("inf"))
        metrics.append(trainer.ppo_train(KL_COEFFICIENT))
        trainer.replay_buffer.clear()
    adapters.update({f"end.{name}": tensor for name, tensor in adapter_now(trainer).items()})
    if torch.distributed.get_rank() == 0:
        Path(out).mkdir(parents=True, exist_ok=True)
        save_file(adapters, Path(out, "adapters.safetensors"))
        Path(out, "status.json").write_text(json.dumps(reports + metrics, default=torch.Tensor.tolist))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
