#!/usr/bin/env python3
"""Rows for supervised training from a model's own right answers, as an evaluation has sampled them.

    .venv/bin/python eval/eval_posthoc.py --model base=DIR --dataset pool.jsonl --mode sampling_pass@8 \\
        --output pool.json
    .venv/bin/python data/make_sft_from_samples.py --evaluation pool.json --dataset pool.jsonl \\
        --eval-set probe_set_1000_ood.jsonl --eval-set aime_eval.jsonl --out sft_samples.jsonl

Kept are samples that are right, whole, boxed, and consist of an analysis and a final message; of each problem the
shortest, or a random one. Problems that an --eval-set has are left out. Writes FILE.manifest.json too. CPU, seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.data.row_files import command
from rft.data.sft_samples import CHOICES, make_rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluation", type=Path, required=True, metavar="FILE.json", help="of eval_posthoc.py")
    parser.add_argument("--dataset", type=Path, required=True, metavar="FILE.jsonl", help="what was evaluated")
    sets = parser.add_mutually_exclusive_group(required=True)
    sets.add_argument(
        "--eval-set", type=Path, action="append", default=[], metavar="FILE", help="leave its problems out"
    )
    sets.add_argument("--no-eval-set", action="store_true", help="nothing to decontaminate against")
    parser.add_argument("--choose", choices=CHOICES, default="shortest", help="which right samples of a problem")
    parser.add_argument("--per-problem", type=int, default=1, help="samples of a problem at most")
    parser.add_argument("--seed", type=int, default=42, help="of --choose random")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    return command("make_sft_from_samples", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    manifest = make_rows(
        args.evaluation, args.dataset, args.eval_set, args.choose, args.per_problem, args.seed, args.out
    )
    for reason, count in manifest["dropped"].items():
        print(f"left out {count:,}: {reason}")
    entry = manifest["files"][args.out.name]
    print(f"{args.out}: {entry['rows']:,} rows of {manifest['samples']:,} samples, sha256 {entry['sha256'][:16]}")


if __name__ == "__main__":
    sys.exit(main())
