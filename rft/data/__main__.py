"""Make and check problem files: `.venv/bin/python -m rft.data make --out DIR`, `… check FILE …`."""

import argparse
import sys
from pathlib import Path

from rft.data import make
from rft.data.check import apart_faults, check_file
from rft.data.code import make as code
from rft.data.reward_trial import try_reward
from rft.data.row_files import MANY
from rft.data.search import corpus
from rft.data.search import make as search

TASKS = {"math": make.run, "code": code.run, "search": search.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m rft.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="check JSONL problem files; exit status 2 where something is wrong")
    check.add_argument("file", type=Path, nargs="+")
    check.add_argument("--disjoint", action="store_true", help="also require that no two files share a problem")
    check.add_argument("--reward", type=Path, metavar="FILE.py", help="also call this reward on the first problems")
    making = commands.add_parser("make", help="make every problem file of a task, from the hub or --from")
    making.add_argument("--task", choices=sorted(TASKS), default="math", help="default: math")
    make.add_options(making)
    code.add_options(making.add_argument_group("with --task code"))
    search.add_options(making.add_argument_group("with --task search"))
    corpus.add_options(commands.add_parser("corpus", help="check or convert the corpus that a retriever searches"))
    args = parser.parse_args()
    return {"check": run_check, "make": run_make, "corpus": corpus.run}[args.command](args)


def run_make(args: argparse.Namespace) -> int:
    """Exit status 1 and one message where something is missing or wrong, 130 after Ctrl-C; then --out is as it was."""
    try:
        if args.task != "code" and (args.sanitized or args.verify):
            raise ValueError(f"found --sanitized or --verify with --task {args.task}, wanted neither; pass --task code")
        if args.task != "search" and args.protocol:
            raise ValueError(f"found --protocol with --task {args.task}, wanted it left out; pass --task search")
        TASKS[args.task](args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again, and what is downloaded is kept", file=sys.stderr)
        return 130
    return 0


def run_check(args: argparse.Namespace) -> int:
    hashes, faults, faulty = {}, [], []
    for path in args.file:
        found, hashes[path] = check_file(path)
        faults += found
        faulty += [path] if found else []
        if not found:
            print(f"{path}: {len(hashes[path]):,} problems, nothing wrong")
    if args.disjoint:
        apart = list(apart_faults(hashes, faulty))
        faults = [*faults[: MANY // 2], *apart, *faults[MANY // 2 :]]  # both kinds are seen where there are many
        if not apart:
            print(f"no problem in two of the {len(hashes)} files")
    if args.reward and not faulty:
        try:
            for trial in try_reward(args.reward, args.file[0]):
                right = f"{trial.right:g} for {trial.answer}, " if trial.answer else ""
                print(f"{args.reward}: reward {right}{trial.none:g} for no answer; {trial.where}")
        except ValueError as error:
            faults.append(str(error))
    for fault in faults[:MANY]:
        print(fault, file=sys.stderr)
    if len(faults) > MANY:
        print(f"and {len(faults) - MANY:,} more", file=sys.stderr)
    return 2 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
