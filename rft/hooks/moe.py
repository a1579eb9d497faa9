"""Mixture-of-experts models in the trainer, and what gpt-oss cannot be trained with."""

import deepspeed
import torch

# Modules whose experts run or not depending on the tokens: ZeRO-3 must gather them whole, since ranks that route
# differently would wait for each other's gathers. Upstream knows the first name only.
SPARSE_BLOCKS = ("SparseMoeBlock", "GptOssMLP")


def mark_leaf_modules(model: torch.nn.Module) -> None:
    """Mark the mixture-of-experts blocks as ZeRO-3 leaf modules (DeepSpeed PR #4966)."""
    classes = {type(m) for m in model.modules() if any(name in type(m).__name__ for name in SPARSE_BLOCKS)}
    if classes:
        deepspeed.utils.set_z3_leaf_modules(model, sorted(classes, key=lambda c: c.__name__))


def keep_training_path(model: torch.nn.Module) -> None:
    """Let gpt-oss's experts compute as in training although the rest of `model` is in evaluation mode.

    transformers has two ways to compute them, chosen by `training` (`GptOssExperts.forward`, 4.57.6): one token group
    an expert, or all experts for all tokens. They round differently, which moves tokens across routing ties: the same
    weights then give other log-probabilities before and during the update, and ratios that no update has made.
    """
    for module in model.modules():
        if type(module).__name__ == "GptOssExperts":
            module.train()
