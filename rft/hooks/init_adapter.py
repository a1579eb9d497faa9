"""Start from a saved adapter: the trainer's begins with its values, a frozen copy of it is the KL term's reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel

from rft.hooks.lora_manifest import layer_matrices
from rft.hooks.lora_sync import ADAPTER, lora_layers
from rft.hooks.reference import adapter_off
from rft.hooks.saved_adapter import read_adapter
from rft.record.adapters import adapter_digest

if TYPE_CHECKING:
    from openrlhf.models import Actor

REFERENCE = "reference"  # PEFT's name of the frozen copy
DIGEST = "init_adapter"  # in a checkpoint's client state


@torch.no_grad()
def load(model: PeftModel, folder: str | None) -> None:
    """Copy a saved adapter into the adapter of `model`, and add a frozen copy of it; nothing without a folder.

    Before DeepSpeed takes the parameters. They are in the trainer's dtype afterwards (bf16 unless --param_dtype says
    otherwise), in which this project saves its adapters: nothing is rounded then, the policy is the saved one.

    Args:
        model: with a new adapter, whole on every rank.
        folder: of PEFT; `rft.options.init_adapter` has compared it with the options.

    Raises:
        ValueError: it adapts other layers, or another shape.
    """
    if not folder:
        return
    manifest, buffer = read_adapter(folder)
    model.add_adapter(REFERENCE, model.peft_config[ADAPTER])
    layers = dict(lora_layers_of(model))
    saved = {layer["name"]: layer for layer in manifest["layers"]}
    if difference := sorted(saved.keys() ^ layers.keys()):
        raise ValueError(
            f"--init_adapter {folder}: it adapts {len(saved)} layers, this training {len(layers)}; they differ in "
            f"{difference[0]}; pass its own --target_modules"
        )
    for name, layer in layers.items():
        a, b = layer_matrices(saved[name], buffer)
        for adapter in (ADAPTER, REFERENCE):
            for matrix, values in ((layer.lora_A[adapter].weight, a), (layer.lora_B[adapter].weight, b)):
                if matrix.shape != values.shape:
                    raise ValueError(
                        f"--init_adapter {folder}: {name} has {tuple(values.shape)}, wanted {tuple(matrix.shape)}"
                    )
                matrix.copy_(values)
    model.rft_init_adapter = adapter_digest(Path(folder))
    print(f"init adapter: {len(layers)} layers of {folder}; the reference is base plus this adapter", flush=True)


def lora_layers_of(model: PeftModel) -> list[tuple[str, torch.nn.Module]]:
    """`rft.hooks.lora_sync.lora_layers`, with the reference adapter frozen, as it is from here on."""
    for name, parameter in model.named_parameters():
        if f".{REFERENCE}." in name and ".lora_" in name:
            parameter.requires_grad_(False)
    return lora_layers(model)


@contextmanager
def reference_policy(actor: "Actor") -> Iterator[None]:
    """Within, `actor` computes as the policy that training started from: the base, or base plus the init adapter.

    The switch is PEFT's on the layers alone, as in `rft.hooks.reference.adapter_off`: no gradient flags change.
    """
    model = actor.model.module
    if REFERENCE not in getattr(model, "peft_config", {}):
        with adapter_off(actor):
            yield
        return
    layers = [module for module in model.modules() if hasattr(module, "_active_adapter")]
    former = [layer._active_adapter for layer in layers]
    for layer in layers:
        layer._active_adapter = [REFERENCE]
    try:
        yield
    finally:
        for layer, active in zip(layers, former, strict=True):
            layer._active_adapter = active


def digest_of(model: torch.nn.Module) -> dict[str, str]:
    """What a checkpoint keeps of the adapter that its run began from; empty without one."""
    digest = getattr(model, "rft_init_adapter", None)
    return {DIGEST: digest} if digest else {}


def require_same(model: torch.nn.Module, client_state: dict) -> None:
    """Refuse to resume with another reference than the run's. Raises ValueError.

    Args:
        model: as `load` left it.
        client_state: of the checkpoint that was loaded.
    """
    now, then = getattr(model, "rft_init_adapter", None), client_state.get(DIGEST)
    if now != then:
        raise ValueError(
            "--init_adapter: the run's own reference has changed\n"
            f"  found:  {f'an adapter with digest {now[:16]}' if now else 'none'}\n"
            f"  wanted: {f'the one with digest {then[:16]}' if then else 'none'}, as at the run's start\n"
            "  repair: bring the adapter's folder back as it was, or start a new run"
        )
