"""Are the weights that a tensor-parallel engine serves after a LoRA sync the merged model's, bit for bit?

    .venv/bin/python -m benchmarks.tp_exact --out DIR [--work DIR]     two GPUs, gpt-oss-20b's shape, about two minutes
    .venv/bin/python -m benchmarks.tp_exact --out DIR --shape tiny     the same on a CPU

Random adapters go through the trainer's own sync to one engine over two ranks; every adapted weight is read back and
compared with `bf16(fp32(W0) + scaling · B @ A)` of the whole matrix, cut by hand. A float32 product may be summed in
another order for another shape or device, so the table has three references: float32 on this device, float32 on the
CPU, and float64, where no order matters.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from benchmarks import report
from benchmarks.checkpoint import ensure_checkpoint, projection_shapes, shape_config
from benchmarks.report import log
from rft.hooks.lora_manifest import build_manifest
from rft.serving.served import different_bits, expected_layer, merged, read_layer

if TYPE_CHECKING:
    from vllm import LLM

NAME = "tp_exact"


def random_adapter(config: dict, rank: int, seed: int) -> tuple[dict, torch.Tensor]:
    """Manifest and bf16 buffer of an adapter of q, k, v and o of every layer, drawn from `seed`; scaling 2."""
    layers = [
        {
            "name": f"model.layers.{layer}.self_attn.{name}.weight",
            "rank": rank,
            "scaling": 2.0,
            "out_features": rows,
            "in_features": columns,
        }
        for layer in range(config["num_hidden_layers"])
        for name, (rows, columns) in projection_shapes(config).items()
    ]
    manifest = build_manifest(layers, torch.bfloat16, version=seed)
    values = torch.randn(manifest["numel"], generator=torch.Generator().manual_seed(seed))
    return manifest, (0.02 * values).to(torch.bfloat16)


def stored_tensor(directory: Path, name: str) -> torch.Tensor:
    """One tensor of a checkpoint of several files."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(directory / index[name], framework="pt") as file:
        return file.get_tensor(name)


def compare(llm: "LLM", model: Path, manifest: dict, buffer: torch.Tensor, layers: int, ranks: int) -> dict[str, int]:
    """Number of served bf16 elements, and of those whose bits differ from each reference, over all layers and ranks."""
    torch.set_float32_matmul_precision("highest")  # as the workers compute
    device = "cuda" if torch.cuda.is_available() else "cpu"
    references = {
        f"float32 on {device}": (device, torch.float32),
        "float32 on cpu": ("cpu", torch.float32),
        "float64": (device, torch.float64),
    }
    adapted = {layer["name"]: layer for layer in manifest["layers"]}
    counts = {"elements": 0, "other than the base": 0} | dict.fromkeys(references, 0)
    for layer in range(layers):
        held = llm.collective_rpc(read_layer, args=(layer,))
        assert len(held) == ranks
        base = {name: stored_tensor(model, name) for name in adapted if name.startswith(f"model.layers.{layer}.")}
        for reference, (place, dtype) in references.items():
            on_device = buffer.to(place)
            whole = {n: merged(w.to(place), adapted[n], on_device, dtype) for n, w in base.items()}
            add_differences(counts, reference, held, expected_layer(whole.__getitem__, layer, ranks))
        add_differences(counts, "other than the base", held, expected_layer(base.__getitem__, layer, ranks))
        counts["elements"] += sum(tensor.numel() for rank in held for tensor in rank.values())
    return counts


def add_differences(counts: dict, key: str, held: list[dict], wanted: list[dict]) -> None:
    """Add to `counts[key]` the elements of all ranks that differ."""
    for found, expected in zip(held, wanted, strict=True):
        counts[key] += sum(different_bits(found[name], expected[name]) for name in expected)


def body(record: dict) -> str:
    """The markdown below the header."""
    rows = []
    for name, found in record["parts"].items():
        if "counts" in found:
            differ = [count for key, count in found["counts"].items() if key.startswith("float")]
            others = [found["counts"][key] for key in ("elements", "other than the base")]
            rows.append((name, *others, *differ, "yes" if 0 in differ else "NO"))
    if not rows:
        return "Nothing was compared."
    references = [key for f in record["parts"].values() for key in f.get("counts", {}) if key.startswith("float")]
    header = ("sync", "elements", "changed by the sync", *(f"differ from {r}" for r in dict.fromkeys(references)))
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return f"{settings}\n\n" + report.markdown((*header, "bit-exact to one"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=["20b", "tiny"], default="20b")
    parser.add_argument("--tensor-parallel-size", type=int, default=2)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    args = parser.parse_args()
    from rft.serving.engine import open_engine, sync_engine

    out, work, ranks = args.out.resolve(), args.work.resolve(), args.tensor_parallel_size
    config, lora_rank = shape_config(args.shape, args.layers), 8 if args.shape == "tiny" else 32
    layers = config["num_hidden_layers"]
    settings = {"shape": args.shape, "layers": layers, "tensor-parallel size": ranks, "LoRA rank": lora_rank}
    record = report.describe() | {"settings": settings}

    def publish() -> None:
        report.save(out, NAME, record, body(record))

    with report.part(record, "engine", publish):
        name = args.shape + (f"-{args.layers}-layers" if args.layers else "")
        model = ensure_checkpoint(work / name, args.shape, args.layers)
        llm = open_engine(
            str(model), max_model_len=128, tensor_parallel_size=ranks, enforce_eager=True, gpu_memory_utilization=0.5
        )
    if report.exit_code(record):
        return 1
    for title, seed in (("first", 1), ("fifth, after four others", 5), ("first adapter again", 1)):
        with report.part(record, title, publish) as found:
            # The middle row's adapter comes last of several: what those left behind would show.
            for version in range(2, seed):
                sync_engine(llm, *random_adapter(config, lora_rank, version))
            manifest, buffer = random_adapter(config, lora_rank, seed)
            begin = time.perf_counter()
            found["receipts"] = sync_engine(llm, manifest, buffer)
            found["sync_seconds"] = time.perf_counter() - begin
            found["counts"] = compare(llm, model, manifest, buffer, layers, ranks)
            log(f"{title}: sync {found['sync_seconds']:.3f} s, {found['counts']}")
            kept = statistics.mean(receipt["kept_share"] for receipt in found["receipts"])
            log(f"{title}: share of the update kept by bf16 {kept:.3f}")
    llm.llm_engine.engine_core.shutdown()
    different = [t for t, f in record["parts"].items() if "counts" in f and 0 not in list(f["counts"].values())[2:]]
    log(f"results: {out / NAME}.json, {out / NAME}.md")
    return 1 if different else report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
