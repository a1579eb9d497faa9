"""Packed experts split over ranks: 120b's 61 GB are 15 GB on each of four GPUs of 80 GB.

Each rank keeps the bytes of some experts of every layer and trains on its own sequences. A layer's bytes are gathered
whole before they are dequantised (1.7 GB for 120b, a quarter of what bf16 would be), and those of the layer that comes
next travel while this one computes. Every rank must make the same passes, as under ZeRO-3.
"""

import torch
from torch import distributed
from transformers import GptOssConfig

from rft.actor.dequantize import SCRATCH
from rft.actor.experts import PACKED, ResidentExperts

PARTS = ("blocks", "scales")


class ShardedExperts(ResidentExperts):
    """`ResidentExperts` whose buffers hold the experts `held` of a layer; the rest is on the other ranks of a group.

    Args:
        config, device, dtype: see `ResidentExperts`.
        gathering: shared by all layers of a model, in the order in which they are made.

    Raises:
        ValueError: the experts cannot be split evenly.
    """

    def __init__(self, config: GptOssConfig, device: torch.device | str, dtype: torch.dtype, gathering: "Gathering"):
        super().__init__(config, "meta", dtype)
        ranks, rank, experts = gathering.ranks, gathering.rank, config.num_local_experts
        if experts % ranks:
            raise ValueError(f"--shard_experts: found {ranks} ranks for {experts} experts, wanted a divisor")
        share = experts // ranks
        self.held = slice(rank * share, (rank + 1) * share)
        for name, buffer in list(self.named_buffers()):
            self._buffers[name] = torch.empty(share, *buffer.shape[1:], dtype=torch.uint8, device=device)
        self.gathering = gathering
        gathering.add(self)

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """See `ResidentExperts.dense`; nothing is gathered where the scratch holds this weight already."""
        shards = [getattr(self, f"{name}_{part}") for part in PARTS]
        return SCRATCH.dense(*shards, dtype, lambda: self.gathering.whole(self, name), self.gathering.ranks)


class Gathering:
    """All-gathers of packed weights within a group of ranks, one ahead.

    What comes next is what came next the last time that the same three weights were asked for in a row: that tells a
    forward pass, a backward pass and the recomputation of a layer from each other. There is one buffer for each of the
    two weights of a layer, and only a weight of the other name than the one in use is fetched ahead.
    """

    def __init__(self, group: distributed.ProcessGroup | None):
        self.group = group
        self.ranks, self.rank = distributed.get_world_size(group), distributed.get_rank(group)
        self.weights: list[tuple[ShardedExperts, str]] = []  # in the order of a forward pass
        self.places: dict[tuple[int, str], int] = {}
        self.buffers: dict[str, list[torch.Tensor]] = {}
        self.coming: tuple[int, list] | None = None
        self.recent: tuple[int, ...] = ()
        self.next: dict[tuple[int, ...], int] = {}

    def add(self, experts: ShardedExperts) -> None:
        """Take in the next layer."""
        for name in PACKED:
            self.places[id(experts), name] = len(self.weights)
            self.weights.append((experts, name))

    def whole(self, experts: ShardedExperts, name: str) -> list[torch.Tensor]:
        """Blocks and scales of a weight of all experts, until the weight of that name of another layer is asked for."""
        place = self.places[id(experts), name]
        if self.coming is None or self.coming[0] != place:
            self._drop()
            self._start(place)
        for work in self.coming[1]:
            work.wait()
        self.coming = None
        self.next[self.recent] = place
        self.recent = (*self.recent, place)[-3:]
        following = self.next.get(self.recent)
        if following is not None and self.weights[following][1] != name:
            self._start(following)
        return self.buffers[name]

    def _start(self, place: int) -> None:
        experts, name = self.weights[place]
        shards = [getattr(experts, f"{name}_{part}") for part in PARTS]
        if name not in self.buffers:
            self.buffers[name] = [s.new_empty(s.shape[0] * self.ranks, *s.shape[1:]) for s in shards]
        works = [
            distributed.all_gather_into_tensor(whole, shard, group=self.group, async_op=True)
            for whole, shard in zip(self.buffers[name], shards, strict=True)
        ]
        self.coming = place, works

    def _drop(self) -> None:
        """Wait for a weight that nobody asked for: its buffer is about to be written again."""
        for work in self.coming[1] if self.coming else ():
            work.wait()


def gathering(ranks: int) -> Gathering:
    """`Gathering` within groups of `ranks` neighbouring ranks; call it on every rank.

    Raises:
        ValueError: the ranks of the run cannot be split into such groups.
    """
    world, rank = distributed.get_world_size(), distributed.get_rank()
    if world % ranks:
        raise ValueError(f"--shard_experts: found groups of {ranks} among {world} ranks, wanted a divisor of {world}")
    groups = [distributed.new_group(list(range(first, first + ranks))) for first in range(0, world, ranks)]
    return Gathering(groups[rank // ranks])
