"""Sequences one after another without padding, and where each begins."""

from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True)
class Packed:
    """The layout of a packed batch.

    Attributes:
        lengths: tokens of each sequence.
        starts: (sequences + 1,) int32 on the batch's device, where each sequence begins; the last is the tokens of all.
        longest: the largest of `lengths`.
        positions: (tokens,) int64 on the device, each token's place in its sequence, from 0.
    """

    lengths: list[int]
    starts: torch.Tensor
    longest: int
    positions: torch.Tensor


def pack(lengths: list[int], device: torch.device | str) -> Packed:
    """The layout of sequences of these lengths.

    Raises:
        ValueError: no sequence, or one without tokens.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"pack: found lengths {lengths}, wanted at least one sequence, each of at least one token")
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return Packed(list(lengths), starts.to(device), max(lengths), positions.to(device))
