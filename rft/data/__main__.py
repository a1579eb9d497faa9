"""`.venv/bin/python -m rft.data check FILE …`: format checks of problem files, with line and field of what is wrong."""

import argparse
import sys
from pathlib import Path

from rft.data.check import check_file, shared_faults
from rft.data.row_files import MANY


def main() -> int:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m rft.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="check JSONL problem files; exit status 2 where something is wrong")
    check.add_argument("file", type=Path, nargs="+")
    check.add_argument("--disjoint", action="store_true", help="also require that no two files share a problem")
    args = parser.parse_args()
    hashes, faults = {}, []
    for path in args.file:
        found, hashes[path] = check_file(path)
        faults += found
        if not found:
            print(f"{path}: {len(hashes[path]):,} problems, nothing wrong")
    if args.disjoint:
        faults += shared_faults(hashes)
    for fault in faults[:MANY]:
        print(fault, file=sys.stderr)
    if len(faults) > MANY:
        print(f"and {len(faults) - MANY:,} more", file=sys.stderr)
    return 2 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
