"""Take the adapter that was best in a run's loop instead of its last one.

    .venv/bin/python -m rft.runs.promote RUN

Copies it to RUN/adapter_best_step<N>, since a resumed run may remove its checkpoint, and lets the link
RUN/promoted name it: every command that takes RUN/adapter takes RUN/promoted. Where the last adapter is the
best, the link names that. RUN/adapter is never touched; again does no harm. Exit status 2: nothing can be promoted.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from rft.record.digest import tree_digest
from rft.runs import best
from rft.runs.find import chosen_run

LINK = "promoted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, or a folder of runs")
    args = parser.parse_args()
    try:
        run = chosen_run(args.run)
        message = promote(run)
        measured = best.lines(best.measured(run))
    except (ValueError, OSError) as error:
        print(f"promote: {error}", file=sys.stderr)
        return 2
    print("\n".join([message, *measured]))
    return 0


def promote(run: Path) -> str:
    """Let RUN/promoted name the best adapter, complete or not at all; returns what was done, in a sentence.

    Raises:
        ValueError: the run has no best adapter, or something else is at the places.
        OSError: the copy cannot be made; the link is as it was.
    """
    if not run.is_dir():
        raise ValueError(f"found no run {run}; wanted a run's directory; correct the path")
    found = best.find_best(run)
    if found is None or found.adapter is None:
        step = "no best.json" if found is None else f"step {found.step} without an adapter (0: the base)"
        raise ValueError(
            f"{run}: found {step}; wanted a run whose loop was evaluated (--eval_steps) and found an adapter best; "
            f"take {run / 'adapter'} or the base"
        )
    about = f"step {found.step}, {found.metric} {found.value:.3f}"
    link, place = run / LINK, run / f"adapter_best_step{found.step}"
    if link.exists() and not link.is_symlink():
        raise ValueError(f"found {link}, which is no link; wanted to make one there; move it away")
    if best.is_last(run, found):
        place = run / "adapter"
    elif not place.is_dir() or tree_digest(place) != tree_digest(found.adapter):
        copy(found.adapter, place)
    if link.is_symlink() and os.readlink(link) == place.name:
        return f"{link} names the best adapter already: {place.name} ({about})"
    partial = link.with_name(f"{LINK}.{os.getpid()}.partial")
    partial.symlink_to(place.name)
    partial.replace(link)
    return f"{link} now names the best adapter: {place.name} ({about}); {run / 'adapter'} is as it was"


def copy(source: Path, place: Path) -> None:
    """Copy a folder, complete or not at all; one that is there is another run's, and stays."""
    if place.exists():
        raise ValueError(f"found {place} with another content than {source}; wanted a new folder; move it away")
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    try:
        shutil.copytree(source, partial)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
