"""What forward and backward passes of the actor cost, and how far its numbers are from float32: resident and eager.

    .venv/bin/python -m benchmarks.actor --out DIR [--work DIR] --tokens 4096,16384     one GPU, gpt-oss-20b's shape
    .venv/bin/python -m benchmarks.actor --out DIR --shape 120b --actor resident        one GPU of 140 GB
    .venv/bin/python -m benchmarks.actor --out DIR --parity                             four layers against float32
    .venv/bin/python -m benchmarks.actor --out DIR --shape tiny                         the same on a CPU

Random weights, LoRA r=32 on q, k, v and o, packed sequences of 1,024 tokens, of which all but the first are scored.
Each actor runs in a process of its own over one checkpoint: the resident one takes all tokens at once, the eager one
(transformers' experts and attention, every layer recomputed, OpenRLHF's log-softmax over all logits) four sequences at
a time. After two warm-ups each pass is timed five times; medians are shown. FLOPs are those that the model needs
(`rft.record.flops`), whatever an actor computes besides. `--profile` adds where the milliseconds of a step go.

`--parity` compares log-probabilities and the adapters' gradients of both with those of the same weights in float32.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT, report
from benchmarks.checkpoint import PROJECTIONS, SHAPES, ensure_checkpoint, shape_config
from benchmarks.report import log
from rft.record import flops
from rft.record.files import replace_json

NAME = "actor"
SIZES = {  # length of a sequence, LoRA rank, tokens of a step; --parity: layers, tokens of a batch, batches
    "20b": {"length": 1024, "rank": 32, "tokens": "4096", "parity": (4, 2048, 4)},
    "120b": {"length": 1024, "rank": 32, "tokens": "4096", "parity": (4, 2048, 4)},
    "tiny": {"length": 64, "rank": 8, "tokens": "256", "parity": (2, 512, 8)},
}
ACTORS = ("resident", "eager")
WARM_UPS, REPEATS = 2, 5
FLAGS = ("parity", "profile", "recompute", "products-again")  # that a child gets too


def measure(kind: str, args: argparse.Namespace, checkpoint: Path, publish: Callable[[dict], None]) -> None:
    """Seconds and peak memory of each pass at each number of tokens, and profiles; `publish(result)` after each."""
    import torch

    from benchmarks.actor_models import load, random_batch, steps
    from benchmarks.kernel_families import profiled
    from rft.actor import model as resident

    if args.products_again:
        resident.keeps_first_products = lambda *_: False
    gpu, size = torch.cuda.is_available(), SIZES[args.shape]
    model = load(kind, checkpoint, size["rank"], args.recompute)
    held = torch.cuda.memory_allocated() / 2**30 if gpu else None
    result = {"device": torch.cuda.get_device_name() if gpu else "cpu", "weights_gib": held}
    result |= {"passes": [], "profiles": {}}
    log(f"{kind}: loaded, {held or 0:.1f} GiB")
    for tokens in map(int, args.tokens.split(",")):
        for name, step in steps(kind, model, random_batch(tokens, size["length"], model.config.vocab_size)).items():
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            seconds = [timed(step) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
            peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
            result["passes"].append({"tokens": tokens, "pass": name, "seconds": seconds, "peak_gib": peak})
            log(f"{kind}, {tokens} tokens, {name}: {statistics.median(seconds):.4f} s, peak {peak or 0:.1f} GiB")
            publish(result)
            if args.profile:
                result["profiles"][f"{tokens} tokens, {name}"] = profiled(model, step)
                publish(result)


def timed(step: Callable[[], None]) -> float:
    """Seconds of one call, the GPU's work included."""
    import torch

    begin = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def numbers(kind: str, args: argparse.Namespace, checkpoint: Path, file: Path) -> None:
    """Write log-probabilities and the adapters' gradient of each batch, float32 on the CPU, for `compared`."""
    import torch

    from benchmarks.actor_models import gradients, load, random_batch

    size, found = SIZES[args.shape], []
    model = load(kind, checkpoint, size["rank"])
    adapter = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _, tokens, batches = size["parity"]
    for seed in range(batches):
        batch = random_batch(tokens, size["length"], model.config.vocab_size, seed)
        log_probs = gradients(kind, model, batch)
        gradient = torch.cat([parameter.grad.float().flatten() for parameter in adapter])
        found.append((log_probs.float().cpu(), gradient.cpu()))
        model.zero_grad(set_to_none=True)
    partial = file.with_suffix(".partial")
    torch.save(found, partial)
    partial.rename(file)  # who waits for it finds it whole


def compared(exact: list, found: list) -> dict[str, float]:
    """Absolute differences of log-probabilities in nats; mean and maximum over batches of |Δ gradient| / |gradient|.

    Both are lists of (log-probabilities, the adapters' gradient as one vector) by batch.
    """
    import torch

    differences = torch.cat([(mine[0] - right[0]).abs().flatten() for mine, right in zip(found, exact, strict=True)])
    errors = [((mine[1] - right[1]).norm() / right[1].norm()).item() for mine, right in zip(found, exact, strict=True)]
    return {
        "tokens": differences.numel(),
        "mean_abs": differences.mean().item(),
        "p99_abs": differences.quantile(0.99).item(),
        "max_abs": differences.max().item(),
        "gradient_error": statistics.mean(errors),
        "gradient_error_max": max(errors),
    }


def run(kind: str, args: argparse.Namespace, checkpoint: Path, seen: Callable[[Path], None]) -> None:
    """`kind` in a process of its own; `seen(file)` whenever that has written its results anew.

    Raises:
        RuntimeError: it failed, or took more than `--actor-seconds`, and was ended.
    """
    file, read = args.work / f"{NAME}-{os.getpid()}-{kind}", None
    words = [sys.executable, "-m", "benchmarks.actor", "--child", kind, "--shape", args.shape, "--tokens", args.tokens]
    words += ["--work", str(checkpoint), "--out", str(file)]
    words += [f"--{name}" for name in FLAGS if getattr(args, name.replace("-", "_"))]
    process = subprocess.Popen(words, cwd=ROOT)
    end = time.monotonic() + args.actor_seconds
    try:
        while True:
            ended = process.poll() is not None or time.monotonic() > end
            if file.is_file() and file.stat().st_mtime_ns != read:
                read = file.stat().st_mtime_ns
                seen(file)
            if ended:
                break
            time.sleep(0.5)
        if process.poll() != 0:
            status = "none" if process.poll() is None else process.poll()
            raise RuntimeError(f"{kind}: exit status {status} within {args.actor_seconds:.0f} s")
    finally:
        process.kill()
        process.wait()
        file.unlink(missing_ok=True)


def speed_rows(record: dict) -> list[tuple]:
    """Rows of the table of passes."""
    settings = record["settings"]
    config, size = shape_config(settings["shape"], settings["layers"]), SIZES[settings["shape"]]
    rows, eager = [], {}
    found = {kind: record["parts"].get(kind, {}) for kind in reversed(ACTORS)}
    for kind, part in found.items():
        peak = flops.peak_tflops(part.get("device", ""))
        for each in part.get("passes", []):
            key, seconds = (each["tokens"], each["pass"]), statistics.median(each["seconds"])
            if kind == "eager":
                eager[key] = seconds
            sequences = each["tokens"] // size["length"]
            lengths, scored = [size["length"]] * sequences, each["tokens"] - sequences
            count = flops.forward if each["pass"] == "forward" else flops.training
            rate = sum(count(config, lengths, scored, size["rank"], PROJECTIONS).values()) / seconds / 1e12
            share = f"{rate / peak:.0%}" if peak else None
            memory = None if each["peak_gib"] is None else f"{each['peak_gib']:.1f}"
            span = f"{min(each['seconds']):.4g}-{max(each['seconds']):.4g}"
            ratio = eager[key] / seconds if key in eager else None
            rows.append((kind, *key, seconds, span, f"{each['tokens'] / seconds:.0f}", rate, share, memory, ratio))
    return sorted(rows, key=lambda row: (row[2], row[1], ACTORS.index(row[0])))


def body(record: dict) -> str:
    """The markdown below the header."""
    texts = [", ".join(f"{key} {value}" for key, value in record["settings"].items())]
    if rows := speed_rows(record):
        header = ("actor", "tokens", "pass", "seconds", "range", "tokens/s", "TFLOP/s", "of peak", "peak GiB")
        texts.append(report.markdown((*header, "eager / this"), rows))
    for kind in ACTORS:
        profiles = record["parts"].get(kind, {}).get("profiles", {})
        if profiles:
            columns = [[f"{value:.1f}" for value in profile.values()] for profile in profiles.values()]
            sums = [f"{sum(profile.values()):.1f}" for profile in profiles.values()]
            names = [*next(iter(profiles.values())), "sum"]
            table = zip(names, *([*column, total] for column, total in zip(columns, sums, strict=True)), strict=True)
            texts.append(f"{kind}, ms\n\n" + report.markdown(("", *profiles), list(table)))
    if distances := record["parts"].get("parity", {}).get("distances"):
        header = ("against float32", "tokens", "mean abs Δ, nats", "p99", "max", "error of the gradient", "at most")
        texts.append(report.markdown(header, [(kind, *found.values()) for kind, found in distances.items()]))
    return "\n\n".join(texts) if len(texts) > 1 else "Nothing was measured."


def parity(args: argparse.Namespace, checkpoint: Path, found: dict, publish: Callable[[], None]) -> None:
    """Both actors against float32 over one checkpoint; `publish()` after each."""
    import torch

    kept: dict[str, list] = {}
    for kind in ("float32", *ACTORS):
        run(kind, args, checkpoint, lambda file, kind=kind: kept.update({kind: torch.load(file)}))
        if kind != "float32":
            found.setdefault("distances", {})[kind] = compared(kept["float32"], kept.pop(kind))
            publish()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=SIZES, default="20b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--tokens", help="of a step, with commas between; multiples of a sequence's length")
    parser.add_argument("--actor", choices=ACTORS, action="append", help="both unless given")
    parser.add_argument("--recompute", action="store_true", help="every layer of the resident actor, going backward")
    parser.add_argument("--products-again", action="store_true", help="keep no first product for the backward pass")
    parser.add_argument("--profile", action="store_true", help="milliseconds by kernel family")
    parser.add_argument("--parity", action="store_true", help="distance from float32, and no times")
    parser.add_argument("--actor-seconds", type=float, default=300, help="an actor that takes longer is ended")
    parser.add_argument("--child", choices=("float32", *ACTORS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = SIZES[args.shape]
    args.tokens, args.work, args.out = args.tokens or size["tokens"], args.work.resolve(), args.out.resolve()
    if any(not word.isdigit() or int(word) % size["length"] or not int(word) for word in args.tokens.split(",")):
        parser.error(f"--tokens: found {args.tokens}, wanted multiples of {size['length']}, with commas between")
    if args.child and args.parity:
        numbers(args.child, args, args.work, args.out)
        return 0
    if args.child:
        measure(args.child, args, args.work, lambda result: replace_json(args.out, result))
        return 0
    layers = args.layers or (size["parity"][0] if args.parity else SHAPES[args.shape]["num_hidden_layers"])
    settings = {"shape": args.shape, "layers": layers, "LoRA rank": size["rank"], "sequences of": size["length"]}
    settings |= {name: True for name in ("recompute", "products_again") if getattr(args, name)}
    record = report.describe() | {"settings": settings}
    name = f"{NAME}_parity" if args.parity else NAME

    def publish() -> None:
        report.save(args.out, name, record, body(record))

    with report.part(record, "checkpoint", publish):
        whole = layers == SHAPES[args.shape]["num_hidden_layers"]
        checkpoint = ensure_checkpoint(
            args.work / f"{args.shape}{'' if whole else f'-{layers}'}", args.shape, None if whole else layers
        )
    if args.parity:
        with report.part(record, "parity", publish) as found:
            parity(args, checkpoint, found, publish)
    for kind in [] if args.parity else args.actor or ACTORS:
        with report.part(record, kind, publish) as found:

            def seen(file: Path, found: dict = found) -> None:
                found |= json.loads(file.read_text())
                publish()

            run(kind, args, checkpoint, seen)
    log(f"results: {args.out / name}.json, {args.out / name}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
