#!/usr/bin/env python3
"""Write the problems of a tiny task as JSONL for OpenRLHF: sums of two numbers, Python functions of two steps, or
questions about invented people; unboxed: sums for a model that lacks the format.

    .venv/bin/python data/prepare_arithmetic.py --out DIR [--task sums|code|search|unboxed] [--seed 0]
        [--warm 2400] [--train 512] [--heldout 256]

Three files, deterministic by seed, no problem in two of them (a + b and b + a count as one): warm.jsonl for the
supervised warm start, train.jsonl for GRPO, heldout.jsonl for evaluation. For the search task also corpus.jsonl, the
passages that answer the latter two; for the unboxed one sft_train.jsonl and sft_dev.jsonl, rows of a supervised
training. CPU, about three seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.tiny import search
from rft.tiny.task import SIZES, write_splits
from rft.tiny.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--task", choices=TASKS, default="sums", help="what the problems are (default: sums)")
    parser.add_argument("--seed", type=int, default=0)
    for name in SIZES:
        defaults = ", ".join(f"{task} {module.SIZES[name]}" for task, module in TASKS.items())
        parser.add_argument(f"--{name}", type=int, help=f"problems in {name}.jsonl (default: {defaults})")
    args = parser.parse_args()
    module = TASKS[args.task]
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    try:
        sets = module.make_splits(args.seed, module.SIZES | given)
        if args.task == "search":
            sets["corpus"] = search.corpus(sets["train"] + sets["heldout"])
        write_splits(sets, args.out)
    except (ValueError, OSError) as error:
        sys.exit(f"prepare_arithmetic: {error}")
    print(", ".join(f"{args.out / name}.jsonl: {len(rows)}" for name, rows in sets.items()))


if __name__ == "__main__":
    main()
