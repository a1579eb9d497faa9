"""`--actor`: which model the trainer computes with, and what the resident one leaves to the other."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def read_config(checkpoint: str | None) -> dict:
    """config.json of a checkpoint folder; empty where there is none to be read: whoever loads it says what is wrong."""
    try:
        config = json.loads(Path(checkpoint or "", "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_packed(config: dict) -> bool:
    """Whether a config.json is gpt-oss's with experts in MXFP4."""
    quantization = config.get("quantization_config") or {}
    return config.get("model_type") == "gpt_oss" and quantization.get("quant_method") == "mxfp4"


def choose(args: Namespace, config: dict) -> None:
    """Fill in `--actor` where it was left out: resident for gpt-oss in MXFP4, eager for any other model.

    It stays None while the config is not known, as of a model of the hub before the trainer has asked for it.
    """
    if args.actor is None and config:
        args.actor = "resident" if is_packed(config) else "eager"


def require_resident(args: Namespace, config: dict | None = None) -> None:
    """Refuse what the resident actor cannot train.

    Args:
        config: of the model; None: that of the folder `--pretrain`.

    Raises:
        ValueError: another model than gpt-oss in MXFP4; anything trained but adapters of the attention; another dtype
            than bf16; one of upstream's ways to split or replace the model; or experts that cannot be split as asked.
    """
    config = read_config(args.pretrain) if config is None else config
    if args.actor == "eager" and args.shard_experts != 1:
        raise ValueError(
            f"--shard_experts {args.shard_experts} belongs to the resident actor\n  found:  --actor {args.actor}\n"
            "  repair: leave --shard_experts out; --zero_stage 3 splits this one"
        )
    if args.actor != "resident":
        return
    for found, wanted, repair in faults(args, config):
        raise ValueError(
            f"--actor resident cannot train this\n  found:  {found}\n  wanted: {wanted}\n"
            f"  repair: {repair}, or --actor eager (slower, and the whole model in bf16)"
        )
    ranks, experts = args.actor_num_nodes * args.actor_num_gpus_per_node, config.get("num_local_experts", 0)
    if args.shard_experts < 1 or ranks % args.shard_experts or experts % args.shard_experts:
        raise ValueError(
            f"--shard_experts {args.shard_experts} cannot split the experts\n"
            f"  found:  {ranks} actor ranks, {experts} experts\n  wanted: a divisor of both\n"
            "  repair: --shard_experts 1 (each rank holds all), or the number of ranks on a node"
        )


def faults(args: Namespace, config: dict) -> Iterator[tuple[str, str, str]]:
    """What the resident actor cannot train of these options: what was found, what is wanted, and the repair."""
    targets = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    attention = f"--target_modules {' '.join(ATTENTION)}"
    if config and not is_packed(config):
        yield f"a model of type {config.get('model_type')}", "gpt-oss with experts in MXFP4", "another --pretrain"
    if args.lora_rank == 0:
        yield "full-parameter training (--lora_rank 0, the default)", "an adapter", f"--lora_rank 32 {attention}"
    if any(target.rpartition(".")[2] not in ATTENTION for target in targets):
        yield f"--target_modules {' '.join(targets)}", "an adapter of the attention alone", attention
    if args.param_dtype != "bf16":
        yield f"--param_dtype {args.param_dtype}", "bf16", "--param_dtype bf16"
    if args.separate_reference_model:
        yield "--separate_reference_model", "itself with its adapter off as reference", "leave it out"
    upstream = {
        "--load_in_4bit": args.load_in_4bit,
        "--use_liger_kernel": args.use_liger_kernel,
        "--deepcompile": args.deepcompile,
        f"--ring_attn_size {args.ring_attn_size}": args.ring_attn_size > 1,
        f"--ds_tensor_parallel_size {args.ds_tensor_parallel_size}": args.ds_tensor_parallel_size > 1,
        f"--aux_loss_coef {args.aux_loss_coef:g}": args.aux_loss_coef > 0,
    }
    for found, given in upstream.items():
        if given:
            yield found, "experts in MXFP4, a frozen router, whole sequences on each rank", "leave it out"
