"""Seconds by phase of a training step, as seen by the process that drives it; the memory meter is told the phase."""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from rft.record.files import replace_text
from rft.record.names import PHASE_FILE
from rft.record.step_phases import WITHIN, time_name

_seconds: dict[str, float] = {}
_step_start: float | None = None


def timed(phase: str, call: Callable):
    """`call`, with its wall-clock seconds added to `time_<phase>_seconds` of the step under way, or of the next one."""

    @functools.wraps(call)
    def timed_call(*args, **kwargs):
        global _step_start
        start = time.perf_counter()
        if phase in WITHIN and _step_start is None:
            _step_start = start
        _tell(phase)
        result = call(*args, **kwargs)
        _tell("")
        _seconds[time_name(phase)] = _seconds.get(time_name(phase), 0.0) + time.perf_counter() - start
        return result

    return timed_call


def finish_step() -> dict[str, float]:
    """The phases' seconds since the last call, and `time_step_seconds`, from the step's first phase to now."""
    global _step_start
    seconds = {**_seconds, "time_step_seconds": time.perf_counter() - (_step_start or time.perf_counter())}
    _seconds.clear()
    _step_start = None
    return seconds


def _tell(phase: str) -> None:
    """Name the phase to `rft.runs.memory`, which samples beside a launched run."""
    place = os.environ.get("RFT_RUN_DIR")
    if place and Path(place).is_dir():  # a node without the run's file system has no meter either
        replace_text(Path(place, PHASE_FILE), f"{phase}\n")
