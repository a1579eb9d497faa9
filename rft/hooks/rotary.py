"""Rotary frequencies that stay what the engine computes with, whatever DeepSpeed casts.

`deepspeed.initialize` calls `module.bfloat16()` (runtime/engine.py), which takes buffers along: `inv_freq` loses 16 of
its 24 bits, and transformers' `.float()` in the forward pass comes too late. A phase is position times frequency, so
the error grows with the distance: with gpt-oss's YaRN 0.01 rad on average at 128 tokens, 0.4 at 4,096. vLLM keeps
float32.

Under ZeRO-3 `original_inv_freq` is no way back: inside `zero.Init` every `torch.arange` is rounded to bf16, so that
YaRN's ramp, and with it a float32 `inv_freq`, is up to 1% off from the start.
"""

from collections.abc import Callable
from functools import wraps

import torch

NAME = "inv_freq"


def kept_in_float32(prepare: Callable) -> Callable:
    """Decorate a method `prepare(strategy, model, …)` that casts `model`: its rotary frequencies come out exact."""

    @wraps(prepare)
    def prepared(strategy, model, *rest):
        kept = [] if model is None else frequencies(model)
        result = prepare(strategy, model, *rest)
        restore(kept)
        return result

    return prepared


def cast(model: torch.nn.Module, *target: object) -> torch.nn.Module:
    """`model.to(*target)`, its rotary frequencies exact afterwards; returns the model."""
    kept = frequencies(model)
    model.to(*target)
    restore(kept)
    return model


def frequencies(model: torch.nn.Module) -> list[tuple[torch.nn.Module, torch.Tensor]]:
    """Every module of `model` with a buffer `inv_freq`, and what that must hold: (rotary dimensions / 2,), float32.

    Computed again where transformers can; of others a copy, if it is still float32.
    """
    found = []
    for module in model.modules():
        buffer = module._buffers.get(NAME)
        compute = None if buffer is None else first_values(module)
        if compute:
            found.append((module, compute(module.config, torch.device("cpu"))[0]))
        elif buffer is not None and buffer.dtype == torch.float32:
            found.append((module, buffer.clone()))
    return found


def first_values(module: torch.nn.Module) -> Callable | None:
    """What a rotary embedding of transformers starts with: `(config, device) -> (frequencies, factor)`, else None.

    Release 4 keeps it in the module, 5 only its name.
    """
    if hasattr(module, "compute_default_rope_parameters"):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        return ROPE_INIT_FUNCTIONS.get(module.rope_type, module.compute_default_rope_parameters)
    return getattr(module, "rope_init_fn", None)


def restore(kept: list[tuple[torch.nn.Module, torch.Tensor]]) -> None:
    """Put frequencies back, each on the device where its buffer now is.

    Also as `original_inv_freq`, to which transformers returns after a sequence longer than the model's context.
    """
    for module, values in kept:
        setattr(module, NAME, values.to(getattr(module, NAME).device))
        if hasattr(module, "original_inv_freq"):
            module.original_inv_freq = getattr(module, NAME)
