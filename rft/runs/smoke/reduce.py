"""An all-reduce over the job's nodes: one rank a node, NCCL where it has a GPU, else gloo."""

import os
import socket
import time
from datetime import timedelta

from rft.runs.preflight.lines import GO, NO_GO, Line

MEGABYTES = 256  # float32, on GPUs; on CPUs a sixteenth
TIMES = 5
REPAIR = "JOB_INTERFACE, and NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME in JOB_ENV, that name the nodes' network"


def all_reduce() -> Line:
    """The line of this rank; MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set.

    Measured is the bus bandwidth, 2 (n - 1) / n of the bytes of one rank a second, as nccl-tests has it.
    """
    import torch
    from torch import distributed

    on_gpu = not os.environ.get("RFT_STACK", "").startswith("cpu") and torch.cuda.is_available()
    backend, device = ("nccl", "cuda:0") if on_gpu else ("gloo", "cpu")
    ranks = int(os.environ["WORLD_SIZE"])
    try:
        distributed.init_process_group(backend, timeout=timedelta(seconds=120))
        size = (MEGABYTES if on_gpu else MEGABYTES // 16) * 2**20 // 4
        values = torch.ones(size, device=device)
        distributed.all_reduce(values)
        correct = bool((values == ranks).all())
        distributed.barrier()
        started = time.monotonic()
        for _ in range(TIMES):
            distributed.all_reduce(values)
        if on_gpu:
            torch.cuda.synchronize()
        rate = TIMES * size * 4 * 2 * (ranks - 1) / ranks / (time.monotonic() - started) / 1e9
        distributed.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        return Line("all-reduce", NO_GO, f"{backend} on {socket.gethostname()}: {str(error).splitlines()[0]}", REPAIR)
    if not correct:
        return Line("all-reduce", NO_GO, f"{backend}: a wrong sum", "SBATCH_EXCLUDE=NODE for one node after another")
    return Line("all-reduce", GO, f"{backend} over {ranks} nodes" + (f", {rate:.1f} GB/s" if ranks > 1 else ""))
