"""The phases of a training step and their seconds in a line of training_metrics.jsonl, as `time_<phase>_seconds`."""

import math
from collections.abc import Iterable

WITHIN = ("rollout", "experience", "train", "sync")  # parts of `time_step_seconds`
BETWEEN = ("evaluation", "checkpoint", "samples")  # since the line before
OTHER = "other"  # the rest of `time_step_seconds`
PHASES = (*WITHIN, *BETWEEN, OTHER)


def time_name(phase: str) -> str:
    """`time_train_seconds`."""
    return f"time_{phase}_seconds"


def seconds(record: dict) -> dict[str, float]:
    """Seconds by phase of one step, in the order of `PHASES`, those that it logged; {} without any, or without a total.

    Older lines do not have all of them.
    """
    step = _number(record.get(time_name("step")))
    found = {name: value for name in PHASES if (value := _number(record.get(time_name(name)))) is not None}
    if step is None or not found:
        return {}
    return found | {OTHER: max(0.0, step - sum(found.get(name, 0.0) for name in WITHIN))}


def shares(records: Iterable[dict]) -> dict[str, float]:
    """Each phase's share of the records' time together; {} where none has a duration."""
    total: dict[str, float] = {}
    for record in records:
        for name, value in seconds(record).items():
            total[name] = total.get(name, 0.0) + value
    whole = sum(total.values())
    return {name: total[name] / whole for name in PHASES if name in total} if whole else {}


def _number(value: object) -> float | None:
    """A finite number of at least 0; a file may hold anything."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if good else None
