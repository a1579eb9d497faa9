"""MXFP4 checkpoints that must become bf16: in the trainer, and in an engine on a platform without an MXFP4 kernel."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from rft.mxfp4_codec import decode
from rft.options import remote_code

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCALE_SUFFIX = "_scale"


def is_mxfp4(config: "PretrainedConfig") -> bool:
    """Whether a model config declares MXFP4 weights."""
    quantization = getattr(config, "quantization_config", None) or {}
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def actor_load_overrides(pretrain: str, ds_config: dict | None) -> dict:
    """`from_pretrained` arguments for an MXFP4 checkpoint in the trainer; empty for any other model.

    Dequantised while loading, since a packed weight has no gradient. Under ZeRO-3 the model is loaded on the CPU, one
    bf16 copy in host memory (42 GB for gpt-oss-20b, 234 GB for gpt-oss-120b, see `loader`), and partitioned afterwards
    (`partition_after_load`), since transformers cannot dequantise into parameters that ZeRO-3 has already partitioned.
    """
    from transformers import AutoConfig, Mxfp4Config

    if not is_mxfp4(AutoConfig.from_pretrained(pretrain, trust_remote_code=remote_code.trusted())):
        return {}
    overrides = {"quantization_config": Mxfp4Config(dequantize=True)}
    if _zero_stage(ds_config) == 3:
        overrides["device_map"] = "cpu"
    return overrides


def loader(model_class: type, overrides: dict, ds_config: dict | None) -> Callable[..., torch.nn.Module]:
    """What makes this rank's model: `model_class.from_pretrained`, or `empty` where another rank loads the weights.

    `deepspeed.zero.Init(module=…)` broadcasts each parameter from rank 0 of the whole group before it cuts it
    (`_zero_init_param` in deepspeed/runtime/zero/partition_parameters.py, 0.18.5; OpenRLHF gives it no group of its
    own). So of all nodes, that of rank 0 holds one whole model for a while, and what other ranks load is thrown away.
    Of other model classes every rank loads: Liger's changes the model's code in its `from_pretrained`.
    """
    from transformers import AutoModelForCausalLM

    cut = overrides and _zero_stage(ds_config) == 3 and torch.distributed.is_initialized()
    if cut and torch.distributed.get_rank() > 0 and model_class is AutoModelForCausalLM:
        return partial(empty, model_class)
    return model_class.from_pretrained


def empty(
    model_class: type,
    pretrain: str,
    *,
    trust_remote_code: bool,
    attn_implementation: str,
    torch_dtype: torch.dtype | str,
    **_: object,
):
    """The model that `from_pretrained` would dequantise, in evaluation mode, with parameters on the meta device.

    Buffers are computed by the model's own constructor. Takes `from_pretrained`'s arguments.
    """
    from transformers import AutoConfig

    from rft.actor.meta import without_weights

    config = AutoConfig.from_pretrained(pretrain, trust_remote_code=trust_remote_code)
    del config.quantization_config  # as it is gone from a model that was dequantised
    with without_weights():
        model = model_class.from_config(
            config,
            trust_remote_code=trust_remote_code,
            attn_implementation=attn_implementation,
            torch_dtype=torch_dtype,
        )
    return model.eval()


def partition_after_load(model: torch.nn.Module, overrides: dict, ds_config: dict | None) -> None:
    """Partition a model that `loader` has made; does nothing where `actor_load_overrides` asked for nothing.

    Parameter by parameter, so that a device, and the host of a rank that has loaded nothing, never hold more than one
    whole parameter beside the partitions (4.2 GB for gpt-oss-120b); `deepspeed.initialize` would move the whole model
    to the device first (DeepSpeed 0.18.5). Buffers, which DeepSpeed leaves alone, become rank 0's as well.

    Raises:
        RuntimeError: this rank has made another model than rank 0 has loaded.
    """
    if overrides and _zero_stage(ds_config) == 3:
        import deepspeed  # here, since vLLM's loader imports this module too

        if torch.distributed.is_initialized():
            _require_same(model)
            for buffer in model.buffers():
                sent = buffer.to(deepspeed.get_accelerator().current_device_name())
                torch.distributed.broadcast(sent, 0)
                buffer.copy_(sent)
        deepspeed.zero.Init(module=_AsNeeded(model), config_dict_or_path=ds_config)


class _AsNeeded(torch.nn.Module):
    """Stands for a model while `zero.Init` cuts it, and gives memory to an empty parameter when its turn comes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = [model]  # in a list, so that it is no module of this one

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Those of the model, in its order."""
        (model,) = self.model
        places = defaultdict(list)  # more than one of a parameter that is tied
        for module in model.modules():
            for name, parameter in module._parameters.items():
                places[id(parameter)].append((module, name))
        for parameter in list(model.parameters()):
            held = parameter
            if parameter.is_meta:
                held = torch.nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
                for module, name in places[id(parameter)]:
                    module._parameters[name] = held
            yield held


def _require_same(model: torch.nn.Module) -> None:
    """Names, shapes and dtypes of rank 0 on every rank: a broadcast of others would mix up weights, or never end."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    own = [[(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]]
    wanted = list(own)
    torch.distributed.broadcast_object_list(wanted, 0)
    if own != wanted:
        other = sorted(set(own[0]) ^ set(wanted[0]))[0] if set(own[0]) != set(wanted[0]) else "their order"
        raise RuntimeError(
            f"model: found other tensors on rank {torch.distributed.get_rank()} than on rank 0, the first {other}; "
            "wanted one checkpoint on all nodes; copy config.json from the first node"
        )


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
