"""Read a run's JSON lines; an incomplete last line, left by a kill, is not an error."""

import json
import os
from pathlib import Path

from rft.record.names import EVAL_FILE, TRAINING_FILE


def metrics_dir(run_dir: Path) -> Path:
    """Where the run's metrics are: its directory where that holds them, else `METRICS_LOG_DIR`.

    In this order, since the variable may be another run's, and launchers link what is outside into the directory.
    """
    if any((run_dir / name).is_file() for name in (TRAINING_FILE, EVAL_FILE)):
        return run_dir
    return Path(os.environ.get("METRICS_LOG_DIR") or run_dir)


def samples_dir(run_dir: Path) -> Path:
    """Where the run's samples are: `samples` in its directory where that is there, else `SAMPLES_LOG_DIR`."""
    own = run_dir / "samples"
    return own if own.is_dir() else Path(os.environ.get("SAMPLES_LOG_DIR") or own)


def spike_log(run_dir: Path) -> Path:
    """Where the run's spikes are logged: `spike_log.jsonl` beside its metrics, else `SPIKE_LOG_PATH`."""
    own = metrics_dir(run_dir) / "spike_log.jsonl"
    return own if own.is_file() else Path(os.environ.get("SPIKE_LOG_PATH") or own)


def read_jsonl(path: str | Path) -> list[dict]:
    """Records of a JSONL file in order. A last line without a newline is dropped; a broken line elsewhere raises.

    Raises:
        ValueError: a complete line is not JSON; the message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        return []
    # Bytes: a line may end within a character.
    lines = path.read_bytes().split(b"\n")[:-1]
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
    return records


def series(records: list[dict], name: str) -> tuple[list[float], list[float]]:
    """(steps, values) of one metric, steps without a value left out."""
    points = [(r["global_step"], r[name]) for r in records if r.get(name) is not None]
    return [p[0] for p in points], [p[1] for p in points]
