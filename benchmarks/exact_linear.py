"""One adapted linear layer of the engine: microseconds a call, plain and with its adapter beside the weight.

    .venv/bin/python -m benchmarks.exact_linear [--rank 32 64] [--rows 1 8 64]      one GPU, about a minute

It needs torch and Triton only. `plain` is the layer without an adapter; `many_rows` and `few_rows` are the two ways of
`rft.hooks.wide_linear`, of which `FEW_ROWS` chooses. Each CUDA graph calls the layer over copies of its weights that
are together larger than the L2 cache, as a model's layers are. Before that both ways are compared with float64: one
outside the bounds ends the run with status 1, after its table.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# outputs, inputs, projections: the attention layers of gpt-oss-20b and -120b alike
LAYERS = {"qkv": (5120, 2880, 3), "o": (2880, 4096, 1)}
ROWS = [1, 8, 16, 64, 128, 256, 512, 1024, 2048, 8192]
UPDATE = 5e-7  # B after Adam's first step at the recipe's learning rate
COPIES_BYTES = 400e6  # of weights in one graph; an H100's L2 cache has 50 MB
EXACT_ROWS, REPLAYS = 1024, 20


def make(outputs: int, inputs: int, width: int, projections: int, seed: int):
    """A layer's `wide` buffer with B of the size of a trained adapter's, and its bias."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    place = {"generator": generator, "device": "cuda"}
    wide = (torch.randn(outputs + width, inputs + width, **place) * inputs**-0.5).to(torch.bfloat16)
    rank = width // projections
    b = wide[:outputs, inputs:]
    b.copy_(torch.randn(b.shape, **place) * 0.1 * rank**-0.5)
    if projections == 3:  # q, k and v have blocks of columns of their own, zero in the others' rows
        rows = [0, outputs * 4 // 5, outputs * 9 // 10, outputs]
        for part in range(3):
            b[: rows[part], part * rank : (part + 1) * rank] = 0
            b[rows[part + 1] :, part * rank : (part + 1) * rank] = 0
    return wide, torch.randn(outputs, **place).to(torch.bfloat16)


def check(way: Callable, without: Callable, wide: "Tensor", width: int, bias: "Tensor") -> tuple[float, float, float]:
    """How exact a way is: the share of the outputs that are float64's, rounded; the largest distance, in spacings of
    bf16 (of 1/16 for smaller outputs, where other roundings of `x A'ᵀ` decide); the kept share of `UPDATE`."""
    import torch

    outputs, inputs = wide.shape[0] - width, wide.shape[1] - width
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(EXACT_ROWS, inputs, generator=generator, device="cuda").to(torch.bfloat16)
    w, b, a = wide[:outputs, :inputs].double(), wide[:outputs, inputs:], wide[outputs:, :inputs].double()
    beside = (x.double() @ a.T).to(torch.bfloat16).double()
    wanted = x.double() @ w.T + beside @ b.double().T + bias.double()
    found, rounded = way(x, wide, width, bias).double(), wanted.to(torch.bfloat16).double()
    spacing = 2.0 ** (rounded.abs().clamp(min=2**-4).log2().floor() - 7)
    distance = ((found - wanted).abs() / spacing).max().item()
    equal = (found == rounded).double().mean().item()
    small, signs = wide.clone(), b.sign()
    small[:outputs, inputs:] = signs * UPDATE
    change = way(x, small, width, bias).double() - without(x, small, width, bias).double()
    aim = beside @ small[:outputs, inputs:].double().T
    return equal, distance, ((change * aim).sum() / (aim * aim).sum()).item()


def microseconds(call: Callable, layers: list[tuple]) -> float:
    """Median over `REPLAYS` replays of a CUDA graph that runs `call(*layer)` for every layer, a call."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(*layers[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in layers:
            call(*layer)
    times = []
    for _ in range(3 + REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / len(layers))
    return statistics.median(times[3:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rank", type=int, nargs="+", default=[32, 64], help="LoRA ranks; gpt-oss-120b's preset has 64"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="tokens at once")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("benchmarks.exact_linear: found no CUDA device, wanted one; the CPU has no such kernel", file=sys.stderr)
        return 1
    from rft.hooks import wide_linear as ways

    def off_columns(x, wide, width, bias):
        nothing = x.new_zeros(x.shape[0], width)
        return torch.nn.functional.linear(torch.cat((x, nothing), 1), wide[: wide.shape[0] - width], bias)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {ways.triton.__version__}\n")
    failed = False
    for rank in args.rank:
        for name, (outputs, inputs, projections) in LAYERS.items():
            width = rank * projections
            copies = max(2, int(COPIES_BYTES / (2 * outputs * inputs)))
            made = [make(outputs, inputs, width, projections, seed) for seed in range(copies)]
            plain = [wide[:outputs, :inputs].contiguous() for wide, _ in made]
            print(f"## {name} {inputs} -> {outputs}, rank {rank}\n")
            for way, off in ((ways.many_rows, off_columns), (ways.few_rows, ways.without_adapter)):
                equal, distance, kept = check(way, off, made[0][0], width, made[0][1])
                good = equal > 0.9 and distance < 1.51 and 0.85 < kept < 1.15
                failed |= not good
                print(f"{way.__name__}: {100 * equal:.2f}% as float64 rounds, at most {distance:.2f} spacings off, "
                      f"{kept:.3f} of an update of {UPDATE:g} kept{'' if good else '; OUTSIDE THE BOUND'}")  # fmt: skip
            zero = made[0][0].clone()
            zero[:outputs, inputs:] = 0
            x = torch.randn(64, inputs, device="cuda").to(torch.bfloat16)
            both = (way(x, zero, width, made[0][1]) for way in (ways.few_rows, ways.without_adapter))
            same = torch.equal(*both)
            failed |= not same
            print(f"few_rows with a zero adapter is without_adapter, bit for bit: {same}\n")
            print("| rows | plain us | many_rows us | few_rows us | many_rows / plain | few_rows / plain |")
            print("|---|---|---|---|---|---|")
            for rows in args.rows:
                x = torch.randn(rows, inputs, device="cuda").to(torch.bfloat16)
                base = [(x, weight, bias) for weight, (_, bias) in zip(plain, made, strict=True)]
                wide = [(x, wide, width, bias) for wide, bias in made]
                first = microseconds(torch.nn.functional.linear, base)
                many, few = (microseconds(way, wide) for way in (ways.many_rows, ways.few_rows))
                print(f"| {rows} | {first:.1f} | {many:.1f} | {few:.1f} | {many / first:.2f} | {few / first:.2f} |",
                      flush=True)  # fmt: skip
            print(flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
