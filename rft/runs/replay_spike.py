"""Compute a recorded gradient spike again: `.venv/bin/python -m rft.runs.replay_spike RUN/spikes/step_12_rank_0`.

Loads the base checkpoint and the adapter from before the step, runs the recorded micro-batches of all ranks through
OpenRLHF's own `ActorPPOTrainer.training_step` on one DeepSpeed rank, and compares log-probabilities, losses and
gradient norm (before clipping) with what training recorded. Exit status 0: they agree, 1: they do not, 2: bad input.
The actor must fit on one device (or, with --device cpu, in memory).
"""

import argparse
import math
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

from rft.record import environment
from rft.runs.ranks import free_port, of_rank
from rft.runs.spike_bundle import Bundle, Row, compare, find_base, load_bundle

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from peft import PeftModel
    from torch import Tensor

TOLERANCE = 0.02  # bf16 keeps 8 bits, and the order of summation differs between one rank and several


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compute a recorded gradient spike again and compare.")
    parser.add_argument("bundle", type=Path, help="spikes/step_N_rank_R; its siblings of other ranks are found beside")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: what DeepSpeed finds")
    parser.add_argument("--base", help="base checkpoint, where it is no longer at the recorded place")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"see compare(); default {TOLERANCE}")
    args = parser.parse_args(argv)
    try:
        bundle = load_bundle(args.bundle)
        base = find_base(bundle, args.base)
        set_environment(args.device)
        log_probs, losses, norm = replay(bundle, base)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = compare(bundle, log_probs, losses, norm, args.tolerance)
    print_report(bundle, rows)
    return 0 if all(row.agrees for row in rows) else 1


def set_environment(device: str | None) -> None:
    """One rank, and no logs of a run; must come before DeepSpeed is imported."""
    for name in ("METRICS_LOG_DIR", "SPIKE_LOG_PATH", "SAMPLES_LOG_DIR"):
        os.environ.pop(name, None)
    if device:
        os.environ["DS_ACCELERATOR"] = device
    environment.set_environment()
    os.environ.update(of_rank(0, 1, free_port()))


class Capture:
    """Takes the place of `ActorPPOTrainer`'s spike recorder: collects what the training step computes."""

    def __init__(self) -> None:
        self.log_probs, self.losses = [], []

    def keep(
        self, experience: "Experience", action_log_probs: "Tensor", loss: "Tensor", kl_ctl: float, step: int
    ) -> None:
        self.log_probs.append(action_log_probs.detach().float().cpu())
        self.losses.append(loss.item())

    def after_step(self) -> None:
        pass


def replay(bundle: Bundle, base: str) -> tuple[list, list[float], float]:
    """Run the micro-batches through the trainer's own training step.

    All ranks' micro-batches become one accumulation group on one rank: DeepSpeed averages a gradient over ranks as it
    does over the micro-batches of a group, so that the norm of several ranks comes out here.

    Returns:
        log-probabilities (batch, actions) and loss of each micro-batch, and the gradient norm.
    """
    import torch
    from deepspeed.accelerator import get_accelerator
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

    from rft.hooks.grad_norm import grad_norm

    count, ranks = len(bundle.micros), len(bundle.facts)
    trainer = build_trainer(bundle, base, ActorPPOTrainer)
    if not hasattr(trainer, "spikes"):
        raise ValueError(
            "this openrlhf records no spikes, so its training step cannot be watched; bash apply_patches.sh"
        )
    trainer.spikes = Capture()
    if trainer.args.use_dynamic_batch:
        # The backward pass of a micro-batch by tokens scales by hand, and averages over ranks only.
        trainer.replay_buffer.dynamic_loss_scale = [micro["dynamic_loss_scale"] / ranks for micro in bundle.recorded]
        trainer.replay_buffer.dynamic_optimizer_step = [0] * (count - 1) + [1]
    for step, (micro, recorded) in enumerate(zip(bundle.micros, bundle.recorded, strict=True)):
        info = {k.removeprefix("info."): v for k, v in micro.items() if k.startswith("info.")}
        fields = {k: v for k, v in micro.items() if k != "new_log_probs" and not k.startswith("info.")}
        experience = Experience(**fields, info=info or {"samples": torch.zeros(1)})
        for name, value in recorded["numbers"].items():
            setattr(experience, name, value)
        experience.to_device(get_accelerator().current_device_name())
        trainer.training_step(experience, recorded["kl_ctl"], step)
    losses = trainer.spikes.losses
    if trainer.args.use_dynamic_batch:
        losses = [loss * ranks for loss in losses]
    norm = grad_norm(trainer.actor.model)
    torch.distributed.destroy_process_group()
    return trainer.spikes.log_probs, losses, norm


def build_trainer(bundle: Bundle, base: str, trainer_class: type):
    """The actor as training had it before the step, in OpenRLHF's trainer, with an optimizer of learning rate 0."""
    import torch
    from openrlhf.models import Actor
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    facts, count = bundle.facts[0], len(bundle.micros)
    args = types.SimpleNamespace(**facts["args"])
    args.local_rank, args.pretrain, args.adam_offload, args.zpg = -1, base, False, 1
    micro_size = args.micro_train_batch_size
    strategy = DeepspeedStrategy(
        seed=args.seed,
        full_determinism=args.full_determinism,
        max_norm=args.max_norm,
        micro_train_batch_size=micro_size,
        train_batch_size=micro_size * count,
        zero_stage=args.zero_stage,
        args=args,
    )
    strategy.setup_distributed()
    actor = Actor(
        base,
        attn_implementation=args.attn_implementation,
        param_dtype=args.param_dtype,
        load_in_4bit=args.load_in_4bit,
        lora_rank=args.lora_rank,
        lora_alpha=args.lora_alpha,
        target_modules=args.target_modules,
        lora_dropout=args.lora_dropout,
        # Bundles of older runs do not say these; one rank replays the steps of all, with all experts.
        head_dtype=getattr(args, "head_dtype", "model"),
        actor=getattr(args, "actor", "eager"),
        entropy_loss_coef=getattr(args, "entropy_loss_coef", None),
        ds_config=strategy.get_ds_train_config(is_actor=True),
        packing_samples=args.packing_samples,
        temperature=args.temperature,
        use_liger_kernel=args.use_liger_kernel,
        aux_loss_coef=args.aux_loss_coef,
    )
    if facts["adapter"] is not None:
        load_adapter(actor.model, bundle.path / facts["adapter"])
    if args.gradient_checkpointing:
        actor.gradient_checkpointing_enable({"use_reentrant": args.gradient_checkpointing_use_reentrant})
    optimizer = torch.optim.AdamW([p for p in actor.model.parameters() if p.requires_grad], lr=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    return trainer_class(
        strategy,
        actor,
        ema_model=None,
        actor_optim=optimizer,
        actor_scheduler=scheduler,
        micro_train_batch_size=micro_size,
        vllm_engines=None,
    )


def load_adapter(model: "PeftModel", directory: Path) -> None:
    """Set the adapter of a PEFT model. Raises ValueError unless the file has exactly the model's adapter tensors."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    tensors = load_file(directory / "adapter_model.safetensors")
    wanted = {name: tuple(t.shape) for name, t in get_peft_model_state_dict(model, save_embedding_layers=False).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise ValueError(
            f"{directory}: found {name} of shape {found.get(name)}, wanted {wanted.get(name)}; "
            "pass the base checkpoint of the run with --base"
        )
    set_peft_model_state_dict(model, tensors)


def print_report(bundle: Bundle, rows: list[Row]) -> None:
    from rft import overlay

    facts = bundle.facts[0]
    print(
        f"optimizer step {facts['optimizer_step']}, rollout {facts['global_step']}, adapter version "
        f"{facts['adapter_version']}, {len(bundle.micros)} micro-batches of {len(bundle.facts)} rank(s)"
    )
    now = overlay.tree_ids()
    if now != facts["tree_ids"]:
        print(f"note: recorded with other patches: {facts['tree_ids']}, replayed with {now}")
    if facts["args"].get("lora_dropout"):
        print("note: the run used --lora_dropout, whose random masks a replay cannot repeat")
    print(f"{'':24} {'recorded':>14} {'replayed':>14} {'difference':>12} {'allowed':>10}")
    for row in rows:
        values = [
            f"{'not finite':>14}" if v is None or not math.isfinite(v) else f"{v:14.6g}"
            for v in (row.recorded, row.replayed)
        ]
        verdict = "agrees" if row.agrees else "DIFFERS"
        print(f"{row.name:24} {' '.join(values)} {row.difference:12.3g} {row.allowed:10.3g} {verdict}")
    if not bundle.complete:
        print(
            f"gradient norm: not compared, since it is over {facts['world_size']} ranks and the bundles of "
            f"{len(bundle.facts)} are here; copy the others beside this one"
        )
    worst = sorted(
        (token | {"rank": facts["rank"]} for facts in bundle.facts for token in facts["worst_tokens"]),
        key=lambda token: math.inf if token["score"] is None else token["score"],
        reverse=True,
    )
    print("worst tokens (rank, micro-batch, sample, turn, position: score, log-prob, old log-prob, advantage, text)")
    for token in worst[:20]:
        names = ("rank", "micro_batch", "sample", "turn", "position")  # bundles of older runs have no turn
        place = ", ".join(str(token.get(name, 1)) for name in names)
        numbers = ", ".join(
            "null" if token[key] is None else f"{token[key]:.4g}"
            for key in ("score", "log_prob", "old_log_prob", "advantage")
        )
        print(f"  {place}: {numbers}, {token['context']!r} -> {token['token']!r}")


if __name__ == "__main__":
    sys.exit(main())
