"""Batch sizes, steps and devices: the arithmetic that OpenRLHF, DeepSpeed, vLLM or Ray would fail on later.

Pure functions of the options. Each rule names its source.
"""

import math
from argparse import Namespace

from rft import packing
from rft.options import batches
from rft.options.assertions import even_repair, ranks, samples
from rft.options.command import gpus_wanted
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines


def rollouts(args: Namespace, prompts: int) -> int:
    """Rollouts of the whole run; prompts that do not fill one at the end of an episode are left out."""
    return prompts // args.rollout_batch_size * args.num_episodes


def samples_by_rank(args: Namespace) -> list[int]:
    """Samples that each rank trains on in a rollout, dealt out as `RayActorGroup.async_run_method_batch` does."""
    size, total = args.micro_rollout_batch_size, samples(args)
    batches = [min(size, total - start) for start in range(0, total, size)]
    chunk = math.ceil(len(batches) / ranks(args))
    return [sum(batches[rank * chunk : (rank + 1) * chunk]) for rank in range(ranks(args))]


def check_intervals(args: Namespace) -> list[Line]:
    """A fault where a number of steps between evaluations, checkpoints or lines of a log is 0."""
    zero = [f"--{name} 0" for name in ("eval_steps", "save_steps", "logging_steps") if getattr(args, name) == 0]
    if not zero:  # else a ZeroDivisionError after the first rollout, or the first step of a supervised training
        return []
    return [Line("steps", NO_GO, f"{', '.join(zero)}: the trainer divides by it", "leave it out, or 1 or more")]


def check_sizes(args: Namespace) -> list[Line]:
    """A fault where ranks cannot be formed, or a number of steps is 0: nothing where the other checks can count."""
    if zero := check_intervals(args):
        return zero
    if ranks(args) < 1 or args.actors % (args.ring_attn_size * args.ds_tensor_parallel_size):
        measured = f"{args.actors} actor GPUs cannot be split by ring x tensor parallel size"
        return [Line("batches", NO_GO, measured, "--ring_attn_size 1 --ds_tensor_parallel_size 1")]
    return []


def check_batches(args: Namespace) -> list[Line]:
    """Sizes that fit into each other."""
    steps = samples(args) * args.max_epochs // args.train_batch_size
    measured = f"{samples(args)} samples a rollout: {steps} x {args.train_batch_size} (optimizer steps), {ranks(args)} "
    if args.micro_train_tokens:  # the options are refused where anything is left over: rft.options.batches
        return [by_tokens(args, f"{measured}ranks")]
    measured += f"x {args.micro_train_batch_size} (ranks, micro-batch)"
    return lines("batches", list(fault_lines(args)), measured)


def by_tokens(args: Namespace, measured: str) -> Line:
    """How many micro-batches of `--micro_train_tokens` and `--micro_rollout_tokens` a rank has at the most."""
    length, of_each = batches.longest(args), []
    for size, budget in ((args.train_batch_size, args.micro_train_tokens), (samples(args), args.micro_rollout_tokens)):
        of_each.append(packing.most(size, length, budget, ranks(args)))
    measured += (
        f"; micro-batches of {args.micro_train_tokens:,} tokens: at most {of_each[0]} a rank and optimizer step, where "
        f"samples have {length:,}; before the update {of_each[1]} of {args.micro_rollout_tokens:,}"
    )
    if args.actor == "eager":
        padded = f"{measured}; --actor eager pads each sample to the longest of its micro-batch, beyond the budget"
        return Line("batches", WARN, padded, "--actor resident, or --micro_train_tokens 0")
    return Line("batches", GO, measured)


def fault_lines(args: Namespace):
    """What is wrong with the batch sizes, one line each."""
    total, size, micro, dp = samples(args), args.train_batch_size, args.micro_train_batch_size, ranks(args)
    # DeepSpeed's config asserts batch = micro-batch x accumulation x ranks when the actor is loaded.
    unit = micro * dp
    if size % unit:
        measured = f"--train_batch_size {size} is no multiple of micro-batch x ranks ({unit})"
        yield Line("batches", NO_GO, measured, f"--train_batch_size {max(1, size // unit) * unit}")
    # Fewer samples than that, and no optimizer step falls into a rollout: the engine gets the same weights again.
    if size > total:
        measured = f"--train_batch_size {size} above the {total} samples of a rollout"
        fitting = f"--train_batch_size {total // unit * unit}"
        smallest = f"--micro_train_batch_size 1 --train_batch_size {total // dp * dp}"
        repair = fitting if total >= unit else smallest if total >= dp else even_repair(args)
        yield Line("batches", NO_GO, measured, repair)
    elif total % size:
        measured = f"{total} samples a rollout leave {total % size} gradients over for the next rollout's first step"
        yield Line("batches", WARN, measured, f"--rollout_batch_size with a product that is a multiple of {size}")
    # Ranks with unequal work wait for each other in ZeRO-3's gathers until a timeout.
    by_rank = samples_by_rank(args)
    if len(set(by_rank)) > 1:
        measured = f"ranks would train on {', '.join(map(str, by_rank[:8]))} samples and wait for each other forever"
        yield Line("batches", NO_GO, measured, even_repair(args))


def check_steps(args: Namespace, prompts: int | None) -> list[Line]:
    """Enough prompts for a rollout, and evaluations and checkpoints that fall into the run."""
    if prompts is None:
        return [Line("steps", WARN, "number of prompts unknown", "--prompt_data FILE.jsonl")]
    total = rollouts(args, prompts)
    if not total:
        # The data loader is exhausted at once, and the run "succeeds" without a step.
        measured = f"{prompts} prompts, below --rollout_batch_size {args.rollout_batch_size}: no rollout at all"
        return [Line("steps", NO_GO, measured, f"--rollout_batch_size {max(1, prompts)} or more prompts")]
    faults = []
    if args.eval_dataset and not 0 < args.eval_steps <= total:
        measured = f"--eval_steps {args.eval_steps}: no evaluation in {total} rollout steps"
        faults.append(Line("steps", WARN, measured, f"--eval_steps {max(1, total // 4)}"))
    if args.async_train and args.eval_steps > 0:
        # openrlhf/trainer/ppo_trainer_async.py never calls evaluate
        measured = "asynchronous training has no evaluation in the loop, so no best checkpoint and no rule on accuracy"
        faults.append(Line("steps", WARN, measured, "leave --async_train out, or evaluate the checkpoints afterwards"))
    if args.save_steps > total:
        measured = f"--save_steps {args.save_steps}: no checkpoint in {total} rollout steps"
        faults.append(Line("steps", WARN, measured, f"--save_steps {max(1, total // 4)}"))
    if args.freezing_actor_steps >= 0 and args.critic_pretrain is None:
        measured = f"--freezing_actor_steps {args.freezing_actor_steps}: no update until then, and no critic to train"
        faults.append(Line("steps", WARN, measured, "leave --freezing_actor_steps out"))
    if args.eval_dataset and args.eval_temperature == 0 and args.eval_n_samples_per_prompt > 1:
        measured = f"greedy evaluation with {args.eval_n_samples_per_prompt} equal samples a prompt"
        faults.append(Line("steps", WARN, measured, "--eval_n_samples_per_prompt 1"))
    left = prompts % args.rollout_batch_size
    unused = f", {left} prompts an episode left out" if left else ""
    return lines("steps", faults, f"{total} rollout steps{unused}")


def check_devices(args: Namespace, config: dict, present: int | None) -> list[Line]:
    """GPUs for every role, and a tensor-parallel size that the model's heads allow.

    Args:
        present: GPUs that this run can have, None where that is not known (a Ray cluster registers any number).
    """
    faults = []
    if not args.engines:
        # getattr(args, "vllm_num_engines", 0) > 0 in ppo_actor.py; generation has no other way either
        faults.append(Line("devices", NO_GO, "no rollout engine", "--vllm_num_engines 2"))
    parallel = args.vllm_tensor_parallel_size
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = config.get(name, parallel)
        # vLLM splits key-value heads, or repeats complete ones
        if heads % parallel and (name == "num_attention_heads" or parallel % heads):
            measured = f"--vllm_tensor_parallel_size {parallel} does not divide {heads} ({name})"
            faults.append(Line("devices", NO_GO, measured, f"--vllm_tensor_parallel_size {math.gcd(heads, parallel)}"))
    wanted = gpus_wanted(args)
    if present is not None and wanted > present:
        measured = f"{wanted} GPUs wanted, {present} here: Ray would wait for the others forever"
        repair = "a lower --actor_num_gpus_per_node or --vllm_num_engines, or --colocate_all_models"
        faults.append(Line("devices", NO_GO, measured, repair))
    here = "" if present is None else f" of {present}"
    return lines("devices", faults, f"{args.actors} actor, {args.engines} x {parallel} engine: {wanted} GPUs{here}")
