"""What a run asks of its rollout engines beyond vLLM's own options; it travels in vLLM's `additional_config`.

vLLM hashes that field with the rest of its configuration, so compiled code of another layout is not taken for ours.
"""

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module
    from vllm.config import VllmConfig

KEY = "rft"


def build(head_dtype: str, rank: int = 0, modules: list[str] | None = None, adapter: str | None = None) -> dict:
    """An `additional_config` for vLLM.

    Args:
        head_dtype: `float32` or `model`, see `rft.hooks.float32_head`.
        rank: largest LoRA rank to make room for, see `rft.hooks.lora_exact_engine`; 0: adapters are merged.
        modules: the adapted layers' names as PEFT has them.
        adapter: directory of a saved adapter to serve from the start, where no trainer will sync one.
    """
    # PEFT matches the end of a layer's name, as in self_attn.q_proj; in the engine the last part decides.
    lora = {"rank": rank, "modules": sorted({name.rpartition(".")[2] for name in modules})} if rank else None
    return {KEY: {"head_dtype": head_dtype, "lora": lora} | ({"adapter": adapter} if adapter else {})}


def of_run(args: Namespace) -> dict:
    """The same from a training's options."""
    exact = args.lora_rank > 0 and args.lora_serving == "exact"
    modules = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    return build(args.head_dtype, args.lora_rank if exact else 0, modules)


def prepare(model: "Module", vllm_config: "VllmConfig") -> None:
    """Do to a model that vLLM has just loaded what the options ask for; without options of ours, nothing.

    Raises:
        ValueError: the model's layers do not allow it, or the adapter does not fit them.
    """
    options = (vllm_config.additional_config or {}).get(KEY)
    if not options:
        return
    if options["lora"]:
        from rft.hooks import lora_exact_engine

        lora_exact_engine.widen(model, **options["lora"])
    if options["head_dtype"] == "float32":
        from rft.hooks import float32_head

        float32_head.in_engine(model)
    if options.get("adapter"):
        from rft.hooks import lora_worker
        from rft.hooks.saved_adapter import read_adapter

        manifest, buffer = read_adapter(options["adapter"])
        lora_worker.serve_from_the_start(model, manifest, buffer)
