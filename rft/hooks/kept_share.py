"""How much of an adapter's update the outputs of its layers show, in trainer and engine, on fixed inputs."""

import torch

PROBE_ROWS, PROBE_LAYERS = 64, 4


def probed(layers: list) -> list:
    """About `PROBE_LAYERS` of the layers, spread over them; by an odd stride, so that q, k, v and o all occur."""
    return layers[:: max(1, len(layers) // PROBE_LAYERS) | 1]


def probe_inputs(features: int, like: torch.Tensor, index: int) -> torch.Tensor:
    """Inputs (PROBE_ROWS, features) of about unit size, always the same, with the dtype and on the device of `like`."""
    generator = torch.Generator(like.device).manual_seed(index)
    return torch.randn(PROBE_ROWS, features, generator=generator, device=like.device).to(like.dtype)


class KeptShare:
    """What of an adapter's update layer outputs show; add the layers, then ask."""

    def __init__(self) -> None:
        self.sums, self.outputs = (
            [],
            0,
        )  # of each layer (3,) float64: kept, wanted, outputs that moved; and their number

    def add(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, change: torch.Tensor) -> None:
        """One layer: inputs (rows, in), `a` with the scaling in it (rank, in), `b` (out, rank), and by how much the
        adapter moved the outputs (rows, out)."""
        wanted = x.float() @ a.float().T @ b.float().T
        sums = (change * wanted).sum(), (wanted * wanted).sum(), change.count_nonzero()
        self.sums.append(torch.stack([value.double() for value in sums]))
        self.outputs += change.numel()

    def shares(self) -> tuple[float | None, float]:
        """(The outputs' change, projected on the change without rounding, None for a zero update; the share of the
        outputs that moved at all)."""
        kept, wanted, moved = torch.stack(self.sums).sum(0).tolist()
        return kept / wanted if wanted else None, moved / self.outputs
