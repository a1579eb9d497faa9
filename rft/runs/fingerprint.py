"""What decides a run's numbers on this machine, and where two machines differ; used by launch/spare.sh.

    … | .venv/bin/python -m rft.runs.fingerprint DATA_ROOT    names of data files on stdin, NUL behind each; prints JSON
    .venv/bin/python -m rft.runs.fingerprint --compare HERE.json SPARE.json    exit status 1: each difference named

launch/spare.sh also hands this file's text to the spare's Python, in the spare's checkout: a spare whose code is older
can then still be compared.
"""

import argparse
import json
import sys
from pathlib import Path

from rft import overlay
from rft.record.digest import tree_digest
from rft.runs.manifest import git_state, versions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", nargs="?", type=Path)
    parser.add_argument("--compare", nargs=2, metavar="FILE", type=Path)
    args = parser.parse_args()
    if not args.compare:
        names = [name for name in sys.stdin.read().split("\0") if name]
        print(json.dumps(fingerprint(args.data_root, names)))
        return 0
    here, there = (json.loads(path.read_text()) for path in args.compare)
    problems = differences(here, there)
    for problem in problems:
        print(f"differs: {problem}")
    if not problems:
        ids = ", ".join(f"{name} {id_}" for name, id_ in here["tree_id"].items())
        counts = f"{len(here['data'])} data files, {len(here['versions'])} packages"
        print(f"equal: commit {here['git']['commit'][:10]}, {counts}, tree_id {ids}")
    return 1 if problems else 0


def fingerprint(data_root: Path, names: list[str]) -> dict:
    """`git` (commit and dirty flag), `data` (name -> digest, None where there is none), `versions`, `tree_id`."""
    data = {name: tree_digest(data_root / name) if (data_root / name).exists() else None for name in names}
    return {"git": git_state(), "data": data, "versions": versions(), "tree_id": overlay.tree_ids()}


def differences(here: dict, there: dict) -> list[str]:
    """One text a difference between two fingerprints; also where neither tree is what a run may start on."""
    found = []
    if here["git"]["commit"] != there["git"]["commit"] or here["git"]["commit"] is None:
        found.append(f"commit: {here['git']['commit']} here, {there['git']['commit']} on the spare")
    for where, side in (("here", here), ("on the spare", there)):
        if side["git"]["dirty"]:
            found.append(f"uncommitted changes {where}")
    for name, digest in here["data"].items():
        if there["data"][name] != digest:
            state = "is missing" if there["data"][name] is None else "has another content"
            found.append(f"data: {name} {state} on the spare")
    for name in sorted(here["versions"].keys() | there["versions"].keys()):
        versions_ = [side["versions"].get(name, "not installed") for side in (here, there)]
        if versions_[0] != versions_[1]:
            found.append(f"version: {name} {versions_[0]} here, {versions_[1]} on the spare")
    for name in sorted(here["tree_id"].keys() | there["tree_id"].keys()):
        ids = [side["tree_id"].get(name, "missing") for side in (here, there)]
        if ids[0] != ids[1]:
            found.append(f"tree_id: {name} {ids[0]} here, {ids[1]} on the spare")
        elif ":" in ids[0]:  # a state, not a fingerprint
            found.append(f"tree_id: {name} is {ids[0]} on both")
    return found


if __name__ == "__main__":
    sys.exit(main())
