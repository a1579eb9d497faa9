"""MXFP4 checkpoints that must become bf16: in the trainer, and in an engine on a platform without an MXFP4 kernel."""

from collections.abc import Iterable, Iterator

import torch

from rft.mxfp4 import decode

SCALE_SUFFIX = "_scale"


def is_mxfp4(config) -> bool:
    """Whether a model config declares MXFP4 weights."""
    quantization = getattr(config, "quantization_config", None) or {}
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def actor_load_overrides(pretrain: str, ds_config: dict | None) -> dict:
    """`from_pretrained` arguments for an MXFP4 checkpoint in the trainer; empty for any other model.

    Dequantised while loading, since a packed weight has no gradient. Under ZeRO-3 the model is loaded on the CPU, one
    whole bf16 copy a rank in host memory (42 GB for gpt-oss-20b, 234 GB for gpt-oss-120b), and partitioned afterwards
    (`partition_after_load`), since transformers cannot dequantise into parameters that ZeRO-3 has already partitioned.
    """
    from transformers import AutoConfig, Mxfp4Config

    if not is_mxfp4(AutoConfig.from_pretrained(pretrain, trust_remote_code=True)):
        return {}
    overrides = {"quantization_config": Mxfp4Config(dequantize=True)}
    if _zero_stage(ds_config) == 3:
        overrides["device_map"] = "cpu"
    return overrides


def partition_after_load(model: torch.nn.Module, overrides: dict, ds_config: dict | None) -> None:
    """Partition a model that `actor_load_overrides` has loaded whole; does nothing where that asked for nothing.

    Parameter by parameter, so that the device never holds more than one whole parameter beside the partitions (4.2 GB
    for gpt-oss-120b); `deepspeed.initialize` would move the whole model there first (DeepSpeed 0.18.5).
    """
    if overrides and _zero_stage(ds_config) == 3:
        import deepspeed  # here, since vLLM's loader imports this module too

        deepspeed.zero.Init(module=model, config_dict_or_path=ds_config)


def _zero_stage(ds_config: dict | None) -> int:
    return ds_config["zero_optimization"]["stage"] if ds_config else 0


def dequantize_stream(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Replace each pair of expert blocks and scales in a vLLM weight stream by one bf16 tensor.

    Names are vLLM's: `….w13_weight` with `….w13_weight_scale`, and `….w2_weight` with `….w2_weight_scale`; blocks
    (E, out, in/32, 16) uint8, scales (E, out, in/32) uint8, result (E, in, out) bf16 under the weight's name. All
    else passes through.

    Raises:
        ValueError: blocks came without scales, or scales without blocks.
    """
    waiting = {}
    for name, tensor in weights:
        if not name.removesuffix(SCALE_SUFFIX).endswith((".w13_weight", ".w2_weight")):
            yield name, tensor
            continue
        weight_name = name.removesuffix(SCALE_SUFFIX)
        pair = waiting.setdefault(weight_name, {})
        pair["scales" if name != weight_name else "blocks"] = tensor
        if len(pair) == 2:
            yield weight_name, decode(**waiting.pop(weight_name), dtype=torch.bfloat16)
    if waiting:
        name, pair = next(iter(waiting.items()))
        raise ValueError(f"MXFP4 checkpoint: {name} has {', '.join(pair)} only; blocks and scales come in pairs")
