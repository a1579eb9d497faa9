"""The full-weight broadcast between trainer and engines on a machine without NCCL."""

from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo

from rft.hooks import loopback


class GlooBroadcast:
    """What the trainer and the engine's workers ask of vLLM's `PyNcclCommunicator`, over gloo; rank 0 is the server.

    A group of its own, like vLLM's: the engine's workers already belong to another default process group.
    """

    def __init__(
        self, address: str, port: int, rank: int, world_size: int, timeout: timedelta = timedelta(minutes=5)
    ) -> None:
        store = loopback.store(address, port, rank, world_size, timeout)
        self.group = ProcessGroupGloo(store, rank, world_size, timeout)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Overwrite `tensor`, any shape, contiguous, on every rank with that of rank `src`."""
        options = BroadcastOptions()
        options.rootRank = src
        self.group.broadcast([tensor], options).wait()
