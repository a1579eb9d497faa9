"""The options that the patches add to `openrlhf.cli.train_ppo_ray`, and what the patched trainer refuses."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rft.options import actor, remote_code, sft, trackers
from rft.options import batches as batches  # the trainer's main settles them
from rft.options.effort import EFFORTS
from rft.options.refusals import hub_config, refuse, require_sinks
from rft.options.settled import settle
from rft.options.unknown import explain


def add(parser: argparse.ArgumentParser) -> None:
    """Add our options, each with upstream's behaviour as its default unless its help says otherwise.

    From here on an option must be written out: what argparse would take for an abbreviation is refused.
    """
    parser.allow_abbrev = False
    parser.error = lambda message: parser.exit(2, f"error: {explain(parser, message)}\n")
    # What upstream gives a value to and we refuse where it is given; the run's name, which is settled.
    parser.set_defaults(vllm_is_truncated_threshold=None, train_max_tokens_per_gpu=None, wandb_run_name=None)
    group = parser.add_argument_group("rft")
    group.add_argument(
        "--actor",
        choices=["resident", "eager"],
        help="resident (default for gpt-oss in MXFP4): experts stay packed on the GPU, sequences are packed without "
        "padding whatever --attn_implementation and --packing_samples say, only adapters of the attention are trained "
        "(docs/actor.md); eager: transformers' own model in bf16",
    )
    group.add_argument(
        "--shard_experts",
        type=int,
        default=1,
        help="ranks that split the resident actor's packed experts and gather a layer at a time: for 120b on GPUs of "
        "80 GB; a divisor of the number of actor ranks and of experts",
    )
    group.add_argument("--offload", action="store_true", help="keep ZeRO-3's parameter partitions in host memory")
    group.add_argument(
        "--on_policy_ratio_one",
        action="store_true",
        help="take the policy's own log-probabilities as the old ones: ratio 1 on the first update, whatever the "
        "experts' routing did between two forward passes (verl #3794)",
    )
    group.add_argument(
        "--loss_normalization",
        choices=["micro_batch", "batch"],
        default="micro_batch",
        help="batch: mean over all action tokens of an optimizer step, whatever the split into micro-batches (#1249)",
    )
    group.add_argument(
        "--mask_truncated",
        action="store_true",
        help="take answers that were cut at the length limit out of policy loss, KL and entropy; their rewards stay in "
        "their group's advantages (DAPO's overlong filtering; docs/loss.md)",
    )
    group.add_argument(
        "--micro_train_tokens",
        type=int,
        default=0,
        help="tokens of a micro-batch of training, instead of a number of samples (--micro_train_batch_size, which "
        "then does not count); 0 (default): off (docs/loss.md)",
    )
    group.add_argument(
        "--micro_rollout_tokens",
        type=int,
        default=0,
        help="the same for the log-probabilities before an update (--micro_rollout_batch_size); 0 (default): as "
        "--micro_train_tokens",
    )
    group.add_argument(
        "--vllm_is_bounds",
        type=float,
        nargs="+",
        help="bounds of --vllm_is_correction_type: the cap C of tis, token-mis and seq-mis (default 2), LOW HIGH of "
        "icepop (default 0.5 5)",
    )
    group.add_argument(
        "--separate_reference_model",
        action="store_true",
        help="with LoRA: load a second model for --init_kl_coef instead of using the actor with its adapter off",
    )
    group.add_argument(
        "--init_adapter",
        metavar="DIR",
        help="start from this saved adapter instead of a new one; the reference of --init_kl_coef is then base plus "
        "this adapter (docs/init_adapter.md)",
    )
    group.add_argument(
        "--lora_serving",
        choices=["exact", "merged"],
        default="exact",
        help="exact (default): the engine holds A and B beside its weights and rounds once, so no update of B is lost; "
        "merged: bf16(W + s·B·A), which keeps no update below half an ulp (docs/numerics.md)",
    )
    group.add_argument(
        "--head_dtype",
        choices=["float32", "model"],
        default="float32",
        help="what trainer and engine compute logits in; model: the checkpoint's dtype, as upstream",
    )
    group.add_argument(
        "--rollout_seeds",
        choices=["request", "engine"],
        default="request",
        help="request (default): each sample's seed follows from --seed, step, prompt and number; engine: upstream's, "
        "where rollouts depend on the number of engines and on timing",
    )
    group.add_argument(
        "--reward_timeout",
        type=float,
        default=600.0,
        help="seconds that a reward function may take for one sample before the run ends and names the sample",
    )
    group.add_argument(
        "--prompt_order",
        choices=["shuffled", "file"],
        default="shuffled",
        help="file: take the prompts in the order of --prompt_data, for a curriculum (data/make_curriculum.py)",
    )
    group.add_argument(
        "--reasoning_effort",
        choices=EFFORTS,
        help="what the chat template tells the model, in training and in evaluations; without it the template's own, "
        "of gpt-oss medium",
    )
    group.add_argument(
        "--samples_every",
        type=int,
        default=1,
        help="steps from one file of training samples to the next; 0: none (docs/metrics.md). Evaluations write theirs",
    )
    group.add_argument(
        "--samples_keep_gb",
        type=float,
        default=5.0,
        help="GB (10^9 bytes, gzipped) that sample files may take: beyond them the oldest training steps are deleted, "
        "then the oldest evaluations",
    )
    group.add_argument(
        "--stop_rules",
        default="default",
        help="rules that may stop the training: off, default, all, or names, separated by commas; -NAME removes one "
        "(docs/diagnosis.md). A stopped run saves its model and exits with status 10",
    )
    group.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run Python code that a checkpoint brings along (docs/security.md); gpt-oss has none",
    )
    group.add_argument(
        "--skip_base_eval", action="store_true", help="with --eval_steps: no evaluation before the first rollout"
    )


def check(args: argparse.Namespace) -> None:
    """Exit with one message where the options ask for something unsound: `refuse`, as in preflight and launcher.

    Args:
        args: as they are parsed, before the trainer's main asserts anything; `stop_rules` and the trackers' names are
            settled.
    """
    remote_code.settle(args.trust_remote_code)
    settled = settle(argparse.Namespace(**vars(args)))
    args.stop_rules = settled.stop_rules
    trackers.settle(args)
    with _one_message():
        refuse(settled)
    args.init_adapter = settled.init_adapter
    if actor.read_config(args.pretrain):
        args.actor = settled.actor


def check_hub_model(args: argparse.Namespace) -> None:
    """What `check` knows of a checkpoint directory, of a model of the hub, which transformers knows how to find."""
    if not actor.read_config(args.pretrain):
        with _one_message():
            config = hub_config(args.pretrain)
            actor.choose(args, config)
            actor.require_resident(args, config)
            require_sinks(args, config.get("model_type"))


def check_sft(args: argparse.Namespace) -> None:
    """Exit with one message where `openrlhf.cli.train_sft` would train something unsound (`rft.options.sft`).

    Args:
        args: as they are parsed, but for `--packing_samples`, which asks for FlashAttention 2.
    """
    with _one_message():
        sft.check(args, int(os.environ.get("WORLD_SIZE", 1)))


@contextmanager
def _one_message() -> Iterator[None]:
    try:
        yield
    except ValueError as refusal:
        raise SystemExit(f"error: {refusal}") from None
