"""A verdict on a run, and how the rules look at its records: windows, means, noise."""

import math
import statistics
from typing import NamedTuple

LEVELS = ("ok", "warn", "bad")


class Verdict(NamedTuple):
    """What one rule says: `ok`, `warn` (look at it) or `bad` (the run is wasted or will be); `change`: what to do.

    `numbers` are those that the level follows from; `rule` is filled in by `rft.rules.judge.judge`.
    """

    level: str
    reason: str
    numbers: dict
    change: str = ""
    rule: str = ""


def graded(bad: bool, warn: bool, reason: str, numbers: dict, change: str) -> Verdict:
    """The verdict for two conditions, of which the worse counts; a verdict of ok suggests no change."""
    level = "bad" if bad else "warn" if warn else "ok"
    return Verdict(level, reason, numbers, change if level != "ok" else "")


def last_of_each_step(records: list[dict]) -> list[dict]:
    """The records in the order of their steps; a resumed run may have written a step twice, and the later one holds."""
    by_step = {record["global_step"]: record for record in records if record.get("global_step") is not None}
    return [by_step[step] for step in sorted(by_step)]


def column(records: list[dict], name: str) -> list[float]:
    """The values of a metric in order, steps without one left out."""
    return [record[name] for record in records if record.get(name) is not None]


def latest(records: list[dict], name: str, count: int) -> list[float] | None:
    """The metric in each of the last `count` records; None where there are fewer, or one lacks it."""
    values = column(records[-count:], name)
    return values if len(values) == count else None


def mean(values: list[float]) -> float:
    return statistics.fmean(values)


def mean_error(values: list[float]) -> float:
    """Standard error of a mean of at least two independent values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def trend(records: list[dict], name: str, count: int) -> tuple[float, float, float] | None:
    """(mean of the first `count` steps, of the last `count`, standard error of their difference); None if too few."""
    values = column(records, name)
    if len(values) < 2 * count:
        return None
    first, last = values[:count], values[-count:]
    return mean(first), mean(last), math.hypot(mean_error(first), mean_error(last))


def share_error(share: float, problems: float) -> float:
    """Standard error of a share of right answers over a number of problems: 0.035 at one half of 200.

    Shares beyond 0.2 and 0.8 count as those: near the ends the formula promises more than two adapters' jitter allows.
    """
    share = min(max(share, 0.2), 0.8)
    return math.sqrt(share * (1 - share) / problems)
