"""What OpenRLHF asserts of its options, refused with a repair before the first of its assertions.

Upstream's end in a traceback: those of `train` when a Ray cluster is up, those of a loss or a penalty when the models
are loaded. Left to upstream is what no option decides: versions, and which class an agent's file defines.
"""

import math
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

SIZES = (
    "rollout_batch_size", "n_samples_per_prompt", "train_batch_size", "micro_train_batch_size",
    "micro_rollout_batch_size", "num_episodes", "max_epochs", "vllm_tensor_parallel_size", "actor_num_nodes",
    "actor_num_gpus_per_node", "ring_attn_size", "ds_tensor_parallel_size", "prompt_max_len", "generate_max_len",
    "max_samples",
)  # fmt: skip
Fault = tuple[str, str, str, str]  # what, found, wanted, repair


def require_what_upstream_asserts(args: Namespace) -> None:
    """Refuse options that one of OpenRLHF's assertions would fail on.

    Args:
        args: settled (`rft.options.settled.settle`).

    Raises:
        ValueError: the first fault.
    """
    for what, found, wanted, repair in faults(args):
        raise ValueError(f"{what}\n  found:  {found}\n  wanted: {wanted}\n  repair: {repair}")


def faults(args: Namespace) -> Iterator[Fault]:
    """Each fault of the options; those behind sizes below 1 cannot be counted."""
    low = [f"--{name} {getattr(args, name)}" for name in SIZES if getattr(args, name) < 1]
    if low:
        yield "a size below 1", " ".join(low), "1 or more of each", "set 1 or more, or leave it out"
        return
    yield from of_main(args)
    yield from of_placement(args)
    yield from of_models(args)
    yield from of_rewards(args)


def of_main(args: Namespace) -> Iterator[Fault]:
    """Assertions below `if __name__ == "__main__"` of openrlhf/cli/train_ppo_ray.py."""
    if args.packing_samples and not args.engines:
        found = f"--vllm_num_engines {args.vllm_num_engines}"
        yield "packed samples come from engines", found, "one engine or more", "--vllm_num_engines 1"
    if args.async_train and args.vllm_enable_sleep:
        found, repair = "--async_train --vllm_enable_sleep", "leave --vllm_enable_sleep out"
        yield "asynchronous training samples all the time", found, "engines that do not sleep", repair
    if getattr(args, "partial_rollout", False) and not args.async_train:  # an option since 0.9.10
        found, repair = "--partial_rollout without --async_train", "leave --partial_rollout out"
        yield "only asynchronous training goes on with a begun rollout", found, "--async_train too", repair
    if args.eval_dataset and not args.remote_rm_url:
        found, repair = f"--eval_dataset {args.eval_dataset}", "--remote_rm_url rewards/reward_func_em.py"
        yield "an evaluation needs a reward function", found, "--remote_rm_url or --agent_func_path", repair
    if args.dynamic_filtering:
        yield from of_filtering(args)
    total, size = samples(args), args.micro_rollout_batch_size
    if total // size < ranks(args):
        found = f"{total} samples a rollout, --micro_rollout_batch_size {size}: {total // size} complete batches"
        yield "fewer batches than ranks", found, f"{ranks(args)} or more", even_repair(args)


def of_filtering(args: Namespace) -> Iterator[Fault]:
    """Assertions on `--dynamic_filtering`, below the same `if`."""
    low, high = args.dynamic_filtering_reward_range
    if low >= high:
        found, repair = f"--dynamic_filtering_reward_range {low:g} {high:g}", "--dynamic_filtering_reward_range 0 1"
        yield "dynamic filtering keeps nothing", found, "LOW below HIGH", repair
    if not args.remote_rm_url:
        found, repair = "neither --remote_rm_url nor --agent_func_path", "--remote_rm_url rewards/reward_func_em.py"
        yield "dynamic filtering needs a reward function", found, "one of them", repair
    if args.n_samples_per_prompt < 2:
        found = f"--n_samples_per_prompt {args.n_samples_per_prompt}"
        yield "dynamic filtering compares the samples of a prompt", found, "2 or more", "--n_samples_per_prompt 8"


def of_placement(args: Namespace) -> Iterator[Fault]:
    """Assertions of `train`, in the same file: what shares GPUs has the same number of them."""
    if (args.colocate_actor_ref or args.colocate_all_models) and args.own_reference:
        yield from of_pair(args, "actor", "ref")
    if args.colocate_all_models and not args.async_train and args.engines:
        parallel = args.vllm_tensor_parallel_size
        if args.actors != args.engines * parallel:
            found = f"{args.actors} GPUs of the actor, {args.engines} engines of {parallel}"
            repair = f"--vllm_num_engines {max(1, args.actors // parallel)}"
            if args.actors % parallel:
                repair = f"--vllm_num_engines {args.actors} --vllm_tensor_parallel_size 1"
            yield "--colocate_all_models: engines and actor share GPUs", found, "as many for both", repair
    if args.critic_pretrain and args.colocate_critic_reward:
        yield from of_pair(args, "critic", "reward")


def of_pair(args: Namespace, one: str, other: str) -> Iterator[Fault]:
    """Nodes and GPUs of two models that share them."""
    names = ("num_nodes", "num_gpus_per_node")
    wanted = [getattr(args, f"{one}_{name}") for name in names]
    if wanted != [getattr(args, f"{other}_{name}") for name in names]:
        found = " ".join(
            f"--{role}_{name} {getattr(args, f'{role}_{name}')}" for role in (one, other) for name in names
        )
        repair = " ".join(f"--{other}_{name} {value}" for name, value in zip(names, wanted, strict=True))
        yield f"{one} and {other} share GPUs", found, "the same nodes and GPUs for both", repair


def of_models(args: Namespace) -> Iterator[Fault]:
    """Assertions of openrlhf/models and openrlhf/utils/deepspeed, and the error of trainer/ppo_trainer_async.py."""
    dtype = args.param_dtype
    for name, on in (
        ("load_in_4bit", args.load_in_4bit),
        ("ds_tensor_parallel_size", args.ds_tensor_parallel_size > 1),
    ):
        if on and dtype != "bf16":
            yield f"--{name} needs bf16", f"--param_dtype {dtype}", "--param_dtype bf16", "--param_dtype bf16"
    if args.dual_clip is not None and args.dual_clip <= 1:
        found = f"--dual_clip {args.dual_clip:g}"
        yield "dual clip bounds the loss above the ratio's own clip", found, "above 1", "--dual_clip 3"
    if args.async_queue_size < 1:
        found = f"--async_queue_size {args.async_queue_size}"
        yield "the queue of rollouts holds none", found, "1 or more", "--async_queue_size 1"


def of_rewards(args: Namespace) -> Iterator[Fault]:
    """Assertions of trainer/ppo_utils/length_penalty.py, datasets/utils.py and trainer/ray/vllm_engine.py."""
    buffer, longest = args.overlong_buffer_len, args.generate_max_len
    if buffer is not None and not 0 <= buffer <= longest:
        found, repair = f"--overlong_buffer_len {buffer:g}", f"--overlong_buffer_len {longest // 4}"
        yield "the overlong penalty does not fit the response", found, f"0 to --generate_max_len {longest}", repair
    factor = args.stop_properly_penalty_coef
    if factor is not None and not 0 <= factor <= 1:
        found = f"--stop_properly_penalty_coef {factor:g}"
        yield "rewards of truncated samples are scaled by a fraction", found, "0 to 1", "--stop_properly_penalty_coef 0"
    if args.prompt_data_probs is not None:
        files, given = (args.prompt_data or "").split(","), args.prompt_data_probs.split(",")
        if len(files) != len(given):
            found = f"{len(given)} in --prompt_data_probs {args.prompt_data_probs}"
            repair = f"--prompt_data_probs {','.join([str(1 / len(files))] * len(files))}"
            yield "a probability for each file of --prompt_data", found, str(len(files)), repair
    agent = args.agent_func_path
    if agent and not agent.endswith(".py"):
        yield "an agent is a Python file", f"--agent_func_path {agent}", "FILE.py", "--agent_func_path FILE.py"
    elif agent and lacks_executor(Path(agent)):
        wanted = "class AgentExecutor, of openrlhf.utils.agent.AgentExecutorBase"
        yield "the agent's file has no executor", f"--agent_func_path {agent}", wanted, f"define it in {agent}"


def lacks_executor(file: Path) -> bool:
    """Whether a file can be read, and names no `AgentExecutor`; it is not run."""
    try:
        return not re.search(r"\bAgentExecutor\b|import \*", file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # it may lie on the engines' machine alone


def ranks(args: Namespace) -> int:
    """Data-parallel ranks of the actor."""
    return args.actors // (args.ring_attn_size * args.ds_tensor_parallel_size)


def samples(args: Namespace) -> int:
    """Samples of one rollout."""
    return args.rollout_batch_size * args.n_samples_per_prompt


def even_repair(args: Namespace) -> str:
    """Options with which every rank gets as many samples as the others: a batch of at most 8, or more prompts."""
    total, dp, n = samples(args), ranks(args), args.n_samples_per_prompt
    if total % dp:
        unit = dp // math.gcd(dp, n)
        return f"--rollout_batch_size {math.ceil(args.rollout_batch_size / unit) * unit}"
    return f"--micro_rollout_batch_size {max(size for size in range(1, 9) if total % (size * dp) == 0)}"
