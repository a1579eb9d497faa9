"""A vLLM engine in this process that serves exactly what the trainer's rollout engines serve."""

import os
from typing import TYPE_CHECKING

import torch

from rft.hooks import engine_options, loopback
from rft.hooks.adapter_memory import AdapterMemory
from rft.hooks.lora_manifest import accepted
from rft.hooks.saved_adapter import read_adapter
from rft.options import remote_code

if TYPE_CHECKING:
    from vllm import LLM

# One process, so that nothing is started which a killed evaluation could leave behind.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def open_engine(
    model: str,
    max_model_len: int,
    tensor_parallel_size: int = 1,
    seed: int = 0,
    lora_rank: int = 0,
    lora_modules: list[str] | None = None,
    head_dtype: str = "float32",
    **options: object,
):
    """A `vllm.LLM` over a base checkpoint, in bf16, with the trainer's worker extension.

    Args:
        model: checkpoint directory.
        max_model_len: prompt plus completion, tokens.
        tensor_parallel_size: ranks; above one they are processes of this host.
        seed: engine seed.
        lora_rank, lora_modules, head_dtype: see `rft.hooks.engine_options.build`; without a rank adapters are merged.
        options: further arguments of `vllm.LLM`.
    """
    import vllm

    os.environ.update(loopback.THIS_MACHINE)
    if tensor_parallel_size > 1:
        options.setdefault("distributed_executor_backend", "mp")
    return vllm.LLM(
        model,
        dtype="bfloat16",
        trust_remote_code=remote_code.trusted(),
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel_size,
        seed=seed,
        enforce_eager=options.pop("enforce_eager", not torch.cuda.is_available()),
        worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        disable_log_stats=True,
        additional_config=engine_options.build(head_dtype, lora_rank, lora_modules),
        **options,
    )


def serve_adapter(llm: "LLM", path: str) -> list[dict]:
    """Serve a saved adapter on the engine's base through the trainer's own sync; return the workers' receipts."""
    manifest, buffer = read_adapter(path)
    return sync_engine(llm, manifest, buffer)


def sync_engine(llm: "LLM", manifest: dict, buffer: torch.Tensor) -> list[dict]:
    """Send one adapter to every worker of the engine and forget its cached prefixes; one receipt a rank."""
    memory = AdapterMemory()
    place = memory.write(buffer.view(torch.uint8).numpy())
    receipts = accepted(llm.collective_rpc("apply_lora", args=(manifest, place)))
    if not llm.reset_prefix_cache():
        raise RuntimeError("LoRA sync: requests still run on the engine, so its prefix cache could not be cleared")
    return receipts
