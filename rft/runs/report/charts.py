"""Curves as the numbers that an inline SVG needs: paths, ticks, the healthy band. No plotting library."""

import itertools
import math
from collections.abc import Callable, Collection, Sequence

from rft.record.eval_names import parse
from rft.record.names import CLOCKS
from rft.rules.healthy import HEALTHY, is_healthy
from rft.runs.report.data import Run, number
from rft.stats import wilson_interval

WIDTH, HEIGHT = 340, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 8, 20
POINTS = 400  # raw points of one curve in the page; of more, the lowest and highest of each stretch stay
FLAT = 1e-5  # of a value: what varies less is rounding, and its axis would have labels of nine digits
TIERS = {1: "Tier 1: does it learn", 2: "Tier 2: is it stable", 3: "Tier 3: does it collapse"}
PASS_AT_1 = ("_pass1", "_pass@1")

Points = list[tuple[float, float]]


def points(records: list[dict], name: str) -> Points:
    """(step, value) of a metric where it is a finite number."""
    return [(r["global_step"], r[name]) for r in records if number(r.get(name)) is not None]


def tiers(runs: list[Run], supervised: Collection[bool] = (False,)) -> list[dict]:
    """The metrics of `rft.rules.healthy` by tier: `title`, `charts`, and `absent`, names that no run logged.

    Args:
        supervised: the kinds of the runs; what no run of such a kind logs is no absence.
    """
    steps = step_range(runs)
    found = {tier: {"title": title, "charts": [], "absent": []} for tier, title in TIERS.items()}
    for name, bounds in HEALTHY.items():
        curves = [points(run.training, name) for run in runs]
        if any(curves):
            gaps = [sum(name in r and number(r[name]) is None for r in run.training) for run in runs]
            drawn = chart(name, curves, steps, (bounds.low, bounds.high))
            found[bounds.tier]["charts"].append(drawn | {"gaps": gaps})
        elif name.startswith("sft_") in supervised:
            found[bounds.tier]["absent"].append(name)
    return [tier for tier in found.values() if tier["charts"] or tier["absent"]]


def others(runs: list[Run]) -> list[dict]:
    """Every other metric: `name` and, for each run, (first, last, lowest, highest) as texts, None where it has none."""
    logged = dict.fromkeys(name for run in runs for record in run.training for name in record)
    found = []
    for name in sorted(set(logged) - set(HEALTHY) - {"global_step", *CLOCKS}):
        columns = [[v for _, v in points(run.training, name)] for run in runs]
        ends = [[text(v) for v in (c[0], c[-1], min(c), max(c))] if c else None for c in columns]
        found.append({"name": name, "runs": ends})
    return found


def is_share(name: str) -> bool:
    """Whether a metric of an evaluation in the loop is a share of problems, and so has an interval."""
    found = parse(name)
    return found is not None and ("_pass@" in found[1] or found[1] == "pass1")


def loop_charts(runs: list[Run], sizes: list[dict[tuple[float, str], int]]) -> list[dict]:
    """Evaluations in the loop, one chart a metric; the numbers of problems are no metric.

    Args:
        sizes: for each run, number of problems by step and metric, where it is known; it then has Wilson's interval.
    """
    keys = {key for run in runs for r in run.loop for key in r if points([r], key)} - {"global_step", *CLOCKS}
    names = sorted(key for key in keys if not key.endswith("_problems"))
    found = []
    for name in names:
        curves, whiskers = [points(run.loop, name) for run in runs], []
        for curve, known in zip(curves, sizes, strict=True):
            whiskers.append(
                [
                    (step, *wilson_interval(round(value * n), n))
                    for step, value in curve
                    if (n := known.get((step, name), 0)) > 0 and 0 <= value <= 1
                ]
            )
        drawn = chart(name, curves, step_range(runs), whiskers=whiskers)
        found.append(drawn | {"gaps": [0] * len(runs), "measured": any(whiskers)})
    return found


def step_range(runs: list[Run]) -> tuple[float, float]:
    """First and last step that any run logged; evaluations count from their own steps."""
    steps = [r["global_step"] for run in runs for r in (*run.training, *run.loop)]
    return (min(steps), max(steps)) if steps else (0, 1)


def chart(
    name: str,
    curves: list[Points],
    steps: tuple[float, float],
    band: Sequence[float | None] = (None, None),
    whiskers: list[list[tuple]] | None = None,
) -> dict:
    """One chart of several runs.

    Args:
        curves: (step, value) of each run.
        steps: ends of the horizontal axis.
        band: healthy bounds (low, high), either may be None.
        whiskers: for each run, (step, low, high) of the points that have an interval; such a curve is not smoothed.

    Returns:
        `name`, `band` (text and rectangle), `runs` (SVG paths `raw`, `line`, `bad`, `whisker`; `last`; `healthy`),
        `x_ticks`, `y_ticks` ((position, text)), `log` (whether the vertical axis is logarithmic).
    """
    bars = whiskers or [[] for _ in curves]
    values = [v for curve in curves for _, v in curve] + [v for bar in bars for _, *ends in bar for v in ends]
    log = min(values) > 0 and max(values) > 100 * min(values)
    low, high = domain(values, band, log)
    scale = math.log10 if log else float
    first, last = steps

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5), 1)

    def y(value: float) -> float:
        share = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    drawn = []
    for curve, intervals in zip(curves, bars, strict=True):
        kept = thin(curve)
        ill = [p for p in kept if is_healthy(name, p[1]) is False]
        smooth = curve if whiskers is not None or len(kept) < 5 else smoothed(averaged(curve), log)
        drawn.append(
            {
                "raw": "".join(f"M{x(s)} {y(v)}h0" for s, v in kept),
                "bad": "".join(f"M{x(s)} {y(v)}h0" for s, v in ill),
                "line": "M" + "L".join(f"{x(s)} {y(v)}" for s, v in smooth) if len(smooth) > 1 else "",
                "whisker": "".join(f"M{x(s)} {y(a)}V{y(b)}" for s, a, b in intervals),
                "last": text(curve[-1][1]) if curve else "–",
                "healthy": is_healthy(name, curve[-1][1]) if curve else None,
                "unhealthy": sum(is_healthy(name, v) is False for _, v in curve),
                "points": len(curve),
            }
        )
    ticks = log_ticks(low, high) if log else nice_ticks(low, high, 4)
    digits = tick_digits(ticks)
    return {
        "name": name, "band": band_of(band, low, high, y), "runs": drawn, "log": log,
        "x_ticks": [(x(s), text(s)) for s in nice_ticks(first, last, 5) if s == int(s)],
        "y_ticks": [(y(v), text(v, digits)) for v in ticks],
    }  # fmt: skip


def domain(values: list[float], band: Sequence[float | None], log: bool) -> tuple[float, float]:
    """Ends of the vertical axis: the values, and a healthy bound where a value breaks it or comes near it."""
    low, high = min(values), max(values)
    if low == high == 0 and not any(band):
        return 0.0, 1.0
    reach = (high - low) or abs(high) or 1.0
    for side, bound in enumerate(band):
        if bound is None or (log and bound <= 0):
            continue
        near = not log and low - reach / 2 <= bound <= high + reach / 2
        if near or (high < bound if side == 0 else low > bound):
            low, high = min(low, bound), max(high, bound)
    if log:
        return low / 1.2, high * 1.2
    flat = high - low < FLAT * max(abs(low), abs(high))
    pad = (0 if flat else 0.06 * (high - low)) or 0.1 * abs(high) or 0.5
    return (low if low == 0 else low - pad), high + pad


def band_of(bounds: Sequence[float | None], low: float, high: float, y: Callable[[float], float]) -> dict | None:
    """The healthy band: `text`, and `top` and `height` of its rectangle within the axis."""
    if bounds[0] is bounds[1] is None:
        return None
    ends = zip(bounds, (low, high), strict=True)
    inside = [min(max(end if bound is None else bound, low), high) for bound, end in ends]
    top, bottom = y(inside[1]), y(inside[0])
    parts = [f"{sign} {text(bound)}" for sign, bound in zip("≥≤", bounds, strict=True) if bound is not None]
    return {"text": ", ".join(parts), "top": top, "height": round(max(bottom - top, 1.5), 1)}


def smoothed(curve: Points, log: bool = False) -> Points:
    """Gaussian mean around each point, of the logarithms on a logarithmic axis; its width is a fortieth of the steps,
    at least one. It does not lag behind, as an exponential mean does."""
    width = max(1.0, (curve[-1][0] - curve[0][0]) / 40)
    curve = [(step, math.log(value)) for step, value in curve] if log else curve
    found, start = [], 0
    for step, _ in curve:
        while curve[start][0] < step - 3 * width:
            start += 1
        total = weight = 0.0
        for other, value in curve[start:]:
            if other > step + 3 * width:
                break
            share = math.exp(-(((other - step) / width) ** 2) / 2)
            total, weight = total + share * value, weight + share
        found.append((step, math.exp(total / weight) if log else total / weight))
    return found


def thin(curve: Points, count: int = POINTS) -> Points:
    """At most `count` points: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(curve) <= count:
        return curve
    size, kept = math.ceil(len(curve) / (count // 2)), []
    for start in range(0, len(curve), size):
        stretch = curve[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def averaged(curve: Points, count: int = POINTS) -> Points:
    """At most `count` points: the mean of each stretch."""
    size = math.ceil(len(curve) / count)
    stretches = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in stretches]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from low to high."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.99)
    start = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(start, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between low and high, at most five."""
    powers = list(range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1))
    return [10.0**p for p in powers[:: max(1, math.ceil(len(powers) / 5))]]


def tick_digits(ticks: list[float]) -> int:
    """Significant digits that tell the ticks apart, at least three."""
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    largest = max((abs(tick) for tick in ticks), default=0.0)
    return max(3, math.ceil(math.log10(largest / min(gaps))) + 1) if gaps and largest else 3


def text(value: float, digits: int = 3) -> str:
    """A number with that many significant digits, as short as it goes."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def hover(runs: list[Run], names: list[str]) -> dict:
    """What the page's script reads out under the pointer: steps of each run and values by metric, four digits."""
    found = []
    for run in runs:
        kept = [run.training[i] for i in sorted({round(j * (len(run.training) - 1) / 999) for j in range(1000)})] if (
            len(run.training) > 1000
        ) else run.training  # fmt: skip
        rounded = {
            name: [None if number(r.get(name)) is None else float(f"{r[name]:.4g}") for r in kept] for name in names
        }
        found.append({"label": run.label, "steps": [r["global_step"] for r in kept], "values": rounded})
    first, last = step_range(runs)
    return {"first": first, "last": last, "left": LEFT, "right": WIDTH - RIGHT, "width": WIDTH, "runs": found}
