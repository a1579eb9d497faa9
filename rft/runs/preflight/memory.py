"""Memory of each role against what is free: GPUs from nvidia-smi, the host from /proc/meminfo and its cgroups."""

import os
from argparse import Namespace
from pathlib import Path

from rft.runs.preflight import cgroup
from rft.runs.preflight.actor import (
    ACTOR_FIXED,
    NEARLY,
    actor_bytes,
    actor_resting_bytes,
    is_resident,
    larger_micro_batch,
    with_first_products,
)
from rft.runs.preflight.engine import (
    ENGINE_FIXED,
    ENGINE_OUTSIDE,
    OPTION,
    engine_weights,
    pristine_bytes,
    shared,
    smallest,
    utilisation,
)
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, gigabytes
from rft.runs.preflight.model import parameters, tensor_sizes, trained_parameters
from rft.runs.preflight.resident import OPTIMIZER_BYTES, largest_tensor_bytes


def check_gpu_memory(args: Namespace, config: dict, gpus: list[dict] | None) -> list[Line]:
    """The estimate of each role against the GPU with least free memory."""
    if not gpus:
        return [Line("GPU memory", GO, "skipped: no GPU")]
    free, budget = min(gpu["free"] for gpu in gpus), args.vllm_gpu_memory_utilization * smallest(gpus)
    actor, pristine = actor_bytes(args, config), pristine_bytes(args, config)
    result = []
    if shared(args):
        need = shared_bytes(args, config, budget)
        more = first_products(args, config, free - need)
        result.append(judged("actor + engine", need, free, smaller_share(args, config, gpus), more))
    else:
        more = larger_micro_batch(args, config, free) or first_products(args, config, free - actor)
        result.append(judged("actor", actor, free, smaller_actor(args), more))
    if args.own_reference and not (args.colocate_actor_ref or args.colocate_all_models):
        shares = args.ref_num_nodes * args.ref_num_gpus_per_node if args.zero_stage == 3 else 1
        result.append(judged("reference", 2 * parameters(config) / shares + ACTOR_FIXED, free, "--ref_reward_offload"))
    result.append(engine_line(engine_weights(args), budget, pristine, free))
    return result


def shared_bytes(args: Namespace, config: dict, budget: float) -> float:
    """Peak of a GPU that actor and engine share, of `budget` bytes for the engine.

    A sleeping engine gives back its KV cache only: vLLM 0.15.1 never enters the memory pool of its weights (`with A and
    B` in `Worker.load_model`, vllm#34021), so they stay, and so do activations, graphs and context.
    """
    beside = ENGINE_OUTSIDE + pristine_bytes(args, config)
    if not args.vllm_enable_sleep:
        return actor_bytes(args, config) + budget + beside
    asleep = engine_weights(args) + ENGINE_FIXED
    return max(actor_bytes(args, config) + asleep, actor_resting_bytes(args, config) + budget) + beside


def smaller_actor(args: Namespace) -> str:
    """What makes an actor smaller."""
    if is_resident(args):
        return "fewer tokens in a micro-batch, a lower --generate_max_len, or --gradient_checkpointing"
    return "--micro_train_batch_size 1, --generate_max_len lower, more actor GPUs, or --offload"


def smaller_share(args: Namespace, config: dict, gpus: list[dict]) -> str:
    """The engine's part with which both fit, or what makes the actor smaller."""
    try:
        return f"--{OPTION} {utilisation(args, config, gpus)}"
    except ValueError:
        return smaller_actor(args)


def first_products(args: Namespace, config: dict, left: float) -> str:
    """Whether the memory that is left lets the resident actor keep the experts' first products: all or none."""
    if not is_resident(args):
        return ""
    return kept_products(with_first_products(args, config) - actor_bytes(args, config), left)


def kept_products(more: float, left: float) -> str:
    """What becomes of the experts' first products, which take `more` bytes where `left` are free."""
    return f"; {gigabytes(more)} more to keep the experts' first products: {'kept' if more <= left else 'recomputed'}"


def engine_line(weights: float, budget: float, pristine: float, free: float) -> Line:
    """The line of an engine: it takes its budget at once, and its KV cache is what the weights leave of that.

    The copies of `pristine_bytes` come on top at the first sync.
    """
    cache = budget - weights - ENGINE_FIXED
    copies = f" and {gigabytes(pristine)} of adapted weights beside it" if pristine else ""
    measured = f"engine: {gigabytes(weights)} weights, {gigabytes(budget)} budget{copies}, {gigabytes(free)} free"
    if cache <= 0:
        repair = "a higher --vllm_tensor_parallel_size or --vllm_gpu_memory_utilization"
        return Line("GPU memory", NO_GO, f"{measured}: no room for a KV cache", repair)
    if budget + pristine > free:  # vLLM refuses to start, or the first sync finds no memory
        repair = "stop what uses the GPU (nvidia-smi), or a lower --vllm_gpu_memory_utilization"
        return Line("GPU memory", NO_GO, measured, repair)
    return Line("GPU memory", GO, f"{measured}, {gigabytes(cache)} for the KV cache")


def judged(role: str, need: float, free: float, repair: str, more: str = "") -> Line:
    """A line of one role; estimates that come near the bound are a warning."""
    measured = f"{role}: about {gigabytes(need)}, {gigabytes(free)} free{more}"
    if need > free:
        return Line("GPU memory", NO_GO, measured, repair)
    return Line("GPU memory", WARN if need > NEARLY * free else GO, measured, repair if need > NEARLY * free else "")


def host_bytes(args: Namespace, config: dict) -> float:
    """Peak of the host memory of one node, the one of rank 0, while models are loaded and, with offloading, afterwards.

    The resident actor reads the checkpoint as it is, a tensor at a time in each rank. Of the eager one's bf16 model
    under ZeRO-3 rank 0 holds the whole, which shrinks as the partitions grow, and for a moment a tensor twice as it is
    dequantised; every other rank of the node holds the tensor that is being cut (`rft.hooks.mxfp4`). A second,
    reference model is loaded at the same time, in bf16.
    """
    ranks, models = args.actor_num_gpus_per_node, 2 if args.own_reference else 1
    at_work = ranks * 2 * max(tensor_sizes(config))
    loading = models * (2 * parameters(config) + (at_work if args.zero_stage == 3 else 0))
    if is_resident(args):
        loading = ranks * largest_tensor_bytes(config) + (models - 1) * 2 * parameters(config)
    states = OPTIMIZER_BYTES * trained_parameters(args, config) if args.adam_offload else 0
    resident = (pinned_bytes(config, args.actors) / args.actor_num_nodes if args.offload else 0) + states
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu"
    cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", 4)) * 2**30 if on_cpu else 0
    return max(loading, resident) + cache * args.engines


def pinned_bytes(config: dict, ranks: int) -> int:
    """Host memory of the bf16 partitions of all ranks when it is pinned: torch rounds each up to a power of two.

    (c10/core/CachingHostAllocator, torch 2.9 and 2.10.) 239 GB instead of 234 for gpt-oss-120b on four ranks.
    """
    return sum(ranks * (1 << (2 * -(-size // ranks) - 1).bit_length()) for size in tensor_sizes(config))


def check_host_memory(args: Namespace, config: dict, available: int | None = None) -> list[Line]:
    """Host memory for loading and offloading."""
    available = available_memory() if available is None else available
    need = host_bytes(args, config)
    measured = f"about {gigabytes(need)} to load or offload, {gigabytes(available)} available"
    repair = "without --offload, or a machine, container or job with more memory"
    if need > available:
        return [Line("host memory", NO_GO, measured, repair)]
    return [Line("host memory", GO, measured)]


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this run can still get, swap left out: of the machine, or of the container or job that it is in.

    Args:
        root: of /proc and /sys.

    Raises:
        ValueError: /proc/meminfo has no MemAvailable.
    """
    meminfo = root / "proc/meminfo"
    rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    if "MemAvailable" not in rows:
        raise ValueError(f"{meminfo}: no MemAvailable")
    of_machine, limited = int(rows["MemAvailable"].split()[0]) * 1024, cgroup.available(root)
    return of_machine if limited is None else min(of_machine, limited)
