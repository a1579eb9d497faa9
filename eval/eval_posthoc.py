#!/usr/bin/env python
"""Evaluate base models, merged models and LoRA adapters after training, each adapter through the sync that trained it.

An adapter is served on its base checkpoint by the trainer's own weight sync, never merged into MXFP4, and probed before
the first number. Samples are cached; a killed evaluation resumes, and a second run only grades. Programs are judged by
the code server at CODE_SERVER_URL, or by one that this command starts and ends.

    .venv/bin/python eval/eval_posthoc.py --model base=MODEL_DIR --model tuned=ADAPTER_DIR --dataset heldout.jsonl
    .venv/bin/python eval/eval_posthoc.py --model base=MODEL_DIR --task mbpp --mode sampling_pass@8 --output mbpp.json

CPU or GPU; starting the engine takes most of the time of a small evaluation. Numbers: docs/evaluation.md.
"""

import argparse
import sys
from pathlib import Path

from rft.evals import cli
from rft.evals.models import checked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, type=cli.named_path, metavar="NAME=PATH")
    cli.add_dataset_options(parser)
    cli.add_sampling_options(parser)
    parser.add_argument("--noise-floor", action="store_true", help="evaluate the first model twice (A/A)")
    parser.add_argument("--merge", choices=("bf16",), help="also write each adapter merged into bf16, and check it")
    parser.add_argument("--merge-output", type=Path, metavar="DIR", help="where --merge writes DIR/NAME")
    cli.add_output_options(parser)
    args = parser.parse_args()
    return cli.guarded("eval_posthoc", run, args)


def run(args: argparse.Namespace) -> int:
    from rft.evals.run import evaluate

    if bool(args.merge) != bool(args.merge_output):
        raise ValueError("found one of --merge and --merge-output; wanted both or none")
    settings = cli.settings(args, noise_floor=args.noise_floor)
    settings.drawn()
    datasets = cli.datasets(args)
    models = checked(args.model, args.base)
    cli.require_ready(models, datasets, args)
    if args.merge:
        from rft.evals.merge import merge_and_check, require_new

        adapters = [model for model in models if model.kind == "adapter"]
        for model in adapters:
            require_new(args.merge_output / model.name)
        for model in adapters:
            merge_and_check(model, args.merge_output / model.name, datasets[0], settings)
    results = evaluate(models, datasets, settings)
    cli.report(results, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
