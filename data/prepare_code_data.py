#!/usr/bin/env python3
"""Write the code task's problems as JSONL: MBPP in its published splits and HumanEval, or tasks of your own.

    .venv/bin/python data/prepare_code_data.py --out .cache/rft/data [--from FILE|FOLDER] [--sanitized] [--verify]
    .venv/bin/python data/prepare_code_data.py --tasks FILE.jsonl --out FILE.jsonl [--verify]

The first writes DIR/code/mbpp_{prompt,train,validation,test}.jsonl, humaneval.jsonl and manifests; MBPP comes from the
hub, at the commit that DIR/code/data_sources.json records, or from --from. The second turns {"prompt", "tests"} a line
into problems (docs/own_task.md). CPU: ten seconds, a minute more with --verify, which judges the reference solutions.
"""

import argparse
import sys
from pathlib import Path

from rft.data.code import make, own
from rft.data.row_files import command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="PLACE", help="DATA_ROOT, or with --tasks a file")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--from", type=Path, dest="given", metavar="PLACE", help="file of MBPP, or a folder with it")
    given.add_argument("--tasks", type=Path, metavar="FILE.jsonl", help="your own tasks")
    make.add_options(parser)
    parser.add_argument("--force", action="store_true", help="replace files in --out that differ")
    return command("prepare_code_data", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    if args.tasks is None:
        make.run(args)
        return
    if args.sanitized:
        raise ValueError("found --sanitized with --tasks, wanted one of both; --sanitized is for MBPP")
    count, level = own.make(args.tasks, args.out, args.verify, args.force)
    judged = f", their solutions pass at isolation level {level}" if level else ""
    print(f"{args.out}: {count:,} problems{judged}")


if __name__ == "__main__":
    sys.exit(main())
