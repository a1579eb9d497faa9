#!/usr/bin/env python
"""Evaluate base models and LoRA adapters after training, each on the engine and through the sync that trained it.

An adapter is served on its base checkpoint by the trainer's own weight sync, never merged into MXFP4.

    python eval/eval_posthoc.py --model base=MODEL_DIR --model tuned=ADAPTER_DIR --dataset heldout.jsonl

CPU or GPU; start-up dominates (about 15 s on two cores with the tiny model).
"""

import argparse
import gc
import hashlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path

from rft import overlay
from rft.adapters import base_model_of, is_adapter, read_adapter
from rft.checkpoints import require_gpt_oss
from rft.evaluation import MODES, generate, read_problems, summarize, tree_digest

RFT = Path(overlay.__file__).resolve().parents[1]


def main() -> int:
    args = parse_args()
    try:
        results = evaluate(args)
    except (ValueError, OSError) as error:
        print(f"eval_posthoc: {error}", file=sys.stderr)
        return 2
    print_table(results)
    if args.output:
        args.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, type=named_path, metavar="NAME=PATH")
    parser.add_argument("--dataset", action="append", required=True, type=Path, metavar="FILE.jsonl")
    parser.add_argument("--mode", choices=list(MODES), default="greedy_pass@1")
    parser.add_argument("--max-tokens", type=int, default=4096, help="completion length limit")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--output", type=Path, help="write all records as JSON here")
    parser.add_argument("--cache", type=Path, help="reuse results of identical weights, problems, settings and tree")
    return parser.parse_args()


def named_path(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted NAME=PATH")
    return name, Path(path)


def evaluate(args: argparse.Namespace) -> list[dict]:
    """One result per model and dataset, in the order given. Every input is checked before an engine starts."""
    datasets = {path: read_problems(path) for path in args.dataset}
    for name, path in args.model:
        try:
            require_gpt_oss(base_model_of(path) if is_adapter(path) else path)
            if is_adapter(path):
                read_adapter(path)
        except ValueError as error:
            raise ValueError(f"model {name}: {error}") from None
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    tree_ids = overlay.tree_ids()
    engines, results = {}, []
    for name, path in args.model:
        base = str(Path(base_model_of(path) if is_adapter(path) else path).resolve())
        for dataset, problems in datasets.items():
            key = identity(path, base, dataset, args, tree_ids)
            records = cached(args.cache, key)
            if records is None:
                records = generate(engine_serving(engines, path, base, args), problems, args.mode, args.max_tokens)
                store(args.cache, key, records)
            results.append(
                {
                    "model": name,
                    "kind": "adapter" if is_adapter(path) else "base",
                    "dataset": dataset.name,
                    "mode": args.mode,
                    "max_tokens": args.max_tokens,
                    "tree_id": tree_ids,
                    **summarize(records, args.mode),
                    "records": records,
                }
            )
    return results


def engine_serving(engines: dict, path: Path, base: str, args: argparse.Namespace):
    """The engine of `base`, serving `path`: the base itself before any adapter, an adapter by weight sync."""
    from rft.engine import open_engine, serve_adapter

    if engines.get("base") != base or (not is_adapter(path) and engines["serving"] != base):
        # A base is never read from under another model's adapter.
        if engines:
            engines["llm"].llm_engine.engine_core.shutdown()
            engines.clear()
            gc.collect()
        engines.update(base=base, serving=base, llm=open_engine(base, args.max_prompt_tokens + args.max_tokens))
    if is_adapter(path) and engines["serving"] != str(path):
        for receipt in serve_adapter(engines["llm"], str(path)):
            if receipt["kept_share"] is None:
                print(f"note: the adapter in {path} is zero: it serves the base model", file=sys.stderr)
        engines["serving"] = str(path)
    return engines["llm"]


def identity(path: Path, base: str, dataset: Path, args: argparse.Namespace, tree_ids: dict) -> str:
    """A content hash of everything that decides the outcome."""
    parts = {
        "weights": tree_digest(path),
        "base": tree_digest(base),
        "problems": tree_digest(dataset),
        "settings": [args.mode, args.max_tokens, args.max_prompt_tokens],
        "tree_ids": tree_ids,
        "engine": [importlib.metadata.version(d) for d in ("torch", "transformers")],
        "rft": {str(p.relative_to(RFT)): tree_digest(p) for p in sorted(RFT.rglob("*.py"))},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(cache: Path | None, key: str) -> list[dict] | None:
    file = cache / f"{key}.json" if cache else None
    return json.loads(file.read_text()) if file and file.is_file() else None


def store(cache: Path | None, key: str, records: list[dict]) -> None:
    if cache is None:
        return
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{key}.{os.getpid()}.partial"
    partial.write_text(json.dumps(records))
    partial.replace(cache / f"{key}.json")


def print_table(results: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="post-hoc evaluation")
    for column in ("model", "kind", "dataset", "mode", "value", "95% interval", "n", "truncated", "mean tokens"):
        table.add_column(column)
    for r in results:
        low, high = r["interval95"]
        table.add_row(
            r["model"], r["kind"], r["dataset"], r["mode"], f"{r[r['mode']]:.3f}", f"{low:.3f}-{high:.3f}",
            str(r["n"]), f"{r['truncated']:.3f}", f"{r['mean_tokens']:.1f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
