"""The problem files of the code task by one command: MBPP and HumanEval, apart from each other, published together."""

import argparse
from collections import Counter
from functools import partial
from pathlib import Path

from rft.data import hub, made
from rft.data.code import copies, humaneval, mbpp, verified
from rft.data.code.tasks import Task, task_row
from rft.data.row_files import write_rows, written_together
from rft.data.sets import Input

FOLDER = "code"  # in the launchers' DATA_ROOT
MANIFEST = "code_manifest.json"
TRAIN, HUMANEVAL = "mbpp_train.jsonl", "humaneval.jsonl"
TRAIN_MANIFEST = f"{TRAIN}.manifest.json"  # what preflight asks whether the training file is decontaminated
EVALUATED = ("mbpp_validation.jsonl", "mbpp_test.jsonl", HUMANEVAL)


def make(out: Path, given: Path | None, sanitized: bool, verify: bool, force: bool) -> tuple[dict, bool]:
    """Every problem file of the code task in `out` (`made.make`).

    Args:
        given: a file of MBPP, or a folder with it; None to fetch it from the hub (`rft.data.hub`).
        sanitized: take the sanitised part of MBPP from the hub or a folder, not all of it.
        verify: have the reference solutions judged; tasks whose solution fails are not trained on.
    """
    inputs = mbpp.match(given, sanitized) if given else None
    package = humaneval.identity()
    settings = {"from": "files" if given else "hub", "sanitized": sanitized, "verify": verify, "humaneval": package}

    def fetch() -> list[Input]:
        return mbpp.of_subset(hub.fetch(out, mbpp.HUB), sanitized)

    return made.make(out, MANIFEST, settings, inputs, fetch, partial(build, settings=settings), force)


def build(stage: Path, inputs: list[Input], settings: dict) -> dict:
    """Write every file below `stage`; return the manifest."""
    sets = {f"mbpp_{split}.jsonl": tasks for split, tasks in mbpp.read_mbpp(inputs).items() if tasks}
    if TRAIN not in sets:
        raise ValueError(f"found no task of MBPP's train split in {inputs[0].path}, wanted one; fetch the set again")
    sets[HUMANEVAL] = humaneval.read_humaneval()
    verification = judged([task for tasks in sets.values() for task in tasks]) if settings["verify"] else None
    evaluated = {name: sets[name] for name in EVALUATED if name in sets}
    sets[TRAIN], rejected, dropped = trained(sets[TRAIN], evaluated, verification)
    of_mbpp, package = made.origin(inputs), settings["humaneval"]
    of_humaneval = {"source": f"{package['package']} {package['version']}", "revision": ""}
    with written_together(stage, [*sets, TRAIN_MANIFEST, MANIFEST]) as paths:
        entries = {}
        for name, tasks in sets.items():
            rows = (task_row(task, "humaneval" if name == HUMANEVAL else "mbpp") for task in tasks)
            drops = {"dropped": dropped if name == TRAIN else {}}
            entries[name] = write_rows(paths[name], rows) | drops | (of_humaneval if name == HUMANEVAL else of_mbpp)
        entries[TRAIN_MANIFEST] = made.write_decontamination(
            paths[TRAIN_MANIFEST], TRAIN, entries, list(evaluated), copies.settings(), rejected
        )
        return made.write_manifest(paths[MANIFEST], settings, inputs, entries, verification=verification)


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
    made.show(manifest, out)
    if verification := manifest["verification"]:
        failed = [f"{name}: {fault}" for name, fault in verification["failed"].items()]
        passed = f"{verification['judged'] - len(failed)} of {verification['judged']} reference solutions pass"
        print("\n".join([f"{passed}, judged at isolation level {verification['isolation']}", *failed]))
    state = "complete already, every hash checked" if is_complete else "complete"
    print(f"{out}: {state}; no training task repeats one of an evaluation set")
