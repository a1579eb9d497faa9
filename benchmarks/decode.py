"""What serving adapters exactly and logits in float32 cost a rollout: tokens a second, by requests at once.

    .venv/bin/python -m benchmarks.decode --out DIR [--work DIR]       one H200, gpt-oss-20b's shape, about four minutes
    .venv/bin/python -m benchmarks.decode --out DIR --shape tiny       the same on a CPU

One engine after another, each in a process of its own over one checkpoint: adapters merged and logits in bf16 (as
upstream), adapters exact, and both. With CUDA graphs and torch.compile where there is a GPU, and an adapter synced.
Each load is run once to warm up and then `REPEATS` times; the table has medians and their ratio to the first engine.
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
from benchmarks.checkpoint import PROJECTIONS, SHAPES, ensure_checkpoint
from benchmarks.report import log
from rft.record.files import replace_json

NAME = "decode"
SIZES = {  # tokens in and out, LoRA rank, requests at once
    "20b": {"prompt": 64, "new": 384, "rank": 32, "loads": [64, 256]},
    "tiny": {"prompt": 8, "new": 16, "rank": 8, "loads": [4]},
}
WAYS = {
    "merged, bf16 logits": {"exact": False, "head_dtype": "model"},
    "exact, bf16 logits": {"exact": True, "head_dtype": "model"},
    "exact, float32 logits": {"exact": True, "head_dtype": "float32"},
}
REPEATS = 3


def random_adapter(config: dict, rank: int):
    """Manifest and buffer of an adapter on the four projections of every layer, a tenth of the weights in size."""
    import torch

    from benchmarks.checkpoint import projection_shapes
    from rft.hooks.lora_manifest import build_manifest, layer_matrices

    layers = [
        {
            "name": f"model.layers.{layer}.self_attn.{part}.weight",
            "rank": rank,
            "in_features": columns,
            "out_features": rows,
            "scaling": 2.0,
        }
        for layer in range(config["num_hidden_layers"])
        for part, (rows, columns) in projection_shapes(config).items()
    ]
    manifest = build_manifest(layers, torch.bfloat16, version=1)
    buffer = torch.randn(manifest["numel"], generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for layer in manifest["layers"]:
        a, b = layer_matrices(layer, buffer)
        a *= layer["in_features"] ** -0.5
        b *= 0.1 / (2 * rank**0.5)
    return manifest, buffer


def measure(model: Path, shape: str, way: dict, publish: Callable[[dict], None]) -> None:
    """Tokens a second of one engine at each load; `publish(result)` after each. Runs in a process of its own."""
    from vllm import SamplingParams

    from rft.serving.engine import open_engine, sync_engine

    size, config = SIZES[shape], SHAPES[shape]
    room = {"lora_rank": size["rank"], "lora_modules": list(PROJECTIONS)} if way["exact"] else {}
    limits = {"max_model_len": size["prompt"] + size["new"], "max_num_seqs": max(size["loads"])}
    llm = open_engine(
        str(model), gpu_memory_utilization=0.6, logprobs_mode="processed_logprobs", head_dtype=way["head_dtype"],
        enable_prefix_caching=False, compilation_config={"cudagraph_capture_sizes": size["loads"]}, **limits, **room,
    )  # fmt: skip
    log("engine: ready")
    result = {"receipts": sync_engine(llm, *random_adapter(config, size["rank"])), "tokens_per_second": {}}
    for requests in size["loads"]:
        prompts = [
            {"prompt_token_ids": [(7919 * (i + n * size["prompt"])) % (config["vocab_size"] * 99 // 100)
                                  for i in range(size["prompt"])]}
            for n in range(requests)
        ]  # fmt: skip
        params = [SamplingParams(max_tokens=size["new"], ignore_eos=True, logprobs=0, seed=n) for n in range(requests)]
        rates = []
        for _ in range(1 + REPEATS):
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            rates.append(requests * size["new"] / (time.perf_counter() - begin))
        result["tokens_per_second"][str(requests)] = rates[1:]
        log(f"{requests} at once: {', '.join(f'{rate:.0f}' for rate in rates[1:])} tokens/s")
        publish(result)
    llm.llm_engine.engine_core.shutdown()


def body(record: dict) -> str:
    """The markdown below the header."""
    found = {name: part.get("tokens_per_second", {}) for name, part in record["parts"].items() if name in WAYS}
    first = next(iter(found.values()), {})
    rows = []
    for name, loads in found.items():
        for requests, rates in loads.items():
            median = statistics.median(rates)
            ratio = median / statistics.median(first[requests]) if requests in first else None
            rows.append((name, requests, f"{median:.0f}", f"{min(rates):.0f}-{max(rates):.0f}", ratio))
    size = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    header = ("engine", "requests at once", "tokens/s", "range", "ratio to the first")
    return f"{size}\n\n" + report.markdown(header, rows) if rows else "Nothing was measured."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=SIZES, default="20b")
    parser.add_argument("--way-seconds", type=float, default=200, help="an engine that takes longer is ended")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    out, work = args.out.resolve(), args.work.resolve()
    model = work / args.shape
    if args.child:
        measure(model, args.shape, WAYS[args.child], lambda result: replace_json(out, result))
        return 0
    record = report.describe() | {"settings": {"shape": args.shape, **SIZES[args.shape]}}

    def publish() -> None:
        report.save(out, NAME, record, body(record))

    with report.part(record, "checkpoint", publish):
        ensure_checkpoint(model, args.shape)
    for number, name in enumerate(WAYS):
        with report.part(record, name, publish) as found:
            result = work / f"{NAME}-{os.getpid()}-{number}.json"
            words = [sys.executable, "-m", "benchmarks.decode", "--child", name, "--shape", args.shape]
            words += ["--work", str(work), "--out", str(result)]
            try:
                subprocess.run(words, cwd=ROOT, check=True, timeout=args.way_seconds)
            finally:
                if result.is_file():
                    found |= json.loads(result.read_text())
    log(f"results: {out / NAME}.json, {out / NAME}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
