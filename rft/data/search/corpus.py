"""Check, convert and measure the corpus that a retriever searches: a passage a line, more than memory holds.

Its rows are those that `rft.retriever.corpus` reads; the file may be gzipped.
"""

import argparse
import hashlib
import shlex
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from rft.data.row_files import MANY, json_line, require_apart, written_together
from rft.data.search.own import read_made
from rft.data.search.recall import Recall
from rft.problems import shorten
from rft.record.digest import file_sha256
from rft.retriever.corpus import fields_of, lines_of

REPORT = 1_000_000  # passages between two lines of progress
NO_TEXT, NO_ID, SAME_ID = "no text", "id in some rows only", "id of an earlier row"


class Passage(NamedTuple):
    """A row of a corpus."""

    id: str
    title: str
    text: str


class Summary:
    """What is in a corpus. Of each passage it keeps 16 bytes: hashes of its id, and of its title and text."""

    def __init__(self):
        self.passages = self.untitled = self.characters = self.longest = 0
        self.faults: list[str] = []  # the first `MANY`, each with its line
        self.counts: Counter[str] = Counter()  # of all faults, by kind
        self.numbered = None  # whether rows have no ids; None before the first row
        self.ids, self.texts = array("Q"), array("Q")

    def fault(self, path: Path, number: int, kind: str, message: object) -> None:
        self.counts[kind] += 1
        if len(self.faults) < MANY:
            self.faults.append(f"{path}, line {number}: {message}")

    def add(self, passage: Passage) -> None:
        self.passages += 1
        self.untitled += not passage.title.strip()
        self.characters += len(passage.text)
        self.longest = max(self.longest, len(passage.text))
        self.ids.append(_hash(passage.id))
        self.texts.append(_hash(f"{passage.title}\n{passage.text}"))

    def copies(self) -> int:
        """Passages whose title and text an earlier one has."""
        return len(self.texts) - len(np.unique(np.frombuffer(self.texts, dtype=np.uint64)))


def passages(path: Path, summary: Summary) -> Iterator[Passage]:
    """The passages of a corpus that have a text, those of rows without ids numbered from 0; faults go to `summary`.

    Raises:
        ValueError: no such file, or it is cut or no gzip.
    """
    for number, line in lines_of(path):
        try:
            identifier, title, text = fields_of(line)
        except ValueError as error:
            summary.fault(path, number, "no passage", error)
            continue
        numbered = identifier is None
        summary.numbered = numbered if summary.numbered is None else summary.numbered
        if numbered != summary.numbered:
            fault = "found an id in some rows only, wanted it in all or none; add or remove the field"
            summary.fault(path, number, NO_ID, fault)
        elif not text.strip():
            fault = f"found no text behind the title {shorten(title)}, wanted some; --out leaves such rows out"
            summary.fault(path, number, NO_TEXT, fault)
        else:
            passage = Passage(str(number - 1) if numbered else identifier, title, text)
            summary.add(passage)
            yield passage


def repeated(path: Path, summary: Summary) -> None:
    """Add a fault for each row whose id an earlier row has; reads the corpus again where there is any."""
    sorted_ids = np.sort(np.frombuffer(summary.ids, dtype=np.uint64))
    doubled = {*sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]].tolist()}
    first, again = {}, Summary()
    for place, passage in enumerate(passages(path, again) if doubled else ()):
        key = _hash(passage.id)
        if key in doubled and first.setdefault(passage.id, place) != place:
            fault = f"found id {shorten(passage.id)}, which passage {first[passage.id] + 1:,} has too; make ids unique"
            summary.fault(path, place + 1 + again.counts.total(), SAME_ID, fault)


def convert(source: Path, out: Path, sets: list[Path], force: bool) -> tuple[Summary, Recall]:
    """Write a corpus in the form of wiki-18, without rows that have no text; the answers of `sets` are looked up too.

    Raises:
        ValueError: another fault than an empty text; `out` has another content, and not `force`. `out` is as before.
    """
    if out.suffix != ".jsonl":
        raise ValueError(f"found --out {out}, wanted a file .jsonl to write; pass another --out")
    require_apart([out], [source, *sets])
    with written_together(out.parent, [out.name]) as paths:
        with paths[out.name].open("w", encoding="utf-8", newline="\n") as stream:
            summary, recall = read(source, sets, stream)
        if faults := [kind for kind in summary.counts if kind != NO_TEXT]:
            listed = next(each for each in summary.faults if "found no text behind" not in each)
            raise ValueError(f"{listed} ({summary.counts.total():,} faults in all: {', '.join(faults)})")
        if out.is_file() and file_sha256(out) != file_sha256(paths[out.name]) and not force:
            raise ValueError(f"found {out} with another content, wanted a new file; pass another --out, or --force")
    return summary, recall


def read(path: Path, sets: list[Path], stream: TextIO | None = None) -> tuple[Summary, Recall]:
    """Go through a corpus once (twice where ids repeat), with progress; write its rows to `stream` in one form."""
    summary, recall = Summary(), Recall({each.stem: read_made(each) for each in sets})
    for passage in passages(path, summary):
        if sets:
            recall.read(f"{passage.title}\n{passage.text}")
        if stream is not None:
            stream.write(json_line({"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}))
        if summary.passages % REPORT == 0:
            print(f"{summary.passages:,} passages", flush=True)
    if not summary.passages and not summary.faults:
        raise ValueError(f"{path}: found an empty file, wanted a passage a line; fetch or make the file again")
    repeated(path, summary)
    return summary, recall


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="corpus as .jsonl or .jsonl.gz")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="write it here in the form of wiki-18")
    parser.add_argument(
        "--answers", type=Path, action="append", default=[], metavar="FILE.jsonl",
        help="evaluation file: say whose answers the corpus has at all",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace --out where it differs")


def run(args: argparse.Namespace) -> int:
    """The command: exit status 0, 2 where rows are wrong, 1 where nothing could be read or written."""
    try:
        if args.out:
            summary, recall = convert(args.file, args.out, args.answers, args.force)
        else:
            summary, recall = read(args.file, args.answers)
        print("\n".join(described(args.out or args.file, summary, recall)))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; nothing was written; run it again for {shlex.quote(str(args.file))}", file=sys.stderr)
        return 130
    for fault in summary.faults if not args.out else ():
        print(fault, file=sys.stderr)
    if (more := summary.counts.total() - len(summary.faults)) > 0 and not args.out:
        print(f"and {more:,} more", file=sys.stderr)
    return 2 if summary.counts and not args.out else 0


def described(path: Path, summary: Summary, recall: Recall) -> Iterator[str]:
    """What the command prints of a corpus."""
    mean = summary.characters / max(summary.passages, 1)
    yield f"{path}: {summary.passages:,} passages, {mean:,.0f} characters on average, {summary.longest:,} the longest"
    yield f"sha256 {file_sha256(path)}"
    yield f"{summary.untitled:,} without title, {summary.copies():,} with the title and text of an earlier one"
    if summary.numbered:
        yield "rows have no ids: passages are numbered from 0 by their line"
    for kind, count in summary.counts.items():
        yield f"{count:,} rows: {kind}"
    for each in recall.found():
        share = each.found / max(each.questions, 1)
        yield f"{each.name}: {share:.1%} of {each.questions:,} questions have an answer that the corpus holds"
        if each.missing:
            yield f"    not: {', '.join(each.missing[:5])}{', …' if len(each.missing) > 5 else ''}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
