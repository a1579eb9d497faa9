"""Memory of a rollout engine on one GPU: its weights, its KV cache, and its part of a GPU that the actor shares.

    .venv/bin/python -m rft.runs.preflight.engine .venv/bin/python -m openrlhf.cli.train_ppo_ray --option value …

prints a value for `--vllm_gpu_memory_utilization` where actor and engine are colocated and the command gives none, and
on stderr how it came about. It prints no value where the model or the GPUs cannot be seen from here. Exit status 1 and
one message where both do not fit.
"""

import math
import sys
from argparse import Namespace
from pathlib import Path

from rft.options import command
from rft.runs.preflight.actor import NEARLY, actor_bytes, actor_resting_bytes
from rft.runs.preflight.gpus import read_gpus
from rft.runs.preflight.lines import gigabytes, read_config
from rft.runs.preflight.model import projection_shapes

OPTION = "vllm_gpu_memory_utilization"
ENGINE_FIXED = 3e9  # activations and what else vLLM counts; the KV cache gets what is left
ENGINE_OUTSIDE = 3e9  # CUDA context and graphs, beyond vLLM's budget: 1.9 and 3.1 GB measured (docs/benchmarks.md)


def main() -> int:
    try:
        args = command.parse(sys.argv[1:])
        if OPTION in command.given(sys.argv[1:]) or not shared(args):
            return 0
        config, gpus = read_config(args.pretrain), read_gpus()
        if not config or not gpus:
            what = f"no config.json in {args.pretrain}" if not config else "no GPU here"
            print(f"--{OPTION}: computed at the launch from model and GPU; {what}", file=sys.stderr)
            return 0
        share = utilisation(args, config, gpus)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"--{OPTION} {share}: {gigabytes(share * smallest(gpus))} of a GPU for the engine, beside an actor of "
        f"{gigabytes(actor_bytes(args, config))} (computed; a value given by hand is used as it is)",
        file=sys.stderr,
    )
    print(share)
    return 0


def shared(args: Namespace) -> bool:
    """Whether an engine and a rank of the actor share each GPU."""
    return args.colocate_all_models and not args.async_train


def smallest(gpus: list[dict]) -> int:
    """Bytes of the smallest GPU."""
    return min(gpu["total"] for gpu in gpus)


def utilisation(args: Namespace, config: dict, gpus: list[dict]) -> float:
    """The engine's part of a GPU that it shares with the actor, two decimals, rounded down.

    What NEARLY of the free memory leaves beside the actor and what an engine holds outside its budget, but no more than
    the rollouts can use: the rest is the actor's. Where the engine sleeps while the actor works, the actor only rests
    beside it.

    Raises:
        ValueError: what is left holds no weights, or not the KV cache of one sequence.
    """
    free = min(gpu["free"] for gpu in gpus)
    actor = actor_resting_bytes(args, config) if args.vllm_enable_sleep else actor_bytes(args, config)
    room = NEARLY * free - actor - ENGINE_OUTSIDE - pristine_bytes(args, config)
    fixed = engine_weights(args) + ENGINE_FIXED
    least = fixed + cache_bytes(args, config, sequences=1)
    if room < least:
        raise ValueError(
            f"actor and engine do not fit on one GPU\n  found:  {gigabytes(free)} free, {gigabytes(actor)} of it for "
            f"the actor, {gigabytes(max(room, 0))} for the engine (computed)\n  wanted: {gigabytes(least)} for the "
            f"engine\n  repair: fewer tokens in a micro-batch, --gradient_checkpointing, stop what uses the GPU, or a "
            f"CLUSTER with a GPU for each"
        )
    samples = math.ceil(args.rollout_batch_size * args.n_samples_per_prompt / args.engines)
    wanted = fixed + cache_bytes(args, config, samples)
    return math.floor(100 * min(room, wanted) / smallest(gpus)) / 100


def cache_bytes(args: Namespace, config: dict, sequences: int) -> float:
    """KV cache of sequences of full length on one GPU of an engine, bf16: 2 x 2 x kv a token and layer.

    Layers with a sliding window, every second one of gpt-oss, keep that many tokens: 129 MB for 5,120 tokens at 20b.
    """
    length = args.prompt_max_len + args.generate_max_len
    window = min(config.get("sliding_window") or length, length)
    layers = config["num_hidden_layers"]
    sliding = (config.get("layer_types") or ["sliding_attention", "full_attention"] * layers)[:layers]
    tokens = sum(window if kind == "sliding_attention" else length for kind in sliding)
    return sequences * tokens * 2 * 2 * projection_shapes(config)["k_proj"][0] / args.vllm_tensor_parallel_size


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


if __name__ == "__main__":
    sys.exit(main())
