"""Micro-batches by tokens: what `--micro_train_tokens` sets, and what it does not go with. Without torch.

OpenRLHF's dynamic batches are their ground, and `use_dynamic_batch` is what its trainer reads; docs/loss.md says what
the loss becomes.
"""

import math
from argparse import Namespace

from rft.options.loss import needs_own_model


def settle(args: Namespace) -> Namespace:
    """The settings of the trainer that follow from `--micro_train_tokens`; without it nothing changes.

    A micro-batch then has any number of samples. The 1 that the sizes in samples become is what DeepSpeed is told,
    whose own arithmetic of batches must come out even.
    """
    if args.micro_train_tokens:
        args.use_dynamic_batch = True
        args.micro_rollout_tokens = args.micro_rollout_tokens or args.micro_train_tokens
        args.micro_train_batch_size = args.micro_rollout_batch_size = 1
    return args


def longest(args: Namespace) -> int:
    """Tokens at which the rollout cuts a sample off, the prompt among them."""
    return args.prompt_max_len + args.generate_max_len


def require_own_names(args: Namespace) -> None:
    """Refuse OpenRLHF's names for micro-batches by tokens, which packed otherwise and weighed by responses.

    Raises:
        ValueError: one of them is given.
    """
    given = [("train_max_tokens_per_gpu", "train"), ("rollout_max_tokens_per_gpu", "rollout")]
    found = [f"--{old} {getattr(args, old)}" for old, _ in given if getattr(args, old) is not None]
    repair = [f"--micro_{new}_tokens {getattr(args, old)}" for old, new in given if getattr(args, old) is not None]
    if args.use_dynamic_batch and not args.micro_train_tokens:
        found.insert(0, "--use_dynamic_batch")
    if found:
        wanted = "--micro_train_tokens N and, for the log-probabilities before an update, --micro_rollout_tokens N"
        raise ValueError(
            "micro-batches by tokens have other names, and a loss that does not depend on the packing\n"
            f"  found:  {' '.join(found)}\n  wanted: {wanted}\n"
            f"  repair: {' '.join(repair) or f'--micro_train_tokens {4 * longest(args)}'} --loss_normalization batch"
        )


def require_sound_budget(args: Namespace) -> None:
    """Refuse a budget of tokens that cannot be kept, or with which the loss would depend on the packing.

    Raises:
        ValueError: see the functions that this one calls.
    """
    if args.micro_rollout_tokens and not args.micro_train_tokens:
        raise ValueError(
            "micro-batches by tokens are for the rollout's log-probabilities and for training, or for neither\n"
            f"  found:  --micro_rollout_tokens {args.micro_rollout_tokens} without --micro_train_tokens\n"
            "  wanted: both, or --micro_train_tokens alone, which counts for both\n"
            f"  repair: --micro_train_tokens {args.micro_rollout_tokens}, or --micro_rollout_tokens 0"
        )
    if args.micro_train_tokens:
        require_room(args)
        require_even_shares(args)
        require_equal_ranks(args)
        require_independence(args)
        require_accumulation(args)


def require_room(args: Namespace) -> None:
    """Refuse a budget that the longest sample exceeds: that sample would take more memory than was allowed for.

    Raises:
        ValueError: see above.
    """
    for name in ("micro_train_tokens", "micro_rollout_tokens"):
        if getattr(args, name) < longest(args):
            raise ValueError(
                f"--{name} is below what one sample may have, and a sample is never cut in two\n"
                f"  found:  --{name} {getattr(args, name)}\n"
                f"  wanted: {longest(args)} or more (--prompt_max_len {args.prompt_max_len} + "
                f"--generate_max_len {args.generate_max_len})\n  repair: --{name} {longest(args)}"
            )


def require_even_shares(args: Namespace) -> None:
    """Refuse samples that cannot be dealt out: every rank has equally many micro-batches in every optimizer step.

    Raises:
        ValueError: a rollout is no number of optimizer steps, or a step no number of ranks.
    """
    n, step = args.n_samples_per_prompt, args.train_batch_size
    actors = args.actor_num_nodes * args.actor_num_gpus_per_node
    samples, together = args.rollout_batch_size * n, args.ring_attn_size * args.ds_tensor_parallel_size
    if min(samples, step, together) < 1 or actors < together:
        return  # preflight names what is below 1
    ranks = actors // together
    if samples % step or step % ranks:
        # The largest step that a rollout and the ranks allow; where there is none, a rollout of one.
        fitting = [size for size in range(ranks, min(step, samples) + 1, ranks) if samples % size == 0]
        unit = ranks // math.gcd(ranks, n)
        prompts = -(-args.rollout_batch_size // unit) * unit
        whole = f"--rollout_batch_size {prompts} --train_batch_size {prompts * n}"
        raise ValueError(
            "micro-batches by tokens need a rollout of whole optimizer steps, and steps that the ranks can share\n"
            f"  found:  {samples} samples a rollout, --train_batch_size {step}, {ranks} ranks\n"
            f"  wanted: a --train_batch_size that divides {samples} and is a multiple of {ranks}\n"
            f"  repair: {f'--train_batch_size {fitting[-1]}' if fitting else whole}"
        )


def require_equal_ranks(args: Namespace) -> None:
    """Refuse another model that scores the samples on another number of ranks than the actor's.

    Raises:
        ValueError: of a second reference model, or a reward model.
    """
    actors = args.actor_num_nodes * args.actor_num_gpus_per_node
    others = {"ref": args.init_kl_coef > 0 and needs_own_model(args), "reward": not args.remote_rm_url}
    for name in (name for name, used in others.items() if used):
        found = getattr(args, f"{name}_num_nodes") * getattr(args, f"{name}_num_gpus_per_node")
        if found != actors:
            raise ValueError(
                "micro-batches by tokens are dealt out once, for all models that score them\n"
                f"  found:  {found} GPUs of --{name}_num_nodes x --{name}_num_gpus_per_node, {actors} of the actor\n"
                f"  wanted: as many as the actor has\n  repair: --{name}_num_nodes {args.actor_num_nodes} "
                f"--{name}_num_gpus_per_node {args.actor_num_gpus_per_node}"
            )


def require_independence(args: Namespace) -> None:
    """Refuse a loss that is another one with another packing.

    Raises:
        ValueError: a mean over micro-batches; gspo, whose responses weigh the same, with terms that are means over
            tokens; a critic.
    """
    named = f"--micro_train_tokens {args.micro_train_tokens}"
    if args.advantage_estimator == "gae":
        raise ValueError(
            f"a critic is not trained in micro-batches by tokens\n  found:  {named} --advantage_estimator gae\n"
            "  wanted: an estimator without a critic, or a fixed number of samples\n"
            "  repair: --advantage_estimator group_norm, or --micro_train_tokens 0"
        )
    if args.policy_loss_type == "gspo":
        terms = ["--use_kl_loss"] * (args.use_kl_loss and args.init_kl_coef > 0)
        terms += [f"--entropy_loss_coef {args.entropy_loss_coef}"] * bool(args.entropy_loss_coef)
        if terms:
            raise ValueError(
                "gspo's loss is a mean over responses and these terms one over tokens: no one weight of a micro-batch "
                f"is right for both\n  found:  {named} --policy_loss_type gspo {' '.join(terms)}\n"
                "  wanted: the KL as a penalty in the reward, the entropy logged only\n"
                f"  repair: without {' and '.join(terms)}, or --micro_train_tokens 0"
            )
    elif args.loss_normalization != "batch":
        raise ValueError(
            "a mean over micro-batches depends on how samples are packed into them\n"
            f"  found:  {named} --loss_normalization {args.loss_normalization}\n"
            "  wanted: batch, with which every action token of an optimizer step counts the same\n"
            "  repair: --loss_normalization batch"
        )


def require_accumulation(args: Namespace) -> None:
    """Refuse micro-batches by tokens where DeepSpeed would keep the gradient of the last one only.

    With its optimizer on the host, ZeRO 1 and 2 add up gradients only when `gradient_accumulation_steps` is above 1
    (`stage_1_and_2.py`, `copy_grads_in_partition`), and these micro-batches have no number to give.

    Raises:
        ValueError: `--micro_train_tokens --adam_offload` below ZeRO-3.
    """
    if args.adam_offload and args.zero_stage < 3:
        raise ValueError(
            "--micro_train_tokens with --adam_offload loses all gradients but the last micro-batch's below ZeRO-3\n"
            f"  found:  --zero_stage {args.zero_stage} --adam_offload\n"
            "  wanted: ZeRO-3, or the optimizer on the device: an adapter's states take 14 bytes a parameter\n"
            "  repair: --zero_stage 3, or leave --adam_offload out"
        )
