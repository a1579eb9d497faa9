"""What `--shard_experts` costs: passes of the resident actor with all experts on each rank, and split over the ranks.

    .venv/bin/torchrun --nproc-per-node 2 -m benchmarks.sharded --out DIR --shape 120b     two GPUs of 140 GB
    .venv/bin/torchrun --nproc-per-node 2 -m benchmarks.sharded --out DIR --shape tiny     the same on a CPU

Random weights, LoRA r=32, every layer recomputed; each rank has a batch of its own, as in data parallel training. Both
ways are timed in one run, medians of five after two warm-ups, the slowest rank's; log-probabilities and the adapters'
gradients of the first pass are compared bit for bit.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import torch
from torch import distributed

from benchmarks import report
from benchmarks.actor import REPEATS, SIZES, WARM_UPS, timed
from benchmarks.actor_models import device, gradients, load, random_batch, steps
from benchmarks.checkpoint import ensure_checkpoint
from benchmarks.report import log

NAME = "sharded"


def measure(checkpoint: Path, size: dict, tokens: int, shard: int) -> dict:
    """This rank's numbers: GiB held and at the peak, seconds of each pass; and `bits`, what the first pass gave."""
    gpu = torch.cuda.is_available()
    model = load("resident", checkpoint, size["rank"], recompute=True, shard=shard)
    held = torch.cuda.memory_allocated() / 2**30 if gpu else None
    batch = random_batch(tokens, size["length"], model.config.vocab_size, seed=distributed.get_rank())
    log_probs = gradients("resident", model, batch)
    bits = [log_probs.cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]
    model.zero_grad(set_to_none=True)
    found = {"held_gib": held, "bits": bits, "seconds": {}}
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    for name, step in steps("resident", model, batch).items():
        found["seconds"][name] = statistics.median([timed(step) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:])
    found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
    return found


def together(found: dict) -> dict:
    """The slowest and largest of all ranks."""
    each = [None] * distributed.get_world_size()
    distributed.all_gather_object(each, {name: value for name, value in found.items() if name != "bits"})
    seconds = {name: max(rank["seconds"][name] for rank in each) for name in found["seconds"]}
    sizes = {name: max((rank[name] or 0) for rank in each) or None for name in ("held_gib", "peak_gib")}
    return {"seconds": seconds, **sizes}


def differing(one: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    """Elements of all ranks that are not equal."""
    count = torch.tensor(sum(int((a != b).sum()) for a, b in zip(one, other, strict=True)), device=device())
    distributed.all_reduce(count)
    return int(count)


def body(record: dict) -> str:
    """The markdown below the header."""
    rows = [
        (name, found["held_gib"], found["peak_gib"], *found["seconds"].values(), found.get("differing"))
        for name, found in record["parts"].items()
        if "seconds" in found and isinstance(found["seconds"], dict)
    ]
    header = ("experts", "GiB held", "GiB at the peak", "forward and backward, s", "forward, s", "elements that differ")
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return f"{settings}\n\n{report.markdown(header, rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=SIZES, default="120b")
    parser.add_argument("--tokens", type=int, help="of a rank's batch")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("found one process, wanted a rank a GPU; start it with torchrun --nproc-per-node N")
    size, gpu = SIZES[args.shape], torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if gpu else "gloo")
    ranks, first = distributed.get_world_size(), distributed.get_rank() == 0
    tokens, checkpoint = args.tokens or int(size["tokens"]), args.work.resolve() / args.shape
    settings = {"shape": args.shape, "ranks": ranks, "tokens a rank": tokens, "LoRA rank": size["rank"]}
    record = report.describe() | {"settings": settings}
    if first:
        ensure_checkpoint(checkpoint, args.shape)
    distributed.barrier()
    bits = None
    for name, shard in (("all on each rank", 1), (f"split over {ranks}", ranks)):
        found = measure(checkpoint, size, tokens, shard)
        record["parts"][name] = together(found)
        if bits is not None:
            record["parts"][name]["differing"] = differing(bits, found["bits"])
        bits = found["bits"]
        if first:
            report.save(args.out.resolve(), NAME, record, body(record))
            log(f"{name}: {record['parts'][name]}")
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
