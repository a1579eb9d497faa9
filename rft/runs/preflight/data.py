"""The problem files: format, what training and evaluation share, and whether the training file was decontaminated."""

import heapq
import json
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from rft.data.check import check_file, shared_faults
from rft.record.digest import file_sha256
from rft.runs.inputs import check_prompts
from rft.runs.preflight.lines import NO_GO, WARN, Line, lines

MANIFEST = "sft_manifest.json"  # of rft.data.prepare, which needs datasketch
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
    for path in dict.fromkeys([*trained_on, *evaluated_on]):
        found, hashes[path] = format_faults(path, args)
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
        result += overlap_lines(trained_on, evaluated_on, hashes)
        result += manifest_lines(trained_on, evaluated_on, hashes)
    longest = longest_prompts(trained_on, args.input_key) if sound else []
    return Prompts(result, count, eval_count, longest)


def local_files(names: str | None) -> dict[str, Path | None]:
    """Each dataset of a comma-separated option, and its path where it is a JSONL file."""
    found = {}
    for name in filter(None, (names or "").split(",")):
        path = Path(name.strip())
        found[name.strip()] = path if path.suffix == ".jsonl" else None
    return found


def format_faults(path: Path, args: Namespace) -> tuple[list[Line], dict[str, int]]:
    """Faults of one file, and the hashes of its problems where its fields are ours."""
    if args.input_key == "input" and args.label_key == "label":
        faults, hashes = check_file(path)
        more = [f"and {len(faults) - 3} more"] if len(faults) > 3 else []
        repair = f".venv/bin/python -m rft.data check {path}"
        return [Line("data", NO_GO, fault, repair) for fault in faults[:3] + more], hashes
    first_kind = list if args.apply_chat_template else str
    try:
        check_prompts(path, args.input_key, args.label_key, first_kind)
    except ValueError as error:
        return [Line("data", NO_GO, str(error), f"correct {path}, --input_key or --label_key")], {}
    return [], {}


def count_lines(path: Path) -> int:
    """Lines of a file; 0 where there is none, which is a fault of its own."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def overlap_lines(training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]]) -> list[Line]:
    """Problems that are trained on and evaluated on."""
    if not evaluation:
        return [Line("overlap", WARN, "no evaluation set", "--eval_dataset FILE.jsonl --eval_steps N")]
    if not all(hashes[path] for path in [*training, *evaluation]):
        return [Line("overlap", WARN, "not compared: fields other than input and label", "rename them")]
    faults = []
    for path in evaluation:
        shared = [f for other in training for f in shared_faults({other: hashes[other], path: hashes[path]})]
        if shared:
            repair = f".venv/bin/python data/prepare_sft_data.py --eval-set {path}"
            faults.append(Line("overlap", NO_GO, f"{len(shared)} shared problems; {shared[0]}", repair))
    return lines("overlap", faults, "no problem in both training and evaluation")


def manifest_lines(training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]]) -> list[Line]:
    """A manifest beside the training file that fits it, and names every evaluation set as decontaminated against.

    A part of a set that it names (the 200 problems of the 1,000) is as clean, where the complete set is beside it.
    """
    if not evaluation:
        return []  # which the overlap's line says
    digests = {path: file_sha256(path) for path in [*training, *evaluation]}
    faults = []
    for path in training:
        repair = ".venv/bin/python data/prepare_sft_data.py " + " ".join(f"--eval-set {p}" for p in evaluation)
        manifest = find_manifest(path)
        if manifest is None:
            measured = f"no manifest beside {path.name}: near-duplicates of the evaluation sets may be in it"
            faults.append(Line("decontamination", WARN, measured, repair))
            continue
        document = json.loads(manifest.read_text())
        if document["files"][path.name]["sha256"] != digests[path]:
            measured = f"{path.name} is not the file that {manifest.name} describes"
            faults.append(Line("decontamination", NO_GO, measured, "make the file again"))
            continue
        clean = clean_against(document, manifest.parent)
        missing = [p.name for p in evaluation if digests[p] not in clean and not is_part(p, hashes[p], clean)]
        if missing:
            measured = f"{path.name} was not decontaminated against {', '.join(missing)}"
            faults.append(Line("decontamination", WARN, measured, repair))
    return lines("decontamination", faults, f"against all {len(evaluation)} evaluation sets")


def find_manifest(path: Path) -> Path | None:
    """The manifest that names this file: a curriculum's (`rft.data.curriculum`) or `rft.data.prepare`'s."""
    for candidate in (path.with_name(f"{path.name}.manifest.json"), path.with_name(MANIFEST)):
        if candidate.is_file() and path.name in json.loads(candidate.read_text())["files"]:
            return candidate
    return None


def is_part(path: Path, hashes: dict[str, int], clean: dict[str, str]) -> bool:
    """Whether all problems of a set are in one of the `clean` sets that lies, unchanged, beside it."""
    wholes = [path.with_name(name) for name in clean.values()]
    return bool(hashes) and any(
        file_sha256(whole) in clean and hashes.keys() <= check_file(whole)[1].keys()
        for whole in wholes
        if whole.is_file()
    )


def clean_against(document: dict, folder: Path) -> dict[str, str]:
    """Names by sha256 of the evaluation sets that a file, or all parts of a curriculum in `folder`, is clear of."""
    if "parts" not in document:
        return {entry["sha256"]: entry["name"] for entry in document["decontamination"]["eval_sets"]}
    prepared = folder / MANIFEST
    if not prepared.is_file():
        return {}
    source = json.loads(prepared.read_text())
    known = {entry["sha256"] for entry in source["files"].values()}
    return clean_against(source, folder) if all(part["sha256"] in known for part in document["parts"]) else {}


def longest_prompts(paths: list[Path], key: str) -> list:
    """The prompts of the longest lines, text or chat messages; only those lines are parsed."""
    lines_of_all = (line for path in paths for line in path.open("rb"))
    return [json.loads(line)[key] for line in heapq.nlargest(LONGEST, lines_of_all, key=len)]
