"""Where the training processes keep the files of their run."""

import json
import os
from pathlib import Path

from rft.record.files import replace_json


def run_dir() -> Path | None:
    """The directory of the run that this process belongs to; None where neither launcher nor user has set one."""
    place = os.environ.get("RFT_RUN_DIR") or os.environ.get("METRICS_LOG_DIR")
    return Path(place) if place else None


def note_stop(place: Path, record: dict) -> None:
    """Write why a run ended before its end as `stopped` into its run.json."""
    file = place / "run.json"
    manifest = json.loads(file.read_text()) if file.is_file() else {}
    replace_json(file, manifest | {"stopped": record})


def forget_stop() -> None:
    """Take `stopped` out of run.json: the training resumes, or has reached its normal end."""
    place = run_dir()
    file = place / "run.json" if place else None
    if file and file.is_file():
        manifest = json.loads(file.read_text())
        if manifest.pop("stopped", None):
            replace_json(file, manifest)
