"""The bounds that docs/metrics.md promises are those that the monitor colours by."""

import re
from pathlib import Path

import pytest

from rft.rules.healthy import HEALTHY

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
NUMBER = r"(\d+(?:\.\d+)?)(?![\d.]*\w)"  # not the start of a word such as 2nd
BOUND = re.compile(rf"(?:(\w+) )?(?:(below|above) {NUMBER}|within ±{NUMBER}|(?<![\w.]){NUMBER} to {NUMBER})")
ONLY_VALUE = re.compile(rf"{NUMBER}(?= with |$)")  # "0 with exact match": nothing above
SMALLEST = 1e-5  # a lower bound below it stands for "above 0"


def page_bounds(text: str) -> dict[str, tuple[float | None, float | None]]:
    """(low, high) of every metric of the table, as the last column says; None where it names no bound."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)
            found |= cell_bounds(re.findall(r"`(\w+)`", cells[1]), cells[-2].strip())
    return found


def cell_bounds(names: list[str], cell: str) -> dict[str, tuple[float | None, float | None]]:
    """The bounds of a row's metrics. `;` ends a clause.

    A clause speaks of all the row's metrics, of one each where there are as many clauses as metrics; a word before a
    bound that ends a metric's name (`p99 below 0.5`) gives the bound to that one alone.
    """
    low, high, clauses = dict.fromkeys(names), dict.fromkeys(names), cell.split(";")
    called = {match[1]: [name for name in names if name.endswith(f"_{match[1]}")] for match in BOUND.finditer(cell)}
    alone = {name for of_word in called.values() for name in of_word}
    for place, clause in enumerate(clauses):
        others = [names[place]] if len(clauses) == len(names) else [name for name in names if name not in alone]
        for word, side, one, symmetric, lowest, highest in (match.groups() for match in BOUND.finditer(clause)):
            for name in called[word] or others:
                if symmetric or lowest or side == "above":
                    low[name] = float(lowest or one or f"-{symmetric}")
                if symmetric or highest or side == "below":
                    high[name] = float(highest or one or symmetric)
        if value := ONLY_VALUE.match(clause.strip()):
            high |= dict.fromkeys(others, float(value[1]))
    return {name: (low[name], high[name]) for name in names}


@pytest.mark.parametrize("name", HEALTHY)
def test_page_and_monitor_have_one_range(name):
    bounds = HEALTHY[name]
    low = 0.0 if bounds.low is not None and 0 < bounds.low < SMALLEST else bounds.low
    assert page_bounds(PAGE.read_text(encoding="utf-8"))[name] == (low, bounds.high)


@pytest.mark.parametrize(
    ("names", "cell", "wanted"),
    [
        ("`a`", "0.2 to 0.6, rising", {"a": (0.2, 0.6)}),
        ("`a`, `b`", "below 0.2; above 0.8 the model rambles", {"a": (None, 0.2), "b": (0.8, None)}),
        ("`a_mean`, `a_p99`", "mean below 0.05, and within twice the first's; 0.018 is good",
         {"a_mean": (None, 0.05), "a_p99": (None, None)}),
        ("`a_max`, `a_min`, `a_p99`", "within ±5; p99 below 0.5",
         {"a_max": (-5.0, 5.0), "a_min": (-5.0, 5.0), "a_p99": (None, 0.5)}),
        ("`a`, `b`", "above 0, below 50; see below", {"a": (0.0, 50.0), "b": (None, None)}),
        ("`a`", "0 with exact match", {"a": (None, 0.0)}),
        ("`a`", "above 0 once `b` is", {"a": (0.0, None)}),
        ("`a`", "one of 16 to come, grows by 1", {"a": (None, None)}),
    ],
)  # fmt: skip
def test_every_way_to_write_a_bound_is_read(names, cell, wanted):
    assert page_bounds(rf"| {names} | \|x\|, above 7 | `rft/x.py` | {cell} |") == wanted
