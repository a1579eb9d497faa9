"""Seconds by phase of a training step, as seen by the process that drives it."""

import time
from collections.abc import Callable

_seconds: dict[str, float] = {}
_step_start: float | None = None


def timed(phase: str, call: Callable):
    """`call`, with its wall-clock seconds added to `time_<phase>_seconds` of the step under way."""

    def timed_call(*args, **kwargs):
        global _step_start
        start = time.perf_counter()
        _step_start = start if _step_start is None else _step_start
        result = call(*args, **kwargs)
        name = f"time_{phase}_seconds"
        _seconds[name] = _seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    return timed_call


def finish_step() -> dict[str, float]:
    """The phases' seconds and `time_step_seconds`, from the first phase's start to now; the next step starts empty."""
    global _step_start
    seconds = {**_seconds, "time_step_seconds": time.perf_counter() - (_step_start or time.perf_counter())}
    _seconds.clear()
    _step_start = None
    return seconds
