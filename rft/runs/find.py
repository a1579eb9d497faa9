"""Which run is meant: a run's directory, or the newest run of a folder. Reads only."""

import json
import sys
from datetime import datetime
from pathlib import Path

from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir

MARKS = ("run.json", "phases.jsonl", TRAINING_FILE, EVAL_FILE)  # one of them makes a directory a run
PARTS = (*MARKS, "evals", "samples", "result.json")  # one of them is enough where the directory itself is named


def find_run(path: Path) -> Path:
    """A run's directory: `path` itself, or the run in it (a launcher's folder, or `runs`) that was started last.

    Raises ValueError where there is none.
    """
    if not path.is_dir():
        raise ValueError(f"found no directory {path}; wanted a run's directory, or a folder of runs (runs/<launcher>)")
    if any((path / part).exists() for part in PARTS):
        return path
    runs = {file.parent for depth in ("*", "*/*") for mark in MARKS for file in path.glob(f"{depth}/{mark}")}
    if runs:
        return max(runs, key=lambda run: (start_time(run, read_json(run / "run.json")) or 0, run.name))
    if not any(path.iterdir()) or (metrics_dir(path) / TRAINING_FILE).exists():
        return path  # made for a run that has not begun, or that logs to another path
    raise ValueError(f"found no run in {path}; wanted a directory with one of {', '.join(MARKS)}; correct the path")


def chosen_run(path: Path) -> Path:
    """`find_run`, which says on stderr which run of a folder it is: stdout may be read by a program."""
    run = find_run(path)
    if run != path:
        print(f"the newest run of {path}: {run}", file=sys.stderr)
    return run


def read_json(path: Path) -> dict:
    """A JSON object; {} where the file is absent or not complete (yet)."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def start_time(run: Path, manifest: dict) -> float | None:
    """Seconds since the epoch at which the run started: `run.json` says it; before there is one, when phases.jsonl
    was touched. None where neither tells.
    """
    try:
        return datetime.fromisoformat(manifest["started"]).timestamp()
    except (KeyError, TypeError, ValueError):
        phases = run / "phases.jsonl"
        return phases.stat().st_mtime if phases.exists() else None
