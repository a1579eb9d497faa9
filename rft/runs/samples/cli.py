"""Look at a run's samples in the terminal: a line a step; with a filter, the samples that it lets through.

    .venv/bin/python -m rft.runs.samples RUN
    .venv/bin/python -m rft.runs.samples RUN --step 40 --reward 0..0.5
    .venv/bin/python -m rft.runs.samples RUN --search 'I am not sure' --kind training
    .venv/bin/python -m rft.runs.samples RUN --step last --group 3 --side-by-side

RUN is a run's directory, a folder of runs (the newest is taken), a folder of samples or one file of them. Reads only.
Exit status 2: bad input.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from rich.console import Console

from rft.record.samples import SampleFile
from rft.runs.samples import show
from rft.runs.samples.read import KINDS, Sample, Wanted, chosen, files_of, parse_range, pattern, summary, within

LIMIT, GROUPS = 20, 4  # samples, or groups side by side, where --limit is not given
PIPE_WIDTH = 160  # a pipe has no width of its own
RANGE = "N, LOW..HIGH, LOW.. or ..HIGH"


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    console = Console(highlight=False, width=width)
    try:
        look(console, args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def options(argv: list[str] | None) -> argparse.Namespace:
    """The options. Ends with status 2 and a message where they cannot be read."""
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.samples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--step", metavar="STEP", help=f"{RANGE}, or last")
    parser.add_argument(
        "--kind", choices=list(KINDS.values()), help="samples of training, or of evaluations in the loop"
    )
    parser.add_argument("--reward", type=range_option, metavar="RANGE", help=f"{RANGE}; --reward=-1..0 below 0")
    parser.add_argument("--group", type=int, metavar="N", help="the Nth prompt of each step")
    parser.add_argument("--prompt", metavar="TEXT", help="groups with this text in the prompt")
    parser.add_argument("--search", metavar="TEXT", help="in prompt or response, whatever its case")
    parser.add_argument(
        "--regex", action="store_true", help="--search is a regular expression of Python; (?i) ignores case"
    )
    parser.add_argument(
        "--side-by-side", action="store_true", help="whole groups, in which a sample passes, in columns"
    )
    parser.add_argument(
        "--full", action="store_true", help=f"whole prompts, and responses above {show.CHARS:,} characters"
    )
    parser.add_argument("--limit", type=int, metavar="N", help=f"show N samples or groups ({LIMIT}, {GROUPS}); 0: all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: a step, or with a filter a sample")
    args = parser.parse_args(argv)
    if args.regex and args.search is None:
        parser.error("found --regex without --search; wanted --search PATTERN --regex")
    if args.limit is not None and args.limit < 0:
        parser.error(f"found --limit {args.limit}; wanted 0 (all) or more")
    return args


def range_option(text: str) -> tuple[float, float]:
    try:
        return parse_range(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted {RANGE}") from None


def look(console: Console, args: argparse.Namespace) -> None:
    """Print what is asked for. Raises ValueError for what cannot be read."""
    files = files_of(args.run)
    wanted = Wanted(
        steps_of(args.step, files), args.kind, args.reward, args.group, args.prompt,
        None if args.search is None else pattern(args.search, args.regex),
    )  # fmt: skip
    if wanted._replace(kind=None) == Wanted() and not args.side_by_side:
        rows = [summary(f, warn) for f in files if args.kind in (None, KINDS[f.kind])]
        if args.json:
            print_json(rows)
        elif rows:
            show.steps(console, rows)
        else:
            print(f"no samples of {args.kind}", file=sys.stderr)
        return
    found = chosen(files, wanted, warn)
    limit = (0 if args.json else GROUPS if args.side_by_side else LIMIT) if args.limit is None else args.limit
    whole = (group for group, _ in found) if args.side_by_side else ([sample] for _, some in found for sample in some)
    shown = 0
    for samples in islice(whole, limit or None):
        shown += 1
        if args.json:
            print_json(map(as_json, samples))
        elif args.side_by_side:
            show.side_by_side(console, samples, wanted.text, args.full)
        else:
            show.one(console, samples[0], wanted.text, args.full)
    if not shown:
        print("no sample is like that", file=sys.stderr)
    elif limit and next(whole, None) is not None:
        print(f"there are more than these {shown}; --limit 0 shows all", file=sys.stderr)


def steps_of(text: str | None, files: list[SampleFile]) -> tuple[float, float] | None:
    """The steps that --step means. Raises ValueError where it means none of those that are there."""
    if text is None:
        return None
    try:
        ends = (files[-1].step,) * 2 if text == "last" else parse_range(text)
    except ValueError:
        raise ValueError(f"found --step {text!r}; wanted {RANGE}, or last") from None
    if not any(within(file.step, ends) for file in files):
        there = f"{files[0].step} to {files[-1].step}"
        raise ValueError(
            f"found no samples of step {text}; wanted one of those that are there, {there}; see them without --step"
        )
    return ends


def as_json(sample: Sample) -> dict:
    """A sample with its place in the run."""
    place = {"step": sample.step, "kind": sample.kind, "group": sample.group, "sample": sample.number}
    return place | {name: value for name, value in sample.row.items() if name not in place}


def print_json(rows: Iterable[dict]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def warn(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
