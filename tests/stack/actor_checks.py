"""Short trainings of the tiny actor by OpenRLHF's own `ActorPPOTrainer`, without Ray; rank 0 writes what it saw.

python actor_checks.py CHECKPOINT OUT gradient MICRO_BATCH:NORMALIZATION …     with RANK, LOCAL_RANK, WORLD_SIZE, …
python actor_checks.py CHECKPOINT OUT ratio on|off
python actor_checks.py CHECKPOINT OUT correction KIND CAP
python actor_checks.py CHECKPOINT OUT stages ZERO_STAGE:MICRO_TRAIN_TOKENS …  0: one sample a micro-batch
python actor_checks.py CHECKPOINT OUT packing MICRO_TRAIN_TOKENS …            in float32; the status in OUT.json
python actor_checks.py CHECKPOINT OUT cut MICRO_TRAIN_TOKENS:absent|masked|all …  the same, of answers that were cut
python actor_checks.py CHECKPOINT OUT reference
python actor_checks.py CHECKPOINT OUT modes
"""

import json
import math
import os
import statistics
import sys
import types
from collections.abc import Iterable
from pathlib import Path

import papers
import spike_train
import torch
from deepspeed.utils import safe_get_full_grad
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience_maker import Experience
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from safetensors.torch import save_file

from rft.hooks import token_batches, truncated

RESPONSES = (4, 40, 9, 25)  # tokens: with equal lengths every normalisation is the same
PROMPT = 9
CUT = (1, 3)  # samples whose answers were cut at the length limit, in `cut`


def build(checkpoint: str, micro: int = 2, **changes):
    spike_train.MICRO = micro
    world_size, stage = int(os.environ["WORLD_SIZE"]), changes.pop("zero_stage", 3)
    args = spike_train.run_args(checkpoint, zero_stage=stage, world_size=world_size, dynamic=False)
    defaults = {"on_policy_ratio_one": False, "loss_normalization": "micro_batch", "use_kl_loss": False}
    vars(args).update({**defaults, "train_batch_size": len(RESPONSES), "enable_vllm_is_correction": False, **changes})
    return spike_train.build_trainer(args)


def policy_of(trainer):
    """OpenRLHF's policy actor in this process, with a trainer's model."""
    place = (os.environ[name] for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"))
    policy = PolicyModelActor.__ray_metadata__.modified_class(*place)
    policy.actor, policy.strategy = trainer.actor, trainer.strategy
    return policy


def sample(number: int, response: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    sequences = torch.randint(5, 60, (1, PROMPT + response), generator=generator)
    action_mask = torch.zeros(1, PROMPT - 1 + response, dtype=torch.bool)
    action_mask[:, PROMPT - 1 :] = True
    return {
        "sequences": sequences,
        "attention_mask": torch.ones_like(sequences),
        "action_mask": action_mask,
        "noise": 0.1 * torch.randn(action_mask.shape, generator=generator) * action_mask,
        "advantages": torch.randn(1, 1, generator=generator).expand(action_mask.shape) * action_mask,
    }


def fill(trainer, numbers: Iterable[int] = (0, 1, 2, 3), cut: Iterable[int] = ()) -> None:
    """The same samples whatever the number of ranks: each rank takes its share, of them or of their micro-batches.

    Args:
        numbers: samples to train on.
        cut: those of them that are masked.
    """
    rank, ranks, made = torch.distributed.get_rank(), torch.distributed.get_world_size(), []
    for number in numbers:
        response = RESPONSES[number]
        inputs = sample(number, response)
        with torch.no_grad():
            log_probs = trainer.actor(inputs["sequences"], inputs["action_mask"], inputs["attention_mask"])
        noise, logged = inputs.pop("noise"), {"total_length": PROMPT + response, "response_length": response}
        logged |= {"reward": number, "kl": 0.1 * number, "return": 1, "truncated": number in cut}
        info = {name: torch.tensor([float(value)]) for name, value in logged.items()}
        inputs |= {"action_log_probs": log_probs + noise, "rollout_log_probs": log_probs, "info": info}
        made.append(Experience(**inputs, base_action_log_probs=log_probs - noise, index=[len(made)]))
    truncated.mask(made)
    if trainer.args.use_dynamic_batch:
        made = token_batches.for_training(made, trainer.args)
    for experience in spike_train.share(made, rank, ranks):
        trainer.replay_buffer.append(experience)


def train(trainer, kl: float = 0.0, **of_samples) -> dict[str, torch.Tensor]:
    """One optimizer step; the whole gradient before clipping, by parameter."""
    gradient, stock = {}, trainer.strategy.optimizer_step

    def observed(optimizer, model, scheduler, name):
        if model.model.is_gradient_accumulation_boundary():
            for key, parameter in model.model.module.named_parameters():
                if parameter.requires_grad:
                    gradient[key] = safe_get_full_grad(parameter).float().clone()
        stock(optimizer, model, scheduler, name=name)

    trainer.strategy.optimizer_step = observed
    fill(trainer, **of_samples)
    gradient["status"] = trainer.ppo_train(kl)
    return gradient


def gradient(checkpoint: str, out: Path, *shapes: str) -> None:
    found = {}
    for shape in shapes:
        micro, normalization = shape.split(":")
        tensors = train(build(checkpoint, int(micro), loss_normalization=normalization))
        tensors.pop("status")
        found[shape] = torch.cat([tensors[name].flatten() for name in sorted(tensors)])
    if torch.distributed.get_rank() == 0:
        save_file(found, out)


def by_tokens(checkpoint: str, tokens: str, **changes) -> dict:
    """A step of micro-batches of so many tokens, or with 0 of one sample each."""
    budget = {"use_dynamic_batch": tokens != "0", "micro_train_tokens": int(tokens), "loss_normalization": "batch"}
    return train(build(checkpoint, 1, **budget, **changes))


def stages(checkpoint: str, out: Path, *cases: str) -> None:
    found = {}
    for case in cases:
        stage, tokens = case.split(":")
        tensors = by_tokens(checkpoint, tokens, zero_stage=int(stage))
        tensors.pop("status")
        found[case] = torch.cat([tensors[name].flatten() for name in sorted(tensors)])
    save_file(found, out)


def cut(checkpoint: str, out: Path, *cases: str) -> None:
    """With every term of the loss: `absent` trains on the other samples alone, `all` masks them too."""
    found, status, whole = {}, {}, range(len(RESPONSES))
    for case in cases:
        tokens, kind = case.split(":")
        numbers = [number for number in whole if kind != "absent" or number not in CUT]
        options = {"param_dtype": "fp32", "zero_stage": 2, "enable_vllm_is_correction": True, "use_kl_loss": True}
        options |= {"use_dynamic_batch": tokens != "0", "micro_train_tokens": int(tokens), "entropy_loss_coef": 0.1}
        trainer = build(checkpoint, 1, train_batch_size=len(numbers), loss_normalization="batch", **options)
        tensors = train(trainer, 0.1, numbers=numbers, cut=whole if kind == "all" else CUT)
        status[case] = tensors.pop("status")
        found[case] = torch.cat([tensors[name].flatten() for name in sorted(tensors)])
    save_file(found, out)
    out.with_suffix(".json").write_text(json.dumps(status))


def packing(checkpoint: str, out: Path, *budgets: str) -> None:
    found, status = {}, {}
    for tokens in budgets:
        options = {"param_dtype": "fp32", "zero_stage": 2, "enable_vllm_is_correction": True}
        tensors = by_tokens(checkpoint, tokens, **options)
        status[tokens] = tensors.pop("status")
        found[tokens] = torch.cat([tensors[name].flatten() for name in sorted(tensors)])
    if torch.distributed.get_rank() == 0:
        save_file(found, out)
        out.with_suffix(".json").write_text(json.dumps(status))


def correction(checkpoint: str, out: Path, kind: str, cap: str) -> None:
    """What the step logs, and what the papers' formulas say of the same log-probabilities."""
    options = {"vllm_is_correction_type": kind, "vllm_is_bounds": [float(cap)]}
    trainer = build(checkpoint, enable_vllm_is_correction=True, **options)
    status, weights, limited = train(trainer)["status"], [], []
    for item in trainer.replay_buffer.items:
        old, engine = (t[item.action_mask.bool()].tolist() for t in (item.action_log_probs, item.rollout_log_probs))
        weights += papers.weights(kind, old, engine, [float(cap)])
        found = [value > math.log(float(cap)) for value in papers.decisive(kind, old, engine)]
        limited += found * (len(old) // len(found))
    wanted = {"weight_mean": statistics.fmean(weights), "limited_share": statistics.fmean(limited)}
    out.write_text(json.dumps({"logged": status, "wanted": wanted}))


def ratio(checkpoint: str, out: Path, switch: str) -> None:
    found = train(build(checkpoint, on_policy_ratio_one=switch == "on"))
    out.write_text(json.dumps(found["status"]))


def reference(checkpoint: str, out: Path) -> None:
    """Log-probabilities with the adapter on, off, on again, and of a second model, before and after a training step."""
    trainer = build(checkpoint)
    policy = policy_of(trainer)
    separate = types.SimpleNamespace(
        model=trainer.strategy.prepare(
            Actor(
                checkpoint,
                attn_implementation="eager",
                ds_config=trainer.strategy.get_ds_eval_config(),
                temperature=trainer.args.temperature,
            ),
            is_rlhf=True,
        )
    )
    separate.model.eval()
    inputs = {key: value for key, value in sample(0, 40).items() if key not in ("noise", "advantages")}
    seen = {}
    for moment in ("before", "after"):
        seen[f"{moment}.on"] = policy.forward(**inputs)
        seen[f"{moment}.off"] = policy.reference_forward(**inputs)
        seen[f"{moment}.on_again"] = policy.forward(**inputs)
        with torch.no_grad():
            seen[f"{moment}.separate"] = separate.model(**inputs)
        train(trainer)
        trainer.replay_buffer.clear()
    save_file({key: value.contiguous() for key, value in seen.items()}, out)


def modes(checkpoint: str, out: Path) -> None:
    """Whether the experts were in training mode in each pass without gradient."""
    trainer, seen = build(checkpoint), {}
    policy = policy_of(trainer)
    inputs = {key: value for key, value in sample(0, 8).items() if key not in ("noise", "advantages")}
    experts = [m for m in trainer.actor.modules() if type(m).__name__ == "GptOssExperts"]
    for name in ("forward", "reference_forward"):
        found = seen.setdefault(name, set())
        hooks = [m.register_forward_pre_hook(lambda m, _, found=found: found.add(m.training)) for m in experts]
        getattr(policy, name)(**inputs)
        for hook in hooks:
            hook.remove()
    out.write_text(json.dumps({name: sorted(found) for name, found in seen.items()}))


def main(checkpoint: str, out: str, kind: str, *rest: str) -> None:
    kinds = {"gradient": gradient, "stages": stages, "correction": correction, "ratio": ratio, "cut": cut}
    (kinds | {"packing": packing, "reference": reference, "modes": modes})[kind](checkpoint, Path(out), *rest)
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
