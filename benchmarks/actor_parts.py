"""What a layer's experts cost the resident actor: each kernel, each matrix product, and the whole block.

    python -m benchmarks.actor_parts --out DIR                     one GPU, both models' shapes, about a minute
    python -m benchmarks.actor_parts --out DIR --shapes tiny       the same on a CPU

Needs torch and triton, nothing else of the stack. First each kernel is compared with its reference
(`benchmarks.actor_checks`). The block is timed over two layers in turn, so that none finds its weights dequantised.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from benchmarks import report
from benchmarks.actor_checks import CHECKS
from benchmarks.report import log
from rft.actor.combine import combine, combine_backward
from rft.actor.dequantize import SCRATCH, dequantize
from rft.actor.experts import PACKED, ResidentExperts, route
from rft.actor.grouped import grouped_mm
from rft.actor.swiglu import swiglu, swiglu_backward

NAME = "actor_parts"
SHAPES = {  # experts, experts a token, hidden and intermediate size, tokens
    "20b": {"experts": 32, "chosen": 4, "width": 2880, "tokens": [4096, 16384]},
    "120b": {"experts": 128, "chosen": 4, "width": 2880, "tokens": [4096, 16384]},
    "tiny": {"experts": 4, "chosen": 2, "width": 64, "tokens": [64]},
}
WARM, REPEATS = 3, 10
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def milliseconds(call: Callable[[], object]) -> float:
    """Median duration of a call, its work on the device included."""
    times = []
    for _ in range(WARM + REPEATS):
        if DEVICE.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[WARM:])


def random_layer(shape: dict) -> ResidentExperts:
    """Experts of random bytes, a few tenths in size."""
    config = SimpleNamespace(
        num_local_experts=shape["experts"], hidden_size=shape["width"], intermediate_size=shape["width"]
    )
    layer = ResidentExperts(config, DEVICE)
    for name in PACKED:
        getattr(layer, f"{name}_blocks").random_(0, 256)
        getattr(layer, f"{name}_scales").random_(118, 122)
        getattr(layer, f"{name}_bias").data.normal_()
    return layer


def random_tokens(shape: dict, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weights and indices; every expert is as likely."""
    scores, indices = torch.randn(tokens, shape["experts"], device=DEVICE).topk(shape["chosen"])
    x = torch.randn(tokens, shape["width"], device=DEVICE, dtype=torch.bfloat16)
    return x, scores.softmax(-1), indices


def measure_weights(shape: dict, note: Callable) -> None:
    """Dequantising one layer: bytes read and written."""
    layer = random_layer(shape)
    for name in PACKED:
        blocks, scales = getattr(layer, f"{name}_blocks"), getattr(layer, f"{name}_scales")
        out = layer.dense(name, torch.bfloat16)
        moved = blocks.numel() + scales.numel() + 2 * out.numel()
        note(f"dequantize {name}", milliseconds(lambda b=blocks, s=scales, o=out: dequantize(b, s, o)), moved=moved)


def measure_kernels(shape: dict, tokens: int, note: Callable) -> None:
    """What stands between the products: bytes of tokens read and written, not those of biases."""
    layer, (x, weights, indices) = random_layer(shape), random_tokens(shape, tokens)
    routing = route(indices, shape["experts"])
    rows, width = routing.inverse.numel(), shape["width"]
    h = torch.randn(rows, 2 * width, device=DEVICE, dtype=torch.bfloat16)
    y, out = h[:, :width].contiguous(), torch.empty_like(h)
    row_weights = weights.flatten()[routing.order]
    down, gate_up, experts = layer.down_proj_bias, layer.gate_up_proj_bias, routing.experts
    size, inverse = 2 * rows * width, routing.inverse  # bytes of y
    of_tokens = size // shape["chosen"]
    for name, call, moved in (
        ("sort by expert", lambda: route(indices, shape["experts"]), None),
        ("gather rows", lambda: x[routing.order // shape["chosen"]], size + of_tokens),
        ("swiglu", lambda: swiglu(h, gate_up, experts), 3 * size),
        ("swiglu backward", lambda: swiglu_backward(h, gate_up, experts, y, row_weights, out), 5 * size),
        ("weighted sum", lambda: combine(y, inverse, weights, down, indices), size + of_tokens),
        ("weighted sum backward", lambda: combine_backward(x, routing.order, experts, down), size + of_tokens),
        ("sum of dx", lambda: combine(y, inverse), size + of_tokens),
    ):
        note(name, milliseconds(call), moved=moved)


def measure_products(shape: dict, tokens: int, note: Callable) -> None:
    layer, (_, _, indices) = random_layer(shape), random_tokens(shape, tokens)
    ends = route(indices, shape["experts"]).ends
    for name, weight, transpose in (
        ("h = x W1'", "gate_up_proj", True),
        ("y = a W2'", "down_proj", True),
        ("da = dy W2", "down_proj", False),
        ("dx = dh W1", "gate_up_proj", False),
    ):
        dense = layer.dense(weight, torch.bfloat16)
        columns = dense.shape[2 if transpose else 1]
        rows = torch.randn(indices.numel(), columns, device=DEVICE, dtype=torch.bfloat16)
        took = milliseconds(lambda r=rows, d=dense, t=transpose: grouped_mm(r, d, ends, t))
        note(name, took, flop=2 * indices.numel() * dense[0].numel())


def measure_block(shape: dict, tokens: int, note: Callable) -> None:
    """The whole module, a layer: two layers in turn."""
    layers, (x, weights, indices) = [random_layer(shape) for _ in range(2)], random_tokens(shape, tokens)
    grad, inputs = torch.randn_like(x), (x.requires_grad_(), weights.requires_grad_())
    flop = 6 * indices.numel() * shape["width"] ** 2

    def forward() -> None:
        with torch.no_grad():
            for layer in layers:
                layer(x, weights, indices)

    def both() -> None:
        outputs = [layer(x, weights, indices) for layer in layers]
        for out in outputs:  # the first first: the scratch holds the second's weights
            torch.autograd.grad(out, inputs, grad)

    note("block, forward", milliseconds(forward) / 2, flop=flop)
    for keep_h in (True, False):
        for layer in layers:
            layer.keep_h = keep_h
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        name = f"block, forward and backward, h {'kept' if keep_h else 'computed again'}"
        took = milliseconds(both) / 2
        peak = (torch.cuda.max_memory_allocated() - held) / 2**30 if DEVICE.type == "cuda" else None
        note(name, took, flop=2 * flop, gib=peak)


def body(record: dict) -> str:
    """The markdown below the header. FLOP of a product that is computed again do not count."""
    rows = [
        (name, measure, part["ms"], part.get("gb_s"), part.get("tflop_s"), part.get("gib"))
        for name, found in record["parts"].items()
        for measure, part in found.items()
        if isinstance(part, dict)
    ]
    header = ("shape, tokens", "what", "ms", "GB/s", "TFLOP/s", "GiB beside the weights, two layers")
    return report.markdown(header, rows) if rows else "Nothing was measured."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["20b", "120b"])
    args = parser.parse_args()
    torch.manual_seed(0)
    record = report.describe() | {"settings": {"repeats": REPEATS}}

    def publish() -> None:
        report.save(args.out.resolve(), NAME, record, body(record))

    def noting(found: dict) -> Callable:
        def note(name: str, ms: float, moved: int | None = None, flop: int | None = None, gib: float | None = None):
            part = {"ms": ms, "gb_s": moved and moved / ms / 1e6, "tflop_s": flop and flop / ms / 1e9, "gib": gib}
            found[name] = {key: value for key, value in part.items() if value is not None}
            log(f"{name}: {found[name]}")

        return note

    with report.part(record, "checks", publish) as found:
        for name, check in CHECKS.items():
            found[name] = check(DEVICE.type)
    for name in args.shapes:
        shape = SHAPES[name]
        with report.part(record, f"{name}, weights", publish) as found:
            measure_weights(shape, noting(found))
        for tokens in shape["tokens"]:
            for measure in (measure_kernels, measure_products, measure_block):
                with report.part(record, f"{name}, {tokens}, {measure.__name__}", publish) as found:
                    measure(shape, tokens, noting(found))
        SCRATCH.release()
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
