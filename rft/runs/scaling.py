"""What a step of gpt-oss-20b would cost on more nodes, from what one GPU was measured to do (docs/benchmarks.md).

    .venv/bin/python -m rft.runs.scaling [--samples N] [--length TOKENS] [--gpus-per-node 8] [--network GB_A_SECOND]

A computation, no measurement: nodes of H200s, each GPU with a rank of the actor and an engine, ranks data-parallel. The
first table keeps 64 samples on each GPU, the second `--samples` in all, of `--length` tokens each. docs/scaling.md has
both.
"""

import argparse
from typing import NamedTuple

NODES = (1, 2, 8, 32, 128)

# One H200, whole loop, 64 samples of 1,024 tokens, 2026-11-22, f3b9bec.
ROLLOUT_TOKENS = 5591.0  # a second, 64 at once in an engine
LOG_PROB_TOKENS, TRAIN_TOKENS = 50_000.0, 15_900.0  # a second
SYNC_SECONDS = 0.06
PEAK_GIB = 75.4  # of the device, engine and actor
AT_ONCE = 64
# Of one sample among 64, decoding alone: 8,282 tokens a second in all. Fewer at once are faster; that is not measured.
SAMPLE_TOKENS = 8282.0 / 64
ADAPTER_BYTES = 31.9e6  # bf16, r=32 on q, k, v, o of 24 layers
# The step took 17.3 s and its parts 17.2 to 17.6 s: what the one controller adds is below 0.2 s for 64 samples.
CONTROLLER_SECONDS = 0.2 / 64  # a sample, at most
TOKEN_BYTES = 36  # of a token in the controller: ids 8, masks 2 x 8, three float32 log-probabilities


class Step(NamedTuple):
    """Seconds of one step; `controller` is an upper bound."""

    rollout: float
    actor: float
    gradients: float
    sync: float
    controller: float

    @property
    def total(self) -> float:
        return sum(self)


def step(nodes: int, samples: int, length: int, gpus: int = 8, network: float = 3.0) -> Step:
    """Of `samples` of `length` tokens in all, on `nodes` of `gpus` GPUs, `network` GB/s between two nodes.

    The gradients of the adapter, in float32, go round a ring once a step; every other node takes the adapter from the
    one that has it, which sends it to all.
    """
    engines = nodes * gpus
    here = -(-samples // engines)  # on the fullest GPU
    tokens = here * length
    ring = 2 * 2 * ADAPTER_BYTES / (network * 1e9) if nodes > 1 else 0.0
    copies = (nodes - 1) * ADAPTER_BYTES / (network * 1e9)
    return Step(
        rollout=max(tokens / ROLLOUT_TOKENS, length / SAMPLE_TOKENS),
        actor=tokens / LOG_PROB_TOKENS + tokens / TRAIN_TOKENS,
        gradients=ring,
        sync=SYNC_SECONDS + copies,
        controller=samples * CONTROLLER_SECONDS,
    )


def table(batch: int | None, length: int, gpus: int, network: float) -> str:
    """A Markdown table over `NODES`; `batch` samples in all, None for `AT_ONCE` on each GPU."""
    names = "nodes, GPUs, samples, rollout, actor, gradients, sync, controller (at most), step, tokens/s, of ideal"
    lines = [f"| {' | '.join(names.split(', '))} |", "|---" * 11 + "|"]
    base = 0.0
    for nodes in NODES:
        samples = batch or AT_ONCE * nodes * gpus
        cost = step(nodes, samples, length, gpus, network)
        rate = samples * length / cost.total
        base = base or rate / (nodes * gpus)
        parts = " | ".join(f"{seconds:.2f} s" for seconds in cost)
        share = rate / (nodes * gpus) / base
        lines.append(
            f"| {nodes} | {nodes * gpus} | {samples:,} | {parts} | {cost.total:.1f} s | {rate:,.0f} | {share:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--network", type=float, default=3.0, help="GB/s between two nodes; 3 is a link of 25 Gbit/s")
    args = parser.parse_args()
    shape = (args.length, args.gpus_per_node, args.network)
    print(f"{AT_ONCE} samples of {args.length:,} tokens on each GPU\n\n{table(None, *shape)}\n")
    print(f"{args.samples} samples of {args.length:,} tokens in all\n\n{table(args.samples, *shape)}\n")
    largest = AT_ONCE * NODES[-1] * args.gpus_per_node * args.length * TOKEN_BYTES / 2**30
    print(f"Each GPU holds {PEAK_GIB} GiB at its peak on any number of nodes: the frozen base is whole on each rank.")
    print(f"The controller holds a rollout's tensors: {largest:.1f} GiB for the first table's last row.")


if __name__ == "__main__":
    main()
