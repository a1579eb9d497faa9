"""What an engine serves against what it should: adapted weights read back, and the merged model cut into shards."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from rft.hooks.lora_manifest import layer_matrices

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def read_layer(worker: "WorkerBase", layer: int) -> dict[str, torch.Tensor]:
    """The attention weights of one decoder layer as a vLLM worker holds them, on the CPU.

    For `LLM.collective_rpc(read_layer, args=(layer,))`, which answers with one dict a rank; layer by layer, since the
    workers' answers pass through queues that are not made for gigabytes.
    """
    attention = worker.model_runner.get_model().get_submodule(f"model.layers.{layer}.attn")
    return {name: getattr(attention, name).weight.detach().cpu() for name in ("qkv_proj", "o_proj")}


def backends(worker: "WorkerBase") -> dict[str, str]:
    """Which kernels a vLLM worker computes with: `device`, `attention`, and `mxfp4` where experts are quantised.

    For `LLM.collective_rpc(backends)`. Published scores differ by the mixture-of-experts backend (vLLM #29539).
    """
    found = {"device": str(next(worker.model_runner.get_model().parameters()).device)}
    for module in worker.model_runner.get_model().modules():
        method, attention = getattr(module, "quant_method", None), getattr(module, "attn_backend", None)
        if hasattr(method, "mxfp4_backend"):
            found["mxfp4"] = str(method.mxfp4_backend)
        if attention is not None:
            found["attention"] = attention.get_name()
    return found


def merged(base: torch.Tensor, layer: dict, buffer: torch.Tensor, compute: torch.dtype = torch.float32) -> torch.Tensor:
    """`bf16(W0 + scaling · B @ A)` of one whole matrix, shape (out, in), on the buffer's device.

    Args:
        base: W0, bf16 (out, in).
        layer: its entry of the manifest, see `rft.hooks.lora_manifest`.
        buffer: the flat adapter buffer.
        compute: float32 as the workers compute, or float64, where every sum of bf16 products is exact.
    """
    a, b = layer_matrices(layer, buffer)
    update = (b.to(compute) @ a.to(compute)) * layer["scaling"]
    return (base.to(buffer.device, compute) + update).to(torch.bfloat16)


def expected_layer(matrix: Callable[[str], torch.Tensor], layer: int, ranks: int) -> list[dict[str, torch.Tensor]]:
    """What `read_layer` must answer: whole matrices cut into tensor-parallel shards by hand, one dict a rank.

    `matrix(name)` gives the whole matrix of a checkpoint name. For `ranks` that divide the number of key/value heads.
    """
    q, k, v, o = (matrix(f"model.layers.{layer}.self_attn.{part}.weight") for part in (*PROJECTIONS, "o_proj"))
    return [
        {
            "qkv_proj": torch.cat([w.chunk(ranks, dim=0)[rank] for w in (q, k, v)]).cpu(),
            "o_proj": o.chunk(ranks, dim=1)[rank].cpu(),
        }
        for rank in range(ranks)
    ]


def different_bits(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """Number of elements of two bf16 tensors of one shape whose bits differ."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype == torch.bfloat16
    return int((found.contiguous().view(torch.int16) != wanted.contiguous().view(torch.int16)).sum())
