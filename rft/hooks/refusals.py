"""Options that do not go together, refused by trainer and preflight before Ray starts. Standard library only."""

# What PEFT can adapt and the sync cannot serve: vLLM's vocabulary layers are no linear layers to it.
VOCABULARY = ("lm_head", "embed_tokens")


def require_correction(args) -> None:
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


def require_no_average_of_adapters(args) -> None:
    """Refuse `--enable_ema` with LoRA: upstream averages into a second model without adapters, and saves that.

    Parameters are paired by their order (`DeepspeedStrategy.moving_average`), where PEFT's A and B stand between: the
    update fails on the first shape that differs, or the saved model is the base.

    Raises:
        ValueError: both are on.
    """
    if args.enable_ema and args.lora_rank > 0:
        raise ValueError(
            "the moving average knows no adapters\n"
            f"  found:  --enable_ema with --lora_rank {args.lora_rank}\n"
            "  wanted: the average of a model that is trained whole, or an adapter without one\n"
            "  repair: leave --enable_ema out; --eval_steps keeps the best adapter instead"
        )


def require_servable_targets(args) -> None:
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


REFUSALS = (require_correction, require_no_average_of_adapters, require_servable_targets)
