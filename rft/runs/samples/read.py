"""Samples of a run, by step and group, and which of them are wanted. One file at a time is held in memory."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rft.record.readers import samples_dir
from rft.record.samples import EVALUATION, NAME, TRAINING, SampleFile, sample_files, sample_lines
from rft.runs.find import chosen_run
from rft.runs.report.samples import sample as facts

KINDS = {TRAINING: "training", EVALUATION: "evaluation"}
Range = tuple[float, float]  # both ends are within


class Sample(NamedTuple):
    """One response. A group is the samples of one prompt in one file; groups and samples count from 1."""

    step: int
    kind: str  # training or evaluation
    group: int
    number: int
    row: dict  # the line of the file: `prompt`, `response`, `reward`, … (`rft.hooks.samples.write_samples`)

    def facts(self) -> dict:
        """`reward`, `right` (yes, no, unknown), `label`, `answer`, `tokens` (sampled), `searches`, `cut`, `turns`."""
        return facts(self.row)


class Wanted(NamedTuple):
    """What a sample must have; None: anything."""

    steps: Range | None = None
    kind: str | None = None
    reward: Range | None = None
    group: int | None = None
    prompt: str | None = None  # in the prompt, whatever its case
    text: re.Pattern | None = None  # in the prompt or the response


def files_of(path: Path) -> list[SampleFile]:
    """The sample files of a run, of a folder's newest run, of a folder of samples, or the one file that `path` is.

    Raises ValueError where there is none.
    """
    if path.is_file():
        match = NAME.fullmatch(path.name)
        return [SampleFile(int(match["step"]), match["kind"], path) if match else SampleFile(0, TRAINING, path)]
    if path.is_dir() and (own := sample_files(path)):
        return own
    place = samples_dir(chosen_run(path))
    if not (found := sample_files(place)):
        raise ValueError(
            f"found no samples in {place}; wanted samples_step<N>.jsonl.gz; they are there after a run's first step "
            "(SAMPLES_LOG_DIR: where a run keeps them elsewhere)"
        )
    return found


def groups_of(file: SampleFile, note: Callable[[str], None]) -> list[list[Sample]]:
    """The groups of one file, in its order; lines that cannot be read are told to `note`, and left out."""
    groups: dict[str, list[Sample]] = {}
    for row in rows(file.path, note):
        group = groups.setdefault(str(row.get("prompt", "")), [])
        number = group[0].group if group else len(groups)
        group.append(Sample(file.step, KINDS[file.kind], number, len(group) + 1, row))
    return list(groups.values())


def rows(path: Path, note: Callable[[str], None]) -> Iterator[dict]:
    """The objects of a file of JSON lines, gzipped or plain."""
    broken, number = [], 0
    try:
        for number, line in enumerate(sample_lines(path), 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            else:
                broken.append(number)
    except (ValueError, FileNotFoundError) as error:  # damaged, or dropped by a run that keeps within its bound
        note(f"{error}; left out")
    if broken:
        which = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
        note(f"{path}: {len(broken)} of {number} lines cannot be read (line {which}); left out")


def chosen(
    files: Iterable[SampleFile], wanted: Wanted, note: Callable[[str], None]
) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """(whole group, those of it that are wanted) for each group that has such samples, in the order of the steps."""
    for file in files:
        if wanted.kind not in (None, KINDS[file.kind]) or not within(file.step, wanted.steps):
            continue
        for group in groups_of(file, note):
            if found := [sample for sample in group if fits(sample, wanted)]:
                yield group, found


def fits(sample: Sample, wanted: Wanted) -> bool:
    """Whether a sample of a wanted step and kind is wanted."""
    prompt, response = (str(sample.row.get(name, "")) for name in ("prompt", "response"))
    return (
        wanted.group in (None, sample.group)
        and within(sample.facts()["reward"], wanted.reward)
        and (wanted.prompt is None or wanted.prompt.casefold() in prompt.casefold())
        and (wanted.text is None or any(wanted.text.search(text) for text in (response, prompt)))
    )


def within(value: float | None, ends: Range | None) -> bool:
    """Whether a number lies in a range; without a range everything does, and in one no missing number."""
    return ends is None or (value is not None and ends[0] <= value <= ends[1])


def parse_range(text: str) -> Range:
    """`0.5`, `0..0.5`, `..0.5` or `0.5..`. Raises ValueError for anything else, and where no number lies between."""
    low, dots, high = text.partition("..")
    ends = float(low or "-inf"), float((high if dots else low) or "inf")
    if not text.strip(".") or any(map(math.isnan, ends)) or ends[0] > ends[1]:
        raise ValueError(text)
    return ends


def pattern(text: str, regex: bool) -> re.Pattern:
    """What to search for: a regular expression of Python, or words as they are, whatever their case.

    Raises ValueError where it is no regular expression.
    """
    try:
        return re.compile(text) if regex else re.compile(re.escape(text), re.IGNORECASE)
    except re.error as error:
        raise ValueError(
            f"found {text!r}, no regular expression ({error}); wanted one; without --regex it is text"
        ) from None


def summary(file: SampleFile, note: Callable[[str], None]) -> dict:
    """One file in numbers: `step`, `kind`, `samples`, `groups`; means over the samples that say it, None where none
    does: `reward`, `right` (share), `truncated` (share), `tokens` (sampled), `searches`; and `longest`, in tokens.
    """
    groups = groups_of(file, note)
    found = [sample.facts() for group in groups for sample in group]
    rewards, tokens = ([one[name] for one in found if one[name] is not None] for name in ("reward", "tokens"))
    right = [one["right"] == "yes" for one in found if one["right"] != "unknown"]
    return {
        "step": file.step, "kind": KINDS[file.kind], "samples": len(found), "groups": len(groups),
        "reward": mean(rewards), "right": mean(right), "truncated": mean([one["cut"] for one in found]),
        "tokens": mean(tokens), "longest": max(tokens, default=None),
        "searches": mean([one["searches"] for one in found if one["searches"] is not None]),
    }  # fmt: skip


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
