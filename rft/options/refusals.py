"""Options that do not go together, refused by trainer, preflight and launcher before Ray starts.

Standard library only, but for models of the hub, which only the trainer looks up.
"""

from argparse import Namespace

from rft.options import actor, batches, effort, init_adapter, loss, ranges, remote_code
from rft.options.assertions import require_what_upstream_asserts
from rft.record.eval_names import dataset_names
from rft.rules.judge import chosen

NO_SINKS = ("flash_attention_2", "flash_attention_3", "sdpa")
# What PEFT can adapt and the sync cannot serve: vLLM's vocabulary layers are no linear layers to it.
VOCABULARY = ("lm_head", "embed_tokens")


def require_correction_when_asynchronous(args: Namespace) -> None:
    """Refuse asynchronous training without importance sampling between engine and trainer.

    Its samples come from a policy that is up to `--async_queue_size` updates and one older, while the ratio compares
    with log-probabilities that the trainer computes afterwards, with newer weights: nothing else corrects for that.

    Raises:
        ValueError: `--async_train` without `--enable_vllm_is_correction`.
    """
    if args.async_train and not args.enable_vllm_is_correction:
        raise ValueError(
            "asynchronous training learns from samples of an older policy, uncorrected\n"
            "  found:  --async_train without --enable_vllm_is_correction\n"
            "  wanted: importance weights of the trainer's policy over the one that sampled\n"
            "  repair: add --enable_vllm_is_correction, or leave --async_train out"
        )


def require_no_average_of_adapters(args: Namespace) -> None:
    """Refuse `--enable_ema` with LoRA: upstream averages into a second model without adapters, and saves that.

    Parameters are paired by their order (`DeepspeedStrategy.moving_average`), where PEFT's A and B are in between: the
    update fails on the first shape that differs, or the saved model is the base.

    Raises:
        ValueError: both are on.
    """
    if args.enable_ema and args.lora_rank > 0:
        raise ValueError(
            "the moving average does not support adapters\n"
            f"  found:  --enable_ema with --lora_rank {args.lora_rank}\n"
            "  wanted: a moving average with full training, or an adapter without one\n"
            "  repair: leave --enable_ema out; --eval_steps keeps the best adapter instead"
        )


def require_servable_targets(args: Namespace) -> None:
    """Refuse adapters of the vocabulary layers, which the engine cannot serve: the first sync would end the run.

    Raises:
        ValueError: `--target_modules` names the output layer or the embedding.
    """
    targets = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    found = [target for target in targets if target.rpartition(".")[2] in VOCABULARY]
    if args.lora_rank > 0 and found:
        raise ValueError(
            "an adapter of the vocabulary layers cannot be served\n"
            f"  found:  --target_modules {' '.join(targets)}\n"
            f"  wanted: linear layers of the decoder, without {' '.join(found)}\n"
            "  repair: --target_modules q_proj k_proj v_proj o_proj"
        )


def require_stoppable(args: Namespace) -> None:
    """Check `--stop_rules`; with asynchronous training the default is `off` (`rft.options.settled`).

    Raises:
        ValueError: an unknown rule; or rules for asynchronous training, whose sampler would wait forever for a
            trainer that has stopped.
    """
    chosen(args.stop_rules)
    if args.async_train and args.stop_rules != "off":
        raise ValueError(
            "asynchronous training cannot be stopped between two steps\n"
            f"  found:  --async_train, --stop_rules {args.stop_rules}\n  wanted: --stop_rules off\n"
            "  repair: leave --stop_rules out, and run .venv/bin/python -m rft.runs.diagnose RUN beside the training"
        )


def require_sound_attention(args: Namespace) -> None:
    """`require_sinks` for a checkpoint directory; others are looked up by the trainer only.

    Raises:
        ValueError: see `require_sinks`.
    """
    require_sinks(args, actor.read_config(args.pretrain).get("model_type"))


def require_sinks(args: Namespace, kind: str | None) -> None:
    """Refuse to train gpt-oss with an attention that leaves its sinks out, or with packed samples, which need one.

    FlashAttention 2 has no sinks (Dao-AILab #1797): the model would be another one, without an error.

    Args:
        kind: `model_type` of the model's config.

    Raises:
        ValueError: the options of this run, what is wanted, and how to get there.
    """
    if kind == "gpt_oss" and args.actor == "eager" and (args.packing_samples or args.attn_implementation in NO_SINKS):
        raise ValueError(
            "gpt-oss cannot be trained like this: the attention would leave out its sinks\n"
            f"  found:  --attn_implementation {args.attn_implementation}, packing_samples {args.packing_samples}\n"
            "  wanted: an attention with sinks, no packing\n"
            "  repair: --attn_implementation eager, without --packing_samples and --ring_attn_size, "
            "which needs it"
        )


def hub_config(name: str) -> dict:
    """The config of a model of the hub."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, trust_remote_code=remote_code.trusted()).to_dict()


def require_names_of_sets(args: Namespace) -> None:
    """Refuse sets of `--eval_dataset` whose numbers would have one name. Raises ValueError."""
    dataset_names(args.eval_dataset or "")


def require_samples_that_can_be_kept(args: Namespace) -> None:
    """Refuse numbers of `--samples_every` and `--samples_keep_gb` that mean nothing. Raises ValueError."""
    if args.samples_every < 0 or not args.samples_keep_gb > 0:
        raise ValueError(
            "samples: how often, and how much of them is kept\n"
            f"  found:  --samples_every {args.samples_every} --samples_keep_gb {args.samples_keep_gb:g}\n"
            "  wanted: 0 (none) or more steps, more than 0 GB\n"
            "  repair: --samples_every 1 --samples_keep_gb 5"
        )


REFUSALS = (
    remote_code.refuse,
    batches.require_own_names,
    ranges.require_possible,
    actor.require_resident,
    require_correction_when_asynchronous,
    require_no_average_of_adapters,
    require_servable_targets,
    init_adapter.require_fitting,
    loss.require_on_policy,
    loss.require_sound_loss,
    batches.require_sound_budget,
    require_sound_attention,
    require_stoppable,
    require_names_of_sets,
    effort.require_used,
    require_samples_that_can_be_kept,
    require_what_upstream_asserts,
)


def refuse(args: Namespace) -> None:
    """Everything that the trainer refuses to train with, the same for preflight and launcher.

    Args:
        args: options settled (`rft.options.settled.settle`).

    Raises:
        ValueError: the first of `REFUSALS` that applies.
    """
    for require in REFUSALS:
        require(args)
