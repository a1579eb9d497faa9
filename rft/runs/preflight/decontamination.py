"""Whether the training files were decontaminated against the evaluation sets, by the manifests beside them."""

import shlex
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rft.data.check import check_file
from rft.grading.short_answer import is_search_label
from rft.problems import parse_line
from rft.record.digest import file_sha256
from rft.runs.preflight.lines import NO_GO, WARN, Line, lines

NAME = "decontamination"
MANIFEST = "sft_manifest.json"  # of rft.data.prepare, which needs datasketch


class Entry(BaseModel):
    """A file as manifests name it."""

    sha256: str
    name: str = ""


class Decontamination(BaseModel):
    """What `rft.data.prepare` has removed near-duplicates of."""

    eval_sets: list[Entry]


class Manifest(BaseModel):
    """As far as it is read: of training files with `decontamination`, of `rft.data.curriculum` with `parts`."""

    files: dict[str, Entry]
    decontamination: Decontamination | None = None
    parts: list[Entry] | None = None


def maker(path: Path, evaluation: list[Path]) -> str:
    """The command that makes a training file without copies of these problems."""
    with path.open("rb") as stream:
        label = parse_line(stream.readline()).get("label")
    if is_search_label(label):
        place = path.parent.parent if path.parent.name == "search" else path.parent  # it makes the folder
        return shlex.join([".venv/bin/python", "-m", "rft.data", "make", "--task", "search", "--out", str(place)])
    return ".venv/bin/python data/prepare_sft_data.py " + " ".join(f"--eval-set {each}" for each in evaluation)


def check(training: list[Path], evaluation: list[Path], hashes: dict[Path, dict[str, int]]) -> list[Line]:
    """A manifest beside each training file that fits it, and names every evaluation set as decontaminated against.

    A part of a set that it names (the 200 problems of the 1,000) is as clean, where the complete set is beside it.

    Args:
        training: the training files that can be read, at least one.
        evaluation: the evaluation sets that can be read, at least one.
        hashes: the problems of each, as `check_file` gives them.
    """
    digests = {path: file_sha256(path) for path in [*training, *evaluation]}
    faults = []
    for path in training:
        repair = maker(path, evaluation)
        try:
            manifest = find_manifest(path)
            if manifest is None:
                measured = f"no manifest beside {path.name}: near-duplicates of the evaluation sets may be in it"
                faults.append(Line(NAME, WARN, measured, repair))
                continue
            document = read_manifest(manifest)
            if document.files[path.name].sha256 != digests[path]:
                measured = f"{path.name} is not the file that {manifest.name} describes"
                faults.append(Line(NAME, NO_GO, measured, "make the file again"))
                continue
            clean = clean_against(document, manifest.parent)
        except ValueError as error:
            faults.append(Line(NAME, NO_GO, str(error), repair))
            continue
        missing = [p.name for p in evaluation if digests[p] not in clean and not is_part(p, hashes[p], clean)]
        if missing:
            measured = f"{path.name} was not decontaminated against {', '.join(missing)}"
            faults.append(Line(NAME, WARN, measured, repair))
    return lines(NAME, faults, f"against all {len(evaluation)} evaluation sets")


def read_manifest(path: Path) -> Manifest:
    """Raise ValueError, with the file and its first fault, for anything but a manifest."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{path}: {f'{place}: ' if place else ''}{fault['msg']}; make the data again") from None


def find_manifest(path: Path) -> Path | None:
    """The manifest that names this file: its own (`rft.data.curriculum`, `rft.data.code`), or `rft.data.prepare`'s."""
    for candidate in (path.with_name(f"{path.name}.manifest.json"), path.with_name(MANIFEST)):
        if candidate.is_file() and path.name in read_manifest(candidate).files:
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


def clean_against(document: Manifest, folder: Path) -> dict[str, str]:
    """Names by sha256 of the evaluation sets that a file, or all parts of a curriculum in `folder`, is clear of."""
    if document.decontamination is not None:
        return {entry.sha256: entry.name for entry in document.decontamination.eval_sets}
    parts = [clean_part(part, folder) for part in document.parts or ()]
    return {digest: name for digest, name in parts[0].items() if all(digest in part for part in parts)} if parts else {}


def clean_part(part: Entry, folder: Path) -> dict[str, str]:
    """The same of a file that a curriculum takes problems from, by the manifest in `folder` that has its content."""
    for manifest in (folder / f"{part.name}.manifest.json", folder / MANIFEST):
        source = read_manifest(manifest) if manifest.is_file() else None
        if source and source.parts is None and part.sha256 in {entry.sha256 for entry in source.files.values()}:
            return clean_against(source, folder)
    return {}
