#!/usr/bin/env python3
"""Make the probe sets: in-distribution (200, from the RL pool), out-of-distribution (200 and 1,000), AIME held-out.

    .venv/bin/python data/make_probe_sets.py --source math_test.json --source gsm8k.json --source aime.json --out DIR
    .venv/bin/python data/make_probe_sets.py --pool sft_rl_pool.jsonl --exclude trained.jsonl --out DIR

The OOD probes are 85% MATH of level 4-5, the rest in equal parts from the other files; 200 is part of 1,000. Make them
first, and pass them to prepare_sft_data.py --eval-set, so that training has none of them. CPU, seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.data.probes import make_probe_sets
from rft.data.row_files import command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, action="append", default=[], metavar="FILE", help="MATH, GSM8K, AIME …")
    parser.add_argument("--pool", type=Path, metavar="FILE", help="RL pool for the ID probe")
    parser.add_argument(
        "--exclude",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="what will be trained on: no part of the ID probe",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=42)
    return command("make_probe_sets", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    manifest = make_probe_sets(args.source, args.pool, args.exclude, args.seed, args.out)
    for reason, count in manifest["dropped"].items():
        print(f"left out {count:,}: {reason}")
    for name, entry in manifest["files"].items():
        shares = ", ".join(f"{source} {count}" for source, count in sorted(entry["datasources"].items()))
        print(f"{args.out / name}: {entry['rows']:,} problems ({shares}), sha256 {entry['sha256'][:16]}")


if __name__ == "__main__":
    sys.exit(main())
