"""Read a run's JSON lines; a torn last line, left by a kill, is not an error."""

import json
import os
from pathlib import Path


def metrics_dir(run_dir: Path) -> Path:
    """Where the run's metrics are: `METRICS_LOG_DIR`, else the run directory."""
    return Path(os.environ.get("METRICS_LOG_DIR") or run_dir)


def samples_dir(run_dir: Path) -> Path:
    """Where the run's samples are: `SAMPLES_LOG_DIR`, else `samples` in the run directory."""
    return Path(os.environ.get("SAMPLES_LOG_DIR") or run_dir / "samples")


def read_jsonl(path: str | Path) -> list[dict]:
    """Records of a JSONL file in order. A last line without a newline is dropped; a broken line elsewhere raises.

    Raises:
        ValueError: a complete line is not JSON; the message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        return []
    # Bytes: a line may be torn within a character.
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
