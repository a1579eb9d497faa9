"""Full fine-tuning without NCCL between trainer and engines: `--vllm_sync_with_ray`, one weight at a time.

Upstream's version of the option uses `ray.util.collective`, which needs cupy or pygloo. The object store needs nothing,
crosses nodes, and is slow: for a model, not for an adapter.
"""

from typing import TYPE_CHECKING

import ray
import torch

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase


def put(weight: torch.Tensor) -> ray.ObjectRef:
    """A gathered weight's bytes in the object store, from where each engine takes them."""
    return ray.put(weight.detach().contiguous().cpu().flatten().view(torch.uint8).numpy())


def load(
    worker: "WorkerBase", name: str, dtype: torch.dtype, shape: torch.Size | tuple[int, ...], payload: bytes
) -> None:
    """Load one weight into a vLLM worker's model, sharded by the model's own loader.

    Raises:
        ValueError: the bytes do not fill the shape; or vLLM's loader refuses the name.
    """
    wanted = torch.Size(shape).numel() * dtype.itemsize
    if len(payload) != wanted:
        raise ValueError(f"weight sync: {name} came as {len(payload)} bytes, its shape {tuple(shape)} has {wanted}")
    weight = torch.frombuffer(bytearray(payload), dtype=dtype).view(tuple(shape)).to(worker.device)
    worker.model_runner.model.load_weights(weights=[(name, weight)])
