"""The options that the patches add to `openrlhf.cli.train_sft`, and what is refused there. Standard library only."""

import argparse

from rft.options import actor, batches, init_adapter, remote_code, trackers
from rft.options.effort import EFFORTS
from rft.options.refusals import hub_config, require_sinks, require_sound_attention

# Options of GRPO's trainer that checks of both ask for, as a supervised training has them.
ABSENT = {
    "actor_num_nodes": 1,
    "separate_reference_model": False,
    "async_train": False,
    "own_reference": False,
    "reward_pretrain": None,
    "critic_pretrain": None,
    "init_kl_coef": 0.0,
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add our options; from here on an option must be written out."""
    parser.allow_abbrev = False
    parser.set_defaults(wandb_run_name=None, attn_implementation="eager")
    group = parser.add_argument_group("rft")
    group.add_argument(
        "--actor",
        choices=["resident", "eager"],
        help="resident (default for gpt-oss in MXFP4): experts stay packed on the GPU, sequences are packed without "
        "padding (docs/actor.md); eager: transformers' own model in bf16",
    )
    group.add_argument(
        "--shard_experts", type=int, default=1, help="ranks that split the resident actor's packed experts"
    )
    group.add_argument(
        "--head_dtype",
        choices=["float32", "model"],
        default="float32",
        help="what logits are computed in; model: the checkpoint's dtype, as upstream",
    )
    group.add_argument(
        "--micro_train_tokens",
        type=int,
        default=0,
        help="tokens of a micro-batch, instead of a number of rows (--micro_train_batch_size, which then does not "
        "count); 0 (default): off (docs/sft.md)",
    )
    group.add_argument("--init_adapter", metavar="DIR", help="go on training this saved adapter")
    group.add_argument(
        "--reasoning_effort", choices=EFFORTS, help="what the chat template tells the model, as in GRPO afterwards"
    )
    group.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run Python code that a checkpoint brings along (docs/security.md); gpt-oss has none",
    )


def settle(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Set what is made of several options, and `ABSENT`; with a budget of tokens what DeepSpeed is told, as in GRPO.

    Args:
        ranks: processes of the training, one for each GPU.
    """
    for name, value in ABSENT.items():
        setattr(args, name, value)
    args.actor_num_gpus_per_node = ranks
    args.use_dynamic_batch = bool(args.micro_train_tokens)
    if args.use_dynamic_batch:
        args.micro_train_batch_size = 1
    if args.packing_samples and "flash_attention" not in args.attn_implementation:
        args.attn_implementation = "flash_attention_2"  # as the trainer's main does
    init_adapter.settle(args)
    actor.choose(args, actor.read_config(args.pretrain))
    return args


def refuse(args: argparse.Namespace) -> None:
    """What a supervised training is refused for, by trainer and launcher alike.

    Args:
        args: as `settle` leaves them.

    Raises:
        ValueError: the first of them: found, wanted, repair.
    """
    for name in ("pretrain", "dataset"):
        if not getattr(args, name):
            raise ValueError(f"--{name}: found none, wanted {'a model' if name == 'pretrain' else 'rows'}; docs/sft.md")
    remote_code.refuse(args)
    if args.micro_train_tokens:
        require_budget(args)
    else:
        require_whole_steps(args)
    actor.require_resident(args)
    init_adapter.require_fitting(args)
    require_sound_attention(args)
    require_own_masks(args)


def require_own_masks(args: argparse.Namespace) -> None:
    """Refuse the ways on which upstream makes tokens and masks by itself: rows are cut there, and padding is learned.

    Raises:
        ValueError: see above.
    """
    if args.pretrain_mode or not args.apply_chat_template:
        found = "--pretrain_mode" if args.pretrain_mode else "no --apply_chat_template"
        raise ValueError(
            "rows are learned as turns of the chat template; otherwise OpenRLHF cuts long ones, and learns padding\n"
            f"  found:  {found}\n  wanted: --apply_chat_template, without --pretrain_mode\n"
            f"  repair: {'leave --pretrain_mode out' if args.pretrain_mode else 'add --apply_chat_template'}"
        )


def ranks_of(args: argparse.Namespace) -> int:
    """Data-parallel ranks, to which rows are dealt."""
    return max(1, args.actor_num_gpus_per_node // max(1, args.ring_attn_size * args.ds_tensor_parallel_size))


def require_whole_steps(args: argparse.Namespace) -> None:
    """Refuse a batch that its micro-batches do not fill: DeepSpeed's own words name no option.

    Raises:
        ValueError: the sizes and the ranks.
    """
    size, ranks = args.micro_train_batch_size, args.actor_num_gpus_per_node
    share = max(1, size) * ranks
    if size < 1 or args.train_batch_size < 1 or args.train_batch_size % (size * ranks):
        raise ValueError(
            "the batch is no whole number of micro-batches\n"
            f"  found:  --train_batch_size {args.train_batch_size} --micro_train_batch_size {size}, {ranks} ranks\n"
            "  wanted: a batch that the micro-batches of all ranks divide\n"
            f"  repair: --train_batch_size {max(1, args.train_batch_size // share) * share}"
        )


def require_budget(args: argparse.Namespace) -> None:
    """Refuse a budget of tokens that cannot be kept, or with which the loss would depend on the packing.

    Raises:
        ValueError: a budget below the longest conversation, a batch that the ranks cannot share, a loss of the experts'
            balance, or gradients that DeepSpeed would drop.
    """
    named, length = f"--micro_train_tokens {args.micro_train_tokens}", args.max_len
    if args.micro_train_tokens < length:
        raise ValueError(
            "--micro_train_tokens is below what one conversation may have, and a conversation is never cut in two\n"
            f"  found:  {named}\n  wanted: {length} or more (--max_len {length})\n"
            f"  repair: --micro_train_tokens {length}, or a lower --max_len, which leaves longer conversations out"
        )
    ranks, size = ranks_of(args), args.train_batch_size
    if size < 1 or size % ranks:
        raise ValueError(
            "micro-batches by tokens need a batch that the ranks can share\n"
            f"  found:  {named} --train_batch_size {size}, {ranks} ranks\n  wanted: a multiple of {ranks}\n"
            f"  repair: --train_batch_size {max(1, size // ranks) * ranks}"
        )
    if args.aux_loss_coef:
        raise ValueError(
            "the experts' balance in a micro-batch depends on how conversations are packed into it\n"
            f"  found:  {named} --aux_loss_coef {args.aux_loss_coef:g}\n  wanted: a loss of tokens alone\n"
            "  repair: --aux_loss_coef 0, or --micro_train_tokens 0"
        )
    batches.require_accumulation(args)


def check(args: argparse.Namespace, ranks: int) -> None:
    """`settle` and `refuse` in the trainer, where a model of the hub is looked up too.

    Raises:
        ValueError: see `refuse`.
    """
    remote_code.settle(args.trust_remote_code)
    trackers.settle(args)
    settle(args, ranks)
    refuse(args)
    if args.pretrain and not actor.read_config(args.pretrain):
        config = hub_config(args.pretrain)
        actor.choose(args, config)
        actor.require_resident(args, config)
        require_sinks(args, config.get("model_type"))
