"""Checksums of everything that an engine's workers compute with, to tell another rounding from other weights.

A GPU reads 61 GB, gpt-oss-120b, at terabytes a second, so all of it is looked at.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor
    from vllm.v1.worker.worker_base import WorkerBase

WEIGHTS = ("weight", "scale", "bias", "precision_config")  # in the names of what a layer computes with
ADAPTER = ("wide", "weight_and_b", "lora_a")  # of `rft.hooks.lora_exact_engine`: change with each sync
CHUNK = 1 << 22  # elements; 32 MB of 64-bit integers
FACTOR = 0x5851F42D4C957F2D  # odd, of a well-known linear congruential generator


async def digests(engine: "LLMRayActor") -> list[dict[str, int]]:
    """`of_worker` from each worker of an engine."""
    return await engine.llm.collective_rpc(of_worker)


def of_worker(worker: "WorkerBase") -> dict[str, int]:
    """A position-sensitive checksum, 64 bits, of each tensor of a worker's model that is no adapter's, by its name."""
    return {name: checksum(tensor) for name, tensor in tensors(worker.model_runner.get_model())}


def changed(before: list[dict[str, int]], now: list[dict[str, int]]) -> list[str]:
    """Names of tensors that differ on some worker, or are on one side only."""
    names = {name for one, other in zip(before, now, strict=True) for name, _ in one.items() ^ other.items()}
    return sorted(names)


def tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, and what a quantised layer keeps instead of them: its kernel's own objects."""
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        for name, tensor in own.items():
            if name not in ADAPTER:
                yield f"{path}.{name}", tensor
        for owner in (module, getattr(module, "quant_method", None)):
            for name, value in vars(owner).items() if owner is not None else ():
                if any(word in name for word in WEIGHTS):
                    yield from _within(f"{path}.{type(owner).__name__}.{name}", value)


def _within(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tensor, of triton_kernels' `Tensor` (`.storage.data`) and of its `PrecisionConfig`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif hasattr(value, "storage"):
        yield name, value.storage.data
    elif type(value).__module__.startswith("triton_kernels"):
        for key, held in vars(value).items():
            yield from _within(f"{name}.{key}", held)


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> int:
    """Of the bytes, in integer arithmetic modulo 2**64: the same on every device, in whatever order it is summed.

    They are read in the order in which they lie: a kernel's transposed layout is not copied, as a full GPU has no room.
    """
    if not tensor.numel():
        return 0
    dimensions = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    data = tensor.detach().permute(dimensions).contiguous().flatten().view(torch.uint8)
    data = data.view(torch.int16) if data.numel() % 2 == 0 else data
    places = torch.arange(1, min(CHUNK, data.numel()) + 1, device=data.device, dtype=torch.int64) * FACTOR
    places = (places ^ (places >> 29)) * FACTOR  # no multiples of each other, as the differences of floats often are
    sums = [part.to(torch.int64).add_(0x8000).mul_(places[: part.numel()]).sum() for part in data.split(CHUNK)]
    total = 0
    for value in torch.stack(sums).tolist():
        total = (total * FACTOR + value + 1) % (1 << 64)
    return total
