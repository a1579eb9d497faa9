#!/usr/bin/env python3
"""Choose and order the prompts of a run: by pass-rate band, by an order file, mixed from several files by weight.

    .venv/bin/python data/make_curriculum.py --dataset pool.jsonl --pass-rates rates.jsonl --band 0.1 0.9 --out c.jsonl
    .venv/bin/python data/make_curriculum.py --dataset math.jsonl=3 --dataset gsm8k.jsonl=1 --size 4000 --out m.jsonl

Writes plain JSONL for --prompt_data, FILE.order.txt (its ids, one a line) and FILE.manifest.json. CPU, seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.data.curriculum import ORDERS, Part, make_curriculum
from rft.data.row_files import command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dataset", type=weighted, action="append", required=True, metavar="FILE[=WEIGHT]", help="weight 1 by default"
    )
    parser.add_argument("--pass-rates", type=Path, metavar="FILE", help="from data/estimate_pass_rates.py")
    parser.add_argument("--band", type=float, nargs=2, default=(0.0, 1.0), metavar=("LOW", "HIGH"), help="inclusive")
    parser.add_argument("--order", default="file", help=f"{', '.join(ORDERS)}, or a file of ids, one a line")
    parser.add_argument("--size", type=int, help="prompts in all; default: as many as the weights allow")
    parser.add_argument("--seed", type=int, default=42, help="of the order 'random', and among equal pass rates")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    return command("make_curriculum", lambda: run(parser.parse_args()))


def weighted(text: str) -> Part:
    path, separator, weight = text.rpartition("=")
    if not separator:
        return Part(Path(text), 1.0)
    try:
        return Part(Path(path), float(weight))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted FILE or FILE=WEIGHT") from None


def run(args: argparse.Namespace) -> None:
    if tuple(args.band) != (0.0, 1.0) and not args.pass_rates:
        raise ValueError("found --band without pass rates, wanted them; pass --pass-rates FILE")
    if args.size is not None and args.size < 1:
        raise ValueError(f"found --size {args.size}, wanted at least 1; correct it")
    band = (args.band[0], args.band[1])
    manifest = make_curriculum(args.dataset, args.pass_rates, band, args.order, args.size, args.seed, args.out)
    for part in manifest["parts"]:
        print(f"{part['name']}: {part['eligible']:,} of {part['rows']:,} problems pass, weight {part['weight']:g}")
    entry = manifest["files"][args.out.name]
    print(f"{args.out}: {entry['rows']:,} prompts, sha256 {entry['sha256'][:16]}")


if __name__ == "__main__":
    sys.exit(main())
