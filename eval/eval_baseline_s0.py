#!/usr/bin/env python
"""Evaluate the base model before training: the number that every checkpoint is compared with.

Besides the accuracy it reports what decides how to train: whether the model boxes its answers, whether responses are
cut, and whether some problems are solved and others not.

    .venv/bin/python eval/eval_baseline_s0.py --model MODEL_DIR --dataset ood_probe.jsonl \\
        --output RUN/evals/baseline_s0.json
"""

import argparse
import sys
from pathlib import Path

from rft.evals import cli
from rft.evals.models import checked

NAME = "s0"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="MODEL_DIR")
    cli.add_dataset_options(parser)
    cli.add_sampling_options(parser)
    parser.add_argument("--noise-floor", action="store_true", help="evaluate it twice (A/A)")
    cli.add_output_options(parser)
    return cli.guarded("eval_baseline_s0", run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    from rft.evals.run import evaluate

    settings = cli.settings(args, noise_floor=args.noise_floor)
    settings.drawn()
    (model,) = checked([(NAME, args.model)])
    if model.kind == "adapter":
        raise ValueError(f"found an adapter in {args.model}; the baseline is the model before training; pass its base")
    datasets = cli.datasets(args)
    cli.require_ready([model], datasets, args)
    results = evaluate([model], datasets, settings)
    cli.report(results, args)
    for result in results:
        for line in advice(result):
            print(f"{result['dataset']}, {result['mode']}: {line}")
    return 0


def advice(result: dict) -> list[str]:
    """What the baseline says about the training to come. Thresholds: the smoke test of docs/sources.md."""
    cut, value = result["truncated"], result[result["mode"]]
    share, what = result.get("has_boxed"), "boxed"
    if share is None:  # the answer is the program, or what a conversation ends with
        share, what = 1 - result["no_answer"], "answered" if "conversations" in result else "with a program"
    lines = [
        f"{100 * share:.1f}% {what}: {'no SFT needed' if share >= 0.95 else 'below 95%, so train the format first'}"
    ]
    if result.get("conversations", {}).get("no_search") == 1:
        lines.append("no search at all: train the format first")
    if cut > 0.5:
        lines.append(f"{100 * cut:.1f}% truncated: raise --max-tokens before comparing anything")
    if value in (0, 1):
        lines.append(
            f"accuracy {value:.0f}: no problem tells checkpoints apart; use a {'hard' if value else 'easi'}er set"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
