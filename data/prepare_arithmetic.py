#!/usr/bin/env python3
"""Write the problems of a tiny task as JSONL for OpenRLHF: sums of two numbers, or Python functions of two steps.

    .venv/bin/python data/prepare_arithmetic.py --out DIR [--task sums|code] [--seed 0]
        [--warm 2400] [--train 512] [--heldout 256]

Three files, deterministic by seed, no problem in two of them (a + b and b + a count as one): warm.jsonl for the
supervised warm start, train.jsonl for GRPO, heldout.jsonl for evaluation. CPU, about three seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.tiny.task import SIZES, write_splits
from rft.tiny.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--task", choices=TASKS, default="sums", help="what the problems are (default: sums)")
    parser.add_argument("--seed", type=int, default=0)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"problems in {name}.jsonl (default {size})")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES}
    try:
        write_splits(TASKS[args.task].make_splits(args.seed, sizes), args.out)
    except (ValueError, OSError) as error:
        sys.exit(f"prepare_arithmetic: {error}")
    print(", ".join(f"{args.out / name}.jsonl: {size}" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
