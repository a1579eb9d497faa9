"""Memory of each role against what is free: GPUs from nvidia-smi, the host from /proc/meminfo and its cgroups.

Measured on one H200, gpt-oss-20b, LoRA r=32, ZeRO-3, reentrant checkpointing, eager attention (docs/benchmarks.md): the
bf16 model takes 41.8 GB; the actor 58.4 GB with 2,176 tokens in a micro-batch and 67.2 GB with 4,352. The line through
both is 7.8 GB and 4.04 MB a token beside the model, the latter five float32 rows of logits. Attention scores, which
those short sequences hardly show, are added by size.
"""

import os
import subprocess
from argparse import Namespace
from pathlib import Path
from shutil import which

from rft.runs.preflight import cgroup
from rft.runs.preflight.batches import ranks
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, gigabytes
from rft.runs.preflight.model import parameters, projection_shapes, tensor_sizes, trained_parameters

ACTOR_FIXED = 7.8e9  # context, gathered layers, buffers, fragmentation
LOGIT_BYTES = 5 * 4  # a token and vocabulary entry, with gradient
FORWARD_BYTES = 2 + 4  # the same without one: bf16, then float32
SCORE_BYTES = 6  # bf16 scores and float32 softmax of one layer
ENGINE_FIXED = 3e9  # context, CUDA graphs, activations; the KV cache gets what is left
OPTIMIZER_BYTES = 14  # a trained parameter: float32 master copy, two moments, bf16 gradient
NEARLY = 0.9


def read_gpus() -> list[dict] | None:
    """`free` and `total` bytes of each GPU that CUDA_VISIBLE_DEVICES names; None without a driver, or RFT_STACK=cpu."""
    if which("nvidia-smi") is None or os.environ.get("RFT_STACK") == "cpu":
        return None
    query = ["nvidia-smi", "--query-gpu=index,memory.free,memory.total,name", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        return None  # a driver library without a GPU
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else {i.strip() for i in visible.split(",")}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    # CUDA_VISIBLE_DEVICES="" and -1 hide every GPU; which ones UUIDs name is not printed here.
    by_index = wanted is not None and all(i.removeprefix("-").isdigit() for i in wanted if i)
    kept = [row for row in rows if not by_index or row[0] in wanted]
    return [{"free": int(free) * 2**20, "total": int(total) * 2**20, "name": name} for _, free, total, name in kept]


def actor_bytes(args: Namespace, config: dict) -> float:
    """Peak of the actor on one GPU."""
    weights = 2 * parameters(config)
    shares = args.actors if args.zero_stage == 3 else 1
    states = OPTIMIZER_BYTES * trained_parameters(args, config) / (args.actors if args.zero_stage else 1)
    length = args.prompt_max_len + args.generate_max_len
    scores = config["num_attention_heads"] * length**2 * SCORE_BYTES  # of one sequence
    # Of the longest: by tokens a micro-batch has more of them where they are shorter.
    train, rollout = (
        (args.micro_train_tokens / length, args.micro_rollout_tokens / length)
        if args.micro_train_tokens
        else (args.micro_train_batch_size, args.micro_rollout_batch_size)
    )
    training = train * (length * config["vocab_size"] * LOGIT_BYTES + scores)
    scoring = rollout * (length * config["vocab_size"] * FORWARD_BYTES + scores)
    resident = 0 if args.offload else weights / shares
    return resident + (0 if args.adam_offload else states) + ACTOR_FIXED + max(training, scoring)


def engine_weights(args: Namespace) -> float:
    """Bytes of the checkpoint's weights on one GPU of an engine, which keeps them as they are on disk."""
    files = sum(file.stat().st_size for file in Path(args.pretrain).glob("*.safetensors"))
    return files / args.vllm_tensor_parallel_size


def pristine_bytes(args: Namespace, config: dict) -> float:
    """What an engine's worker keeps on one GPU beside vLLM's budget: W0 of every weight that a sync has touched.

    By `rft.hooks.lora_merged`, in bf16, from the first sync on, also while the engine sleeps: 1.27 GB for gpt-oss-20b.
    Queries, keys and values are one weight there. `--lora_serving exact` leaves W0 alone and needs no copy.
    """
    if not args.lora_rank or args.lora_serving == "exact":
        return 0
    shapes = projection_shapes(config)
    fused = ("q_proj", "k_proj", "v_proj")
    targets = {args.target_modules} if isinstance(args.target_modules, str) else set(args.target_modules)
    whole = "all-linear" in targets
    touched = {name for name in shapes if whole or name in targets or (name in fused and targets & set(fused))}
    elements = sum(rows * columns for rows, columns in (shapes[name] for name in touched))
    return 2 * elements * config["num_hidden_layers"] / args.vllm_tensor_parallel_size


def check_gpu_memory(args: Namespace, config: dict, gpus: list[dict] | None) -> list[Line]:
    """The estimate of each role against the GPU with least free memory."""
    if not gpus:
        return [Line("GPU memory", GO, "skipped: no GPU")]
    free, total = min(gpu["free"] for gpu in gpus), min(gpu["total"] for gpu in gpus)
    actor, budget = actor_bytes(args, config), args.vllm_gpu_memory_utilization * total
    weights, pristine = engine_weights(args), pristine_bytes(args, config)
    smaller = "--micro_train_batch_size 1, --generate_max_len lower, more actor GPUs, or --offload"
    result = []
    if args.colocate_all_models and not args.async_train:
        resident = weights + ENGINE_FIXED if args.vllm_enable_sleep else budget
        result.append(judged("actor + engine", actor + resident + pristine, free, smaller))
    else:
        result.append(judged("actor", actor, free, smaller, larger_micro_batch(args, config, free)))
    if args.own_reference and not (args.colocate_actor_ref or args.colocate_all_models):
        shares = args.ref_num_nodes * args.ref_num_gpus_per_node if args.zero_stage == 3 else 1
        result.append(judged("reference", 2 * parameters(config) / shares + ACTOR_FIXED, free, "--ref_reward_offload"))
    result.append(engine_line(weights, budget, pristine, free))
    return result


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


def larger_micro_batch(args: Namespace, config: dict, free: float) -> str:
    """What to add to the actor's line where a larger micro-batch of training fits as well.

    A micro-batch takes nearly the same time whatever it holds: the experts' kernels are many and small. On an H200 128
    samples of 448 tokens trained in 42 s as 16 micro-batches; as 128 they would have taken 240 (docs/benchmarks.md).
    """
    if args.use_dynamic_batch or (args.own_reference and args.colocate_actor_ref):
        return ""  # the micro-batch is sized otherwise; the reference model takes what is free
    share, micro = args.train_batch_size // ranks(args), args.micro_train_batch_size
    sizes = [size for size in range(micro + 1, share + 1) if share % size == 0]
    needs = {size: actor_bytes(Namespace(**vars(args) | {"micro_train_batch_size": size}), config) for size in sizes}
    size = max((size for size, need in needs.items() if need <= NEARLY * free), default=None)
    if size is None:
        return ""
    same = "" if args.loss_normalization == "batch" else ", with another loss unless --loss_normalization batch"
    return f"; --micro_train_batch_size {size} would fit too ({gigabytes(needs[size])}) and is faster{same}"


def judged(role: str, need: float, free: float, repair: str, more: str = "") -> Line:
    """A line of one role; estimates that come near the bound are a warning."""
    measured = f"{role}: about {gigabytes(need)}, {gigabytes(free)} free{more}"
    if need > free:
        return Line("GPU memory", NO_GO, measured, repair)
    return Line("GPU memory", WARN if need > NEARLY * free else GO, measured, repair if need > NEARLY * free else "")


def host_bytes(args: Namespace, config: dict) -> float:
    """Peak of the host memory of one node, the one of rank 0, while models are loaded and, with offloading, afterwards.

    Of an MXFP4 checkpoint under ZeRO-3 rank 0 holds one whole bf16 model, which shrinks as the partitions grow, and
    for a moment a tensor twice as it is dequantised; every other rank of the node holds the tensor that is being cut
    (`rft.hooks.mxfp4`). A second, reference model is loaded at the same time.
    """
    models = 2 if args.own_reference else 1
    at_work = args.actor_num_gpus_per_node * 2 * max(tensor_sizes(config))
    loading = models * (2 * parameters(config) + (at_work if args.zero_stage == 3 else 0))
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
