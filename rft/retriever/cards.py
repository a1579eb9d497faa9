"""Exact search on GPUs: the vectors in fp16, a part on each; on the CPU in float32. Imports torch."""

import numpy as np
import torch

from rft.retriever.nearest import SPARE, merged
from rft.retriever.places import Progress

BLOCK = 1 << 20  # passages that are scored at once


class Cards:
    """Exact search over what the cards hold.

    Args:
        files: vectors, float32.
        progress: is told.
        devices: one part of the vectors on each; without it all GPUs there are, else the CPU.
    """

    kind = "torch"

    def __init__(self, files: list[np.ndarray], progress: Progress, devices: list[str] | None = None):
        devices = devices or [f"cuda:{n}" for n in range(torch.cuda.device_count())] or ["cpu"]
        total, self.parts, self.firsts = sum(map(len, files)), [], []
        height, dimension = files[0].shape
        bounds = np.linspace(0, total, len(devices) + 1).astype(int)
        for device, first, last in zip(devices, bounds, bounds[1:], strict=False):
            part = torch.empty(
                (last - first, dimension),
                dtype=torch.float32 if device == "cpu" else torch.float16,
                device=device,
            )
            for each in range(first // height, -(-last // height)):
                progress("loading vectors", max(each * height, int(first)), total)
                start, end = max(first, each * height), min(last, each * height + len(files[each]))
                rows = torch.from_numpy(np.array(files[each][start - each * height : end - each * height]))
                part[start - first : end - first].copy_(rows)
            if len(part):
                self.parts.append(part)
                self.firsts.append(int(first))

    @torch.inference_mode()
    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
        """As `rft.retriever.nearest.Flat.search`. Work on all cards is queued before any is waited for."""
        asked = torch.from_numpy(queries)
        queued = [self._candidates(part, asked, k) for part in self.parts]
        numbers, scores = [], []
        for first, (places, exact) in zip(self.firsts, queued, strict=True):
            numbers.append(places.cpu().numpy() + first)
            scores.append(exact.cpu().numpy().astype(np.float32))
        return merged(np.concatenate(numbers, axis=1), np.concatenate(scores, axis=1), k)

    def _candidates(self, part: torch.Tensor, asked: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers within a part, and scores in float64: fp16 has too few digits for an order, so more are kept."""
        queries, found = asked.to(part.device), []
        for start in range(0, len(part), BLOCK):
            rows = part[start : start + BLOCK]
            scores = queries.to(part.dtype) @ rows.T
            found.append(scores.topk(min(2 * k + SPARE, len(rows)), dim=1).indices + start)
        places = torch.cat(found, dim=1)
        exact = (part[places].double() * queries.double()[:, None]).sum(-1)
        return places, exact
