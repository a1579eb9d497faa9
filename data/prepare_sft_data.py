#!/usr/bin/env python3
"""Filter NuminaMath-1.5 into a supervised set, its development set and a pool of prompts for GRPO, as JSONL.

    .venv/bin/python data/prepare_sft_data.py --eval-set probe_set_200_ood.jsonl --eval-set aime_eval.jsonl --out DIR

Writes sft_train.jsonl, sft_dev.jsonl, sft_rl_pool.jsonl, sft_rl_pool_400.jsonl and sft_manifest.json; no problem is in
two of them or in an evaluation set. The same rows and seed give the same bytes. CPU; a few minutes for 900,000 rows.
"""

import argparse
import sys
from pathlib import Path

from rft.data.prepare import add_sizes, prepare, sizes_of
from rft.data.row_files import command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", default="AI-MO/NuminaMath-1.5", help="hub name, .parquet, .jsonl or .arrow file, or directory"
    )
    parser.add_argument("--revision", help="of the hub dataset; name one to get the same rows next year")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    add_sizes(parser)
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument(
        "--eval-set", type=Path, action="append", metavar="FILE", help="evaluation problems to keep out; repeat"
    )
    against.add_argument("--no-eval-set", action="store_true", help="nothing will be evaluated on: skip this stage")
    return command("prepare_sft_data", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    manifest = prepare(args.source, args.revision, args.eval_set or [], sizes_of(args), args.seed, args.out)
    for stage in manifest["stages"]:
        print(f"{stage['stage']:<18} {stage['remaining']:>9,}  {stage['keeps']}")
    for name, entry in manifest["files"].items():
        print(f"{args.out / name}: {entry['rows']:,} problems, sha256 {entry['sha256'][:16]}")


if __name__ == "__main__":
    sys.exit(main())
