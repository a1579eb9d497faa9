"""One JSON line per training step and evaluation; complete lines only, so that a reader never finds half a record."""

import json
import math
import numbers
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from rft.hooks.run_files import forget_stop
from rft.record.files import append_lines, replace_text
from rft.record.names import CLOCKS, DECISIONS_FILE, EVAL_FILE, TRAINING_FILE

BEGAN = time.monotonic()  # the controller imports this before it loads anything
DISCARDED = {  # file -> where lines of steps that are trained again go
    TRAINING_FILE: "discarded_metrics.jsonl",
    EVAL_FILE: f"discarded_{EVAL_FILE}",
    DECISIONS_FILE: f"discarded_{DECISIONS_FILE}",
}


def log_training_step(global_step: int, metrics: dict) -> None:
    """Append a step's numbers to `$METRICS_LOG_DIR/training_metrics.jsonl`; does nothing when the variable is unset."""
    _append(TRAINING_FILE, global_step, metrics)


def log_evaluation(global_step: int, metrics: dict) -> None:
    """Append an evaluation's numbers to `$METRICS_LOG_DIR/eval_metrics.jsonl`; does nothing when it is unset."""
    _append(EVAL_FILE, global_step, metrics)


def rewind(global_step: int) -> None:
    """Before a resume from `global_step`: move the lines of later steps to the files of `DISCARDED`.

    Those steps are trained, evaluated and judged again; otherwise two lines would speak of one step, or one of a step
    that the run has not reached. An earlier stop, which run.json tells of, is no longer true.
    """
    forget_stop()
    directory = os.environ.get("METRICS_LOG_DIR")
    for name in DISCARDED if directory else ():
        _rewind_file(Path(directory, name), global_step)


def now() -> dict[str, str | float]:
    """When a line is written (`rft.record.names.CLOCKS`): UTC in ISO 8601, and seconds since this process began to
    train, which start anew in a resumed run.
    """
    elapsed = time.monotonic() - BEGAN
    return dict(zip(CLOCKS, (f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", round(elapsed, 3)), strict=True))


def json_line(global_step: int, metrics: dict, when: dict | None = None) -> str:
    """One record, newline last. Values that are not numbers are left out; NaN and infinities become null.

    Args:
        when: `now()`, for a line of a run.
    """
    record = {"global_step": global_step} | (when or {})
    for key, value in metrics.items():
        if isinstance(value, numbers.Real):
            record[key] = float(value) if math.isfinite(value) else None
    return json.dumps(record, allow_nan=False) + "\n"


def _append(filename: str, global_step: int, metrics: dict) -> None:
    directory = os.environ.get("METRICS_LOG_DIR")
    if directory:
        append_lines(Path(directory, filename), json_line(global_step, metrics, now()))


def _rewind_file(path: Path, global_step: int) -> None:
    """Move what is later than `global_step`, and an incomplete line, to the file for it; complete lines stay."""
    if not path.is_file():
        return
    kept, later = [], []
    for line in path.read_text().splitlines(keepends=True):
        stays = line.endswith("\n") and json.loads(line)["global_step"] <= global_step
        (kept if stays else later).append(line)
    if not later:
        return
    with path.with_name(DISCARDED[path.name]).open("a") as discarded:
        discarded.writelines(line.rstrip("\n") + "\n" for line in later)
    replace_text(path, "".join(kept))
