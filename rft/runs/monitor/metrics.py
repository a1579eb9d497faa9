"""Rows of metrics for the monitor's page: mark, name, value, healthy range, spark line.

Every mark is a character as well as a colour: `!` out of its range now, `~` within the last steps, `+` healthy.
"""

import itertools

from rich.table import Table
from rich.text import Text

from rft.rules.healthy import HEALTHY, is_healthy
from rft.runs.monitor.layout import cut

MARKS = {"!": "bold red", "~": "yellow", "+": "green", " ": ""}
TIERS = {1: "signal", 2: "stability", 3: "collapse"}
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
LAST_STEPS = 10  # that far back a value out of its range still marks its metric
LEGEND = f"! out of its range, ~ was so within {LAST_STEPS} steps, + within it, x not finite"
VALUE, MIN_NAME = 10, 4  # columns of a value (`not finite`), and of a name at least
GAP = 2  # between two columns of metrics


def metric_rows(records: list[dict], width: int, plain: bool) -> list[tuple[str, Text]]:
    """(mark, line) of each metric that the run logs, tier by tier; a tier's heading has the mark `h`.

    What has no room is left out whole: first the curve, then the range; of a name its end.
    """
    logged = [name for name in HEALTHY if any(name in record for record in records)]
    longest, ranges = max(map(len, logged), default=0), max((len(bounds(name, plain)) for name in logged), default=0)
    name_width = max(MIN_NAME, min(longest, width - len("!  ") - VALUE))
    range_width = ranges if width >= len("!     ") + name_width + VALUE + ranges else 0
    rows = []
    for tier, title in TIERS.items():
        names = [name for name in logged if HEALTHY[name].tier == tier]
        if names:
            line = Text(f"  tier {tier}: {title}", "bold")
            if not rows and line.cell_len <= 2 + name_width:
                line.pad_right(2 + name_width - line.cell_len)
                line.append(f" {'now':>{VALUE}}" + (f"  {'range':<{ranges}} over the steps" if range_width else ""))
                line.truncate(width)
            rows.append(("h", line))
        rows += [_metric(records, name, width, plain, name_width, range_width) for name in names]
    return rows


def _metric(
    records: list[dict], name: str, width: int, plain: bool, name_width: int, range_width: int
) -> tuple[str, Text]:
    points = [record[name] for record in records if name in record]
    last, mark = points[-1], _mark(name, points[-LAST_STEPS:])
    value = "not finite" if last is None else show(last)
    shown = cut(Text(name), name_width, plain).plain
    line = Text.assemble(
        (mark, MARKS[mark]), f" {shown:<{name_width}} ", (f"{value:>{VALUE}}", MARKS["!"] if mark == "!" else "")
    )
    if not range_width:
        return mark, line
    line.append(f"  {bounds(name, plain):<{range_width}} ", "dim")
    return mark, line.append_text(spark(points, width - line.cell_len, name, plain))


def _mark(name: str, points: list[float | None]) -> str:
    verdicts = [_within(name, value) for value in points]
    if verdicts[-1] is False:
        return "!"
    if False in verdicts:
        return "~"
    return " " if verdicts[-1] is None else "+"


def _within(name: str, *values: float | None) -> bool | None:
    """`is_healthy` of several values together; one that is not finite never is."""
    verdicts = [False if value is None else is_healthy(name, value) for value in values]
    return False if False in verdicts else verdicts[0]


def bounds(name: str, plain: bool = False) -> str:
    """A metric's healthy range in a few characters; a tiny lower bound means that 0 is not healthy."""
    _, low, high = HEALTHY[name]
    lowest = None if low is None else "0" if 0 < low < 1e-3 else f"{low:g}"
    if high is None:
        return "" if low is None else f"> {lowest}" if 0 < low < 1e-3 else f"{'>=' if plain else '≥'} {lowest}"
    return f"{'<=' if plain else '≤'} {high:g}" if low is None else f"{lowest} to {high:g}"


def spark(points: list[float | None], width: int, name: str = "", plain: bool = False) -> Text:
    """A line of bars, each the mean of an equal share of the points; red where metric `name` left its range.

    Points that are not finite (None) show as `x`. The lowest bar is the smallest mean, the highest the largest.
    """
    bars, count = PLAIN_BARS if plain else BARS, min(max(width, 0), len(points))
    edges = [len(points) * i // count for i in range(count + 1)] if count else []
    shares = [points[start:end] for start, end in itertools.pairwise(edges)]
    means = [None if None in share else sum(share) / len(share) for share in shares]
    known = [mean for mean in means if mean is not None]
    low, high = (min(known), max(known)) if known else (0, 0)
    line = Text()
    for mean, share in zip(means, shares, strict=True):
        level = 0 if high == low or mean is None else min(len(bars) - 1, int((mean - low) / (high - low) * len(bars)))
        # A range is an interval, so the extremes speak for all.
        healthy = mean is not None and _within(name, min(share), max(share))
        line.append("x" if mean is None else bars[level], "red" if healthy is False else "cyan")
    return line


def fit(rows: list[tuple[str, Text]], room: int, columns: int) -> list[tuple[str, Text]]:
    """As many rows as there is room for: one heading, what is out of its range, then the others by tier."""
    if len(rows) <= room:
        return rows
    rows = rows[:1] + [row for row in rows[1:] if row[0] != "h"]
    order = [0, *sorted(range(1, len(rows)), key=lambda i: ("!~".find(rows[i][0]) % 3, i))]
    kept = sorted(order[: room - columns])
    hidden = len(rows) - len(kept)
    return [*(rows[i] for i in kept), (" ", Text(f"  {hidden} more metrics: --once, or a taller terminal", "dim"))]


def side_by_side(lines: list[Text]) -> Table:
    half = (len(lines) + 1) // 2
    grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    for column in range(2):
        grid.add_column(no_wrap=True)
        for line in lines[column * half : (column + 1) * half]:
            line.no_wrap = True
    for i in range(half):
        grid.add_row(lines[i], lines[half + i] if half + i < len(lines) else Text())
    return grid


def show(value: float) -> str:
    """A number in at most nine characters."""
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"
