"""`--actor`: which model the trainer computes with, and what the resident one leaves to the other."""

import json
from argparse import Namespace
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
    """Fill in `--actor` where it was left out: resident for gpt-oss in MXFP4, eager for any other model."""
    if args.actor is None:
        args.actor = "resident" if is_packed(config) else "eager"


def require_resident(args: Namespace) -> None:
    """Refuse what the resident actor cannot train.

    Raises:
        ValueError: another model than gpt-oss in MXFP4; anything trained but adapters of the attention; another dtype
            than bf16; one of upstream's ways to split or replace the model; or experts that cannot be split as asked.
    """
    if args.actor != "resident":
        if args.shard_experts != 1:
            raise ValueError(
                f"--shard_experts {args.shard_experts} belongs to the resident actor\n  found:  --actor {args.actor}\n"
                "  repair: leave --shard_experts out; --zero_stage 3 splits this one"
            )
        return
    targets = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    others = [target for target in targets if target.rpartition(".")[2] not in ATTENTION]
    config = read_config(args.pretrain)
    refused = {
        "a model that is not gpt-oss in MXFP4": config and not is_packed(config),
        "full-parameter training (--lora_rank 0)": args.lora_rank == 0,
        f"--target_modules {' '.join(others)}, where its adapters are those of the attention": others,
        "--load_in_4bit, where its experts are in MXFP4": args.load_in_4bit,
        f"--param_dtype {args.param_dtype}, where it computes in bf16": args.param_dtype != "bf16",
        "--use_liger_kernel": args.use_liger_kernel,
        "--deepcompile": args.deepcompile,
        f"--ring_attn_size {args.ring_attn_size}": args.ring_attn_size > 1,
        f"--ds_tensor_parallel_size {args.ds_tensor_parallel_size}": args.ds_tensor_parallel_size > 1,
        f"--aux_loss_coef {args.aux_loss_coef:g}, where its router is frozen": args.aux_loss_coef > 0,
    }
    ranks, experts = args.actor_num_nodes * args.actor_num_gpus_per_node, config.get("num_local_experts", 0)
    if args.shard_experts < 1 or ranks % args.shard_experts or experts % args.shard_experts:
        raise ValueError(
            f"--shard_experts {args.shard_experts} cannot split the experts\n"
            f"  found:  {ranks} actor ranks, {experts} experts\n  wanted: a divisor of both\n"
            "  repair: --shard_experts 1 (each rank holds all), or the number of ranks on a node"
        )
    for found, applies in refused.items():
        if applies:
            raise ValueError(
                f"--actor resident cannot train this\n  found:  {found}\n"
                f"  wanted: gpt-oss in MXFP4, bf16, --lora_rank 1 or more with --target_modules {' '.join(ATTENTION)}\n"
                "  repair: leave it out, or --actor eager (slower, and the whole model in bf16)"
            )
