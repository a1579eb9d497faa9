"""The wire format of an adapter: one flat buffer of A and B matrices, and a manifest of plain values that describes it.

Plain values and bytes only, because the engine's RPC turns numpy arrays into lists on the way to a worker.
"""

import warnings

import torch

PEFT_PREFIX = "base_model.model."  # what PEFT puts before the names of the model it wraps


def build_manifest(layers: list[dict], dtype: torch.dtype, version: int) -> dict:
    """Lay out adapter layers one after another, A before B.

    Args:
        layers: one dict per adapted linear layer: `name` (checkpoint name of its weight), `rank`, `in_features`,
            `out_features`, `scaling` (LoRA's alpha / r).
        dtype: element type of every A (rank, in_features) and B (out_features, rank).
        version: number of optimizer steps behind this adapter.

    Returns:
        `version`, `dtype`, `numel` and `layers`; each layer gains `offset`, in elements.
    """
    placed, offset = [], 0
    for layer in layers:
        placed.append({**layer, "offset": offset})
        offset += layer["rank"] * (layer["in_features"] + layer["out_features"])
    return {"version": version, "dtype": str(dtype).removeprefix("torch."), "numel": offset, "layers": placed}


def buffer_from_bytes(manifest: dict, payload: bytes, device: torch.device) -> torch.Tensor:
    """The flat adapter buffer, shape (numel,), on `device`. Raises ValueError when bytes and manifest disagree."""
    dtype = getattr(torch, manifest["dtype"])
    wanted = manifest["numel"] * dtype.itemsize
    if len(payload) != wanted:
        raise ValueError(f"LoRA sync: the adapter payload has {len(payload)} bytes, its manifest describes {wanted}")
    with warnings.catch_warnings():
        # The bytes are read-only and torch says so; they are only read, and copying them costs as much as sending them.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(payload, dtype=dtype).to(device)


def layer_matrices(layer: dict, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of one layer's A (rank, in_features) and B (out_features, rank) in the flat buffer."""
    rank, start = layer["rank"], layer["offset"]
    middle = start + rank * layer["in_features"]
    end = middle + layer["out_features"] * rank
    return buffer[start:middle].view(rank, -1), buffer[middle:end].view(-1, rank)


def accepted(receipts: list[dict]) -> list[dict]:
    """The receipts of an engine's workers. Raises ValueError with the first refusal among them."""
    for receipt in receipts:
        if "refused" in receipt:
            raise ValueError(receipt["refused"])
    return receipts
