#!/usr/bin/env python
"""Run presets of lm-evaluation-harness on a base model, a merged model or an adapter, and print them beside baselines.

Adapters are served by the trainer's own sync and probed, as in eval_posthoc.py. Tasks download their data from the hub
unless it is cached. Needs the optional extra lm-eval, which set-up installs.

    .venv/bin/python eval/eval_lm_eval.py --model tuned=ADAPTER_DIR --preset gsm8k_8shot --output lm_eval.json
"""

import argparse
import sys
from pathlib import Path

from rft.evals import cli, harness
from rft.evals.models import checked
from rft.record.files import replace_json

PROBES = ("Question: What is 17 + 25?\nAnswer:", "The capital of France is", "def add(a, b):\n", "2 + 2 = 4. 3 + 5 =")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, type=cli.named_path, metavar="NAME=PATH")
    parser.add_argument("--preset", action="append", default=[], choices=list(harness.PRESETS))
    parser.add_argument("--task", action="append", default=[], metavar="NAME[:SHOTS]", help="any other generative task")
    parser.add_argument("--include", metavar="DIR", help="folder with further task files")
    parser.add_argument("--limit", type=int, help="problems of each task; the number is then not comparable")
    parser.add_argument("--chat", action="store_true", help="use the chat template, and grade the final message only")
    parser.add_argument("--confirm-run-unsafe-code", action="store_true", help="mbpp and humaneval run model code")
    parser.add_argument("--max-model-len", type=int, default=harness.MAX_MODEL_LEN)
    parser.add_argument("--base", type=Path, metavar="DIR", help="base of the adapters, where it has moved")
    parser.add_argument("--reference", choices=("cpu", "cuda", "none"), default="cpu")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    cli.add_trust_option(parser)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return cli.guarded("eval_lm_eval", run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    runs = {name: harness.PRESETS[name] for name in args.preset}
    for text in args.task:
        name, _, shots = text.partition(":")
        runs[text] = harness.Preset(name, int(shots) if shots else None, {})
    if not runs:
        raise ValueError("found no task; wanted --preset or --task")
    risky = [name for name, preset in runs.items() if preset.runs_code]
    if risky and not args.confirm_run_unsafe_code:
        raise ValueError(f"{', '.join(risky)}: runs code that the model wrote; pass --confirm-run-unsafe-code")
    harness.require_lm_eval(runs.values())
    models = checked(args.model, args.base)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    results = measure(models, runs, args)
    show(results, runs)
    if args.output:
        replace_json(args.output, results)
    return 0


def measure(models: list, runs: dict, args: argparse.Namespace) -> list[dict]:
    """One dict a model and preset: what was run and what lm_eval measured."""
    from lm_eval.tasks import TaskManager

    from rft.evals.models import adapter_room
    from rft.evals.prompts import load_tokenizer
    from rft.evals.server import Server

    prompts = {}
    for base in {model.base for model in models}:
        tokenizer = load_tokenizer(base)
        prompts[base] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROBES]
    reference = None if args.reference == "none" else args.reference
    rooms = {base: adapter_room(models, base) for base in prompts}
    server = Server(args.max_model_len, prompts, rooms, "exact", reference, args.tensor_parallel_size)
    tasks, results = TaskManager(include_path=args.include), []
    try:
        for model in sorted(models, key=lambda model: (str(model.base), model.kind == "adapter")):
            llm, request, served = server.serve(model)
            for name, preset in runs.items():
                options = {"limit": args.limit, "task_manager": tasks}
                options["confirm_run_unsafe_code"] = args.confirm_run_unsafe_code
                found = harness.run_task(llm, request, preset.task, preset.shots, args.chat, **options)
                about = {"model": model.name, "kind": model.kind, "preset": name, "task": preset.task}
                about |= {"shots": preset.shots, "chat": args.chat, "limit": args.limit, "temperature": 0.0}
                results.append(about | {"seed": harness.SEED, "served": served, "results": found})
    finally:
        server.close()
    return results


def show(results: list[dict], runs: dict) -> None:
    """One row a model and metric, beside the published score."""
    from rich.table import Table

    from rft.evals.table import wide_console

    table = Table(title="lm_eval, greedy (baseline: Qwen3-1.7B-Base)")
    for column in ("model", "kind", "preset", "task", "metric", "percent", "standard error", "baseline"):
        table.add_column(column, overflow="fold")
    for result in results:
        for task, metrics in result["results"].items():
            for metric, value in metrics.items():
                if "_stderr," in metric:
                    continue
                error = metrics.get(metric.replace(",", "_stderr,", 1))
                published = runs[result["preset"]].baseline.get(metric) if task == result["task"] else None
                table.add_row(
                    result["model"], result["kind"], result["preset"], task, metric, f"{100 * value:.2f}",
                    "-" if error is None else f"{100 * error:.2f}", "-" if published is None else f"{published:.2f}",
                )  # fmt: skip
    wide_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
