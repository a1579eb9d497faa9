"""How much of an adapter's update the outputs of its layers show, in trainer and engine, on fixed inputs."""

import torch

PROBE_ROWS, PROBE_LAYERS = 64, 8


def probed(layers: list) -> list:
    """About `PROBE_LAYERS` of the layers, spread over them; by an odd stride, so that q, k, v and o all occur."""
    return layers[:: max(1, len(layers) // PROBE_LAYERS) | 1]


def probe_inputs(features: int, like: torch.Tensor, index: int) -> torch.Tensor:
    """Inputs (PROBE_ROWS, features) of about unit size, always the same, with the dtype and on the device of `like`."""
    generator = torch.Generator(like.device).manual_seed(index)
    return torch.randn(PROBE_ROWS, features, generator=generator, device=like.device).to(like.dtype)


class KeptShare:
    """Share of an adapter's update that layer outputs keep: their change, projected on the change without rounding."""

    def __init__(self) -> None:
        self.kept, self.total = [], []

    def add(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, change: torch.Tensor) -> None:
        """One layer: inputs (rows, in), `a` with the scaling in it (rank, in), `b` (out, rank), and by how much the
        adapter moved the outputs (rows, out)."""
        wanted = x.float() @ a.float().T @ b.float().T
        self.kept.append((change * wanted).sum(dtype=torch.float64))
        self.total.append((wanted * wanted).sum(dtype=torch.float64))

    def value(self) -> float | None:
        """The share over all layers; None for a zero update."""
        if not self.kept:
            return None
        kept, total = torch.stack([torch.stack(self.kept).sum(), torch.stack(self.total).sum()]).tolist()
        return kept / total if total else None
