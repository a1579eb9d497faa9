"""The problem files of the code task by one command: MBPP and HumanEval, apart from each other, published together."""

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path

from rft import __version__
from rft.data import hub
from rft.data.code import copies, humaneval, mbpp, verified
from rft.data.code.tasks import Task, task_row
from rft.data.made import (
    alone,
    complete,
    origin,
    place,
    read_manifest,
    require_replaceable,
    require_same,
    show,
    sources_of,
)
from rft.data.row_files import require_apart, write_rows, written_together
from rft.data.sets import Input
from rft.record.digest import file_sha256

FOLDER = "code"  # in the launchers' DATA_ROOT
MANIFEST = "code_manifest.json"
STAGE = ".making"
TRAIN, HUMANEVAL = "mbpp_train.jsonl", "humaneval.jsonl"
TRAIN_MANIFEST = f"{TRAIN}.manifest.json"  # what preflight asks whether the training file is decontaminated
EVALUATED = ("mbpp_validation.jsonl", "mbpp_test.jsonl", HUMANEVAL)


def make(out: Path, given: Path | None, sanitized: bool, verify: bool, force: bool) -> tuple[dict, bool]:
    """Every problem file of the code task in `out`, all or none.

    Args:
        given: a file of MBPP, or a folder with it; None to fetch it from the hub (`rft.data.hub`).
        sanitized: take the sanitised part of MBPP from the hub or a folder, not all of it.
        verify: have the reference solutions judged; tasks whose solution fails are not trained on.
        force: replace files in `out` that differ from what is made.

    Returns:
        The manifest, and whether it was there already, with every file as it says: then nothing has been read or made.

    Raises:
        ValueError: bad input, or `out` has files that differ. No problem file in `out` has changed then.
        OSError: the disk is full, or a place cannot be written.
    """
    inputs = mbpp.match(given, sanitized) if given else None
    if out.exists() and not out.is_dir():
        raise ValueError(f"found a file at {out}, wanted a folder to write to; pass another --out")
    out.mkdir(parents=True, exist_ok=True)
    package = humaneval.identity()
    settings = {"from": "files" if given else "hub", "sanitized": sanitized, "verify": verify, "humaneval": package}
    with alone(out):
        former = read_manifest(out / MANIFEST)
        if former and not force:
            require_same(out / MANIFEST, former, settings)
        if former and complete(out, former, settings, inputs):
            return former, True
        stage = out / STAGE
        shutil.rmtree(stage, ignore_errors=True)  # of a killed command
        try:
            inputs = inputs or mbpp.of_subset(hub.fetch(out, mbpp.HUB), sanitized)
            manifest = build(stage, inputs, settings)
            require_apart([out / name for name in manifest["files"]], [each.path for each in inputs])
            require_replaceable(out, manifest, [], force)
            place(stage, out, MANIFEST, manifest, [])
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return manifest, False


def build(stage: Path, inputs: list[Input], settings: dict) -> dict:
    """Write every file below `stage`; return the manifest."""
    sets = {f"mbpp_{split}.jsonl": tasks for split, tasks in mbpp.read_mbpp(inputs).items() if tasks}
    if TRAIN not in sets:
        raise ValueError(f"found no task of MBPP's train split in {inputs[0].path}, wanted one; fetch the set again")
    sets[HUMANEVAL] = humaneval.read_humaneval()
    verification = judged([task for tasks in sets.values() for task in tasks]) if settings["verify"] else None
    evaluated = {name: sets[name] for name in EVALUATED if name in sets}
    sets[TRAIN], rejected, dropped = trained(sets[TRAIN], evaluated, verification)
    of_mbpp, package = origin(inputs), settings["humaneval"]
    of_humaneval = {"source": f"{package['package']} {package['version']}", "revision": ""}
    with written_together(stage, [*sets, TRAIN_MANIFEST, MANIFEST]) as paths:
        entries = {}
        for name, tasks in sets.items():
            rows = (task_row(task, "humaneval" if name == HUMANEVAL else "mbpp") for task in tasks)
            drops = {"dropped": dropped if name == TRAIN else {}}
            entries[name] = write_rows(paths[name], rows) | drops | (of_humaneval if name == HUMANEVAL else of_mbpp)
        document = {
            "files": {TRAIN: entries[TRAIN]},
            "decontamination": {
                "settings": copies.settings(),
                "eval_sets": [
                    {"name": name, "sha256": entries[name]["sha256"], "problems": len(tasks)}
                    for name, tasks in evaluated.items()
                ],
                "rejected": rejected,
            },
        }
        paths[TRAIN_MANIFEST].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        entries[TRAIN_MANIFEST] = {"sha256": file_sha256(paths[TRAIN_MANIFEST])}
        manifest = {
            "settings": settings,
            "versions": {"rft": __version__},
            "sources": sources_of(inputs),
            "verification": verification,
            "files": entries,
        }
        paths[MANIFEST].write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def judged(tasks: list[Task]) -> dict:
    """How the reference solutions fare, for the manifest. Raises ValueError where too many fail."""
    print(f"judging {len(tasks):,} reference solutions", flush=True)
    level, failed = verified.failures(tasks)
    return {"isolation": level, "judged": len(tasks), "failed": failed}


def trained(
    tasks: list[Task], evaluated: dict[str, list[Task]], verification: dict | None
) -> tuple[list[Task], list[dict], Counter]:
    """Tasks to train on, what was rejected as a copy, and the drops by reason."""
    failed = verification["failed"] if verification else {}
    index = copies.index_of(task for tasks in evaluated.values() for task in tasks)
    kept, rejected, dropped = [], [], Counter()
    for task in tasks:
        if task.id in failed:
            dropped["solution fails its tests"] += 1
        elif copy := copies.find_copy(task, index):
            dropped[copy.reason] += 1
            rejected.append({"id": task.id, **copy._asdict()})
        else:
            kept.append(task)
    return kept, rejected, dropped


def add_options(parser: argparse._ActionsContainer) -> None:
    """Options of the code task beside `--out`, `--from` and `--force`."""
    parser.add_argument("--sanitized", action="store_true", help="MBPP's sanitised part, not all of it")
    parser.add_argument("--verify", action="store_true", help="have the reference solutions judged: about a minute")


def run(args: argparse.Namespace) -> None:
    """The command: a table of what was made."""
    out = args.out / FOLDER
    manifest, is_complete = make(out, args.given, args.sanitized, args.verify, args.force)
    show(manifest, out)
    if verification := manifest["verification"]:
        failed = [f"{name}: {fault}" for name, fault in verification["failed"].items()]
        passed = f"{verification['judged'] - len(failed)} of {verification['judged']} reference solutions pass"
        print("\n".join([f"{passed}, judged at isolation level {verification['isolation']}", *failed]))
    state = "complete already, every hash checked" if is_complete else "complete"
    print(f"{out}: {state}; no training task repeats one of an evaluation set")
