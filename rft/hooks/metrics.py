"""One JSON line per training step and per evaluation, whole lines only, so that a reader never meets half a record."""

import json
import math
import numbers
import os
from pathlib import Path

from rft.hooks.run_files import append_line

TRAINING_FILE = "training_metrics.jsonl"
EVAL_FILE = "eval_metrics.jsonl"


def log_training_step(global_step: int, metrics: dict) -> None:
    """Append a step's numbers to `$METRICS_LOG_DIR/training_metrics.jsonl`; does nothing when the variable is unset."""
    _append(TRAINING_FILE, global_step, metrics)


def log_evaluation(global_step: int, metrics: dict) -> None:
    """Append an evaluation's numbers to `$METRICS_LOG_DIR/eval_metrics.jsonl`; does nothing when it is unset."""
    _append(EVAL_FILE, global_step, metrics)


def rewind(global_step: int) -> None:
    """Before a resume from `global_step`: move the lines of later steps to `discarded_metrics.jsonl`.

    Those steps are trained again, and the file holds one line a step.
    """
    directory = os.environ.get("METRICS_LOG_DIR")
    path = Path(directory or "", TRAINING_FILE)
    if not directory or not path.is_file():
        return
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["global_step"] <= global_step]
    if len(kept) == len(lines):
        return
    with (path.parent / "discarded_metrics.jsonl").open("a") as discarded:
        discarded.writelines(line.rstrip("\n") + "\n" for line in lines if line not in kept)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(kept))
    partial.replace(path)


def json_line(global_step: int, metrics: dict) -> str:
    """One record, newline last. Values that are not numbers are left out; NaN and infinities become null."""
    record = {"global_step": global_step}
    for key, value in metrics.items():
        if isinstance(value, numbers.Real):
            record[key] = float(value) if math.isfinite(value) else None
    return json.dumps(record, allow_nan=False) + "\n"


def _append(filename: str, global_step: int, metrics: dict) -> None:
    directory = os.environ.get("METRICS_LOG_DIR")
    if directory:
        append_line(Path(directory, filename), json_line(global_step, metrics))
