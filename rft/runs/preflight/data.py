"""The problem files: format, what training and evaluation share, and whether the training file was decontaminated."""

import heapq
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rft.data.check import check_file, shared_faults
from rft.runs.inputs import check_prompts
from rft.runs.preflight import decontamination
from rft.runs.preflight.lines import NO_GO, WARN, Line, lines

LONGEST = 32  # prompts whose tokens are counted, those of the longest lines


class Prompts(NamedTuple):
    """What the run will read: lines of the report, prompts an episode (None: unknown), evaluation prompts, samples."""

    lines: list[Line]
    count: int | None
    eval_count: int
    longest: list


def read_prompts(args: Namespace, also_evaluated: str = "") -> Prompts:
    """Check `--prompt_data`, `--eval_dataset` and the sets of other evaluations, which the loop does not see.

    Only JSONL files are looked into, of several separated by commas each.
    """
    training, in_loop = local_files(args.prompt_data), local_files(args.eval_dataset)
    evaluation = in_loop | local_files(also_evaluated)
    if not args.prompt_data:
        return Prompts([Line("data", NO_GO, "no training prompts", "--prompt_data FILE.jsonl")], None, 0, [])
    others = [name for name, path in (training | evaluation).items() if path is None]
    faults = [
        Line("data", WARN, f"{name} is no JSONL file: not checked", "--prompt_data FILE.jsonl") for name in others
    ]
    trained_on, evaluated_on = ([path for path in found.values() if path] for found in (training, evaluation))
    hashes, counts = {}, {}
    by_trainer = {path for path in (training | in_loop).values() if path}
    for path in dict.fromkeys([*trained_on, *evaluated_on]):
        # Other evaluations apply the chat template always.
        found, hashes[path] = format_faults(path, args, args.apply_chat_template or path not in by_trainer)
        faults += found
        counts[path] = count_lines(path)
    sound = not any(fault.verdict == NO_GO for fault in faults)
    # Blending by probability repeats datasets until all are exhausted: no count that a sum would give.
    known = sound and None not in training.values() and args.prompt_data_probs is None
    count = min(sum(counts[path] for path in training.values()), int(args.max_samples)) if known else None
    eval_count = sum(counts[path] for path in in_loop.values() if path)
    measured = f"{'?' if count is None else count} training prompts, {eval_count} for evaluation"
    if outside := sum(counts[path] for path in evaluated_on) - eval_count:
        measured += f" in the loop, {outside} outside it"
    result = lines("data", faults, measured)
    if sound:
        result += comparisons(trained_on, evaluated_on, hashes, others)
    longest = longest_prompts(trained_on, args.input_key) if sound else []
    return Prompts(result, count, eval_count, longest)


def local_files(names: str | None) -> dict[str, Path | None]:
    """Each dataset of a comma-separated option, and its path where it is a JSONL file."""
    found = {}
    for name in filter(None, (names or "").split(",")):
        path = Path(name.strip())
        found[name.strip()] = path if path.suffix == ".jsonl" else None
    return found


def format_faults(path: Path, args: Namespace, templated: bool) -> tuple[list[Line], dict[str, int]]:
    """Faults of one file, and the hashes of its problems where its fields are ours."""
    hashes = {}
    if args.input_key == "input" and args.label_key == "label":
        faults, hashes = check_file(path)
        if faults:
            more = [f"and {len(faults) - 3} more"] if len(faults) > 3 else []
            repair = f".venv/bin/python -m rft.data check {path}"
            return [Line("data", NO_GO, fault, repair) for fault in faults[:3] + more], hashes
    try:
        check_prompts(path, args.input_key, args.label_key, templated)
    except ValueError as error:
        return [Line("data", NO_GO, str(error), f"correct {path}, --input_key or --label_key")], {}
    return [], hashes


def count_lines(path: Path) -> int:
    """Lines of a file; 0 where there is none, which is a fault of its own."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def comparisons(
    training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]], unread: list[str]
) -> list[Line]:
    """What training and evaluation share, word for word or nearly."""
    found = overlaps(training, evaluation, hashes, unread)
    return found + (decontamination.check(training, evaluation, hashes) if training and evaluation else [])


def overlaps(
    training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]], unread: list[str]
) -> list[Line]:
    """Problems that both have. Files that could not be read are compared with nothing, and said so."""
    if not evaluation and not unread:
        return [Line("overlap", WARN, "no evaluation set", "--eval_dataset FILE.jsonl --eval_steps N")]
    found = list(overlap_lines(training, evaluation, hashes))
    if unread:
        measured = f"{', '.join(unread)} not compared: no JSONL file, so never read"
        found.append(Line("overlap", WARN, measured, "name JSONL files (docs/data.md), which can be compared"))
    return lines("overlap", found, "no problem in both training and evaluation")


def overlap_lines(training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]]) -> Iterator[Line]:
    """Problems that are trained on and evaluated on."""
    if not all(hashes[path] for path in [*training, *evaluation]):
        yield Line("overlap", WARN, "not compared: fields other than input and label", "rename them")
        return
    trained_on = {path.resolve() for path in training}
    for path in evaluation:
        if path.resolve() in trained_on:
            yield Line("overlap", NO_GO, f"{path} is trained on and evaluated on", "name another file")
            continue
        shared = [f for other in training for f in shared_faults({other: hashes[other], path: hashes[path]})]
        if shared:
            repair = decontamination.maker(training[0], [path])
            yield Line("overlap", NO_GO, f"{len(shared)} shared problems; {shared[0]}", repair)


def longest_prompts(paths: list[Path], key: str) -> list:
    """The prompts of the longest lines, text or chat messages; only those lines are parsed."""
    lines_of_all = (line for path in paths for line in path.open("rb"))
    return [json.loads(line)[key] for line in heapq.nlargest(LONGEST, lines_of_all, key=len)]
