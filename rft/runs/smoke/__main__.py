"""Go or no-go for a cluster's nodes: the parts of the job that `bash launch/slurm.sh smoke` submits.

.venv/bin/python -m rft.runs.smoke node DIR [--gpus N] [PLACE …]   on each node: its checks, into DIR/HOST.json
.venv/bin/python -m rft.runs.smoke reduce DIR                      on each node at once: an all-reduce over all of them
.venv/bin/python -m rft.runs.smoke page DIR --nodes N              the page; exit status 0 go, 1 no-go
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from rft.record.files import replace_json
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line
from rft.runs.smoke.checks import check_all
from rft.runs.smoke.reduce import REPAIR, all_reduce


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("node", "reduce", "page"))
    parser.add_argument("folder", type=Path, metavar="DIR", help="which all nodes share")
    parser.add_argument("places", nargs="*", type=Path, metavar="PLACE", help="folders that runs write to")
    parser.add_argument("--gpus", type=int, help="that each node must have")
    parser.add_argument("--nodes", type=int, default=1, help="that must have answered")
    args = parser.parse_args()
    if args.part == "page":
        page, go = judge(args.folder, args.nodes)
        print(page)
        return 0 if go else 1
    if args.part == "reduce":
        os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0"))
        found = [all_reduce()]
    else:
        found = list(check_all(args.places, None if os.environ.get("RFT_STACK", "").startswith("cpu") else args.gpus))
    replace_json(args.folder / f"{socket.gethostname()}.{args.part}.json", {"lines": found})
    return 0


def judge(folder: Path, nodes: int) -> tuple[str, bool]:
    """(page, go) of what the nodes have left in `folder`; equal lines of several nodes are one line."""
    hosts: dict[str, list[Line]] = {}
    for file in sorted(folder.glob("*.node.json")) + sorted(folder.glob("*.reduce.json")):
        rows = json.loads(file.read_text(encoding="utf-8"))["lines"]
        hosts.setdefault(file.name.split(".")[0], []).extend(Line(*row) for row in rows)
    rows: dict[Line, list[str]] = {}
    for host, lines in hosts.items():
        for line in lines:
            # A rate differs by node and says nothing: the first one stands for those that are good.
            same = next((row for row in rows if row[:2] == line[:2] and line.verdict == GO and alike(row, line)), line)
            rows.setdefault(same, []).append(host)
    if len(hosts) != nodes:
        measured = f"{len(hosts)} of {nodes} have answered: {' '.join(hosts)}"
        rows[Line("nodes", NO_GO, measured, "read the job's log above; SBATCH_EXCLUDE=NODE leaves one out")] = []
    if not any(line.name == "all-reduce" for line in rows):
        rows[Line("all-reduce", NO_GO, "no rank has ended", REPAIR)] = []
    width = max(len(line.name) for line in rows)
    text = []
    for line, at in sorted(rows.items(), key=lambda row: (GO, WARN, NO_GO).index(row[0].verdict)):
        text.append(f"{line.verdict:6} {line.name:{width}}  {line.measured}{'  [' + ' '.join(at) + ']' if at else ''}")
        if line.repair:
            text.append(f"{'':7}{'':{width}}  repair: {line.repair}")
    go = all(line.verdict != NO_GO for line in rows)
    text.append("GO" if go else "NO-GO")
    return "\n".join(text), go


def alike(one: Line, other: Line) -> bool:
    """Whether two lines of one check differ in a measured number at most."""
    return one.measured == other.measured or one.name.startswith("writes ") or one.name == "ports"


if __name__ == "__main__":
    sys.exit(main())
