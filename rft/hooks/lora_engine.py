"""Engine side of the LoRA weight sync: pass the adapter to the workers, and stamp rollouts with its version."""

from typing import TYPE_CHECKING

from rft.hooks.adapter_memory import AdapterMemory
from rft.hooks.lora_manifest import accepted

if TYPE_CHECKING:
    from numpy import ndarray
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor


async def apply_lora(engine: "LLMRayActor", manifest: dict, payload: "ndarray") -> list[dict]:
    """Hand one adapter to every worker of a vLLM engine; forget cached prefixes, which the old weights computed.

    Args:
        engine: OpenRLHF's `LLMRayActor`; its `adapter_version` becomes the manifest's.
        manifest: see `rft.hooks.lora_manifest`.
        payload: uint8 array, shape (bytes,); Ray has resolved the object reference.

    Returns:
        One receipt per tensor-parallel rank, see `rft.hooks.lora_worker.apply_lora`.

    Raises:
        ValueError: a worker refused the adapter; the message names the tensor.
    """
    memory = engine.adapter_memory = getattr(engine, "adapter_memory", None) or AdapterMemory()
    receipts = await engine.llm.collective_rpc("apply_lora", args=(manifest, memory.write(payload)))
    if any("unmapped" in receipt for receipt in receipts):  # tensor-parallel ranks on several machines
        # As bytes: the engine's RPC turns numpy arrays into lists of Python integers.
        receipts = await engine.llm.collective_rpc("apply_lora", args=(manifest, payload.tobytes()))
    receipts = accepted(receipts)
    if not await engine.llm.reset_prefix_cache():
        raise RuntimeError("LoRA sync: requests still run on the engine, so its prefix cache could not be cleared")
    engine.adapter_version = manifest["version"]
    # An init adapter is version 0, under which the base was measured: what served that version before is not this one.
    getattr(engine, "canary", {}).pop(manifest["version"], None)
    engine.adapter_receipts = receipts
    return receipts


def stamp(responses: list[dict], engine: "LLMRayActor", canary_shift: float | None = None) -> list[dict]:
    """Write the adapter version that produced them into the extra logs of rollouts (0: the base model).

    `sync_canary_shift` comes with it: nats, see `rft.hooks.canary`; None where nothing measured it.
    """
    for response in responses:
        response["extra_logs"] = {
            **(response.get("extra_logs") or {}),
            "adapter_version": getattr(engine, "adapter_version", 0),
            "sync_canary_shift": canary_shift,
        }
    return responses
