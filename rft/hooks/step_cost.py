"""What a step cost: tokens a second by phase, and its arithmetic against the peak of the GPUs."""

import argparse
import functools

from rft.options.command import gpus_wanted, settle
from rft.record import flops
from rft.record.step_phases import time_name


def step_cost(args: argparse.Namespace, samples: list, status: dict) -> dict[str, float]:
    """Rates of one training step; what was not measured, or is not known, is absent.

    Args:
        args: the trainer's options.
        samples: OpenRLHF `Experience`s of one sample each: `attention_mask`, `action_mask` (tokens,) or (1, tokens).
        status: the step's metrics: `time_<phase>_seconds` of `rft.hooks.phases`, `trainer_gpus` and
            `device_peak_tflops` of `rft.hooks.trainer_devices`.

    Returns:
        `tokens_per_second_<phase>` for step, rollout (generated ones only), experience and train, on GPUs
        `tokens_per_second_<phase>_per_gpu` too, over those that the phase uses; `tflops_train` and `tflops_experience`,
        the model's arithmetic in TFLOP/s over all ranks, see `rft.record.flops`; `model_flops_utilization` (of train)
        and `model_flops_utilization_experience`.
    """
    args = settle(argparse.Namespace(**vars(args)))
    lengths = [int(sample.attention_mask.sum()) for sample in samples]
    generated = sum(int(sample.action_mask.sum()) for sample in samples)
    trainer, trained = int(status.get("trainer_gpus", 0)), args.max_epochs * sum(lengths)
    engine = args.engines * args.vllm_tensor_parallel_size
    phases = {  # tokens and GPUs
        "step": (sum(lengths), gpus_wanted(args)),
        "rollout": (generated, engine),
        "experience": (sum(lengths), trainer),
        "train": (trained, trainer),
    }
    if "trainer_gpus" not in status:  # the actor was frozen
        del phases["train"]
    if time_name("rollout") not in status:  # asynchronous: a step waits for rollouts that this process does not time
        del phases["step"]
    found = {}
    for phase, (tokens, gpus) in phases.items():
        if seconds := status.get(time_name(phase)):
            found[f"tokens_per_second_{phase}"] = tokens / seconds
            if trainer and gpus:
                found[f"tokens_per_second_{phase}_per_gpu"] = tokens / seconds / gpus
    for phase, count in model_flops(args, lengths, generated).items():
        if phase in phases and (seconds := status.get(time_name(phase))):
            found[f"tflops_{phase}"] = count / seconds / 1e12
            if trainer and (peak := status.get("device_peak_tflops")):
                name = "model_flops_utilization" + ("" if phase == "train" else f"_{phase}")
                found[name] = count / seconds / 1e12 / (trainer * peak)
    return found


def model_flops(args: argparse.Namespace, lengths: list[int], scored: int) -> dict[str, int]:
    """FLOPs of a step by phase, `train` and `experience`; {} for a model whose FLOPs are not known.

    Experience is the policy's forward pass, and with `--init_kl_coef` that of the reference, which is the actor with
    its adapter off unless it has a model of its own. `args` are settled (`rft.options.command.settle`).
    """
    config = model_config(args.pretrain)
    if not flops.is_known(config):
        return {}
    adapter = (args.lora_rank, args.target_modules)
    forward = sum(flops.forward(config, lengths, scored, *adapter).values())
    reference = args.init_kl_coef > 0 and not args.own_reference
    experience = forward + (sum(flops.forward(config, lengths, scored).values()) if reference else 0)
    train = args.max_epochs * sum(flops.training(config, lengths, scored, *adapter).values())
    return {"train": train, "experience": experience}


@functools.cache
def model_config(pretrain: str) -> dict:
    """The fields of the model's config.json."""
    from transformers import PretrainedConfig

    return PretrainedConfig.get_config_dict(pretrain)[0]
