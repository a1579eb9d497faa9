"""What a run's steps cost: seconds and rates by phase, phases over steps, memory over time. Numbers for inline SVG."""

import statistics
from collections.abc import Iterable

from rft.record.step_phases import PHASES, seconds, shares
from rft.runs.gpu_processes import ALL, UNKNOWN
from rft.runs.report import charts
from rft.runs.report.data import Run, number
from rft.runs.timeline import merged

WIDTH, HEIGHT = 720, 150
BARS = 120  # of one chart; neighbouring steps share one
COLUMNS = 240  # points of one memory chart
GAP_SECONDS = 30.0  # between two points: the run was not running
CLEAR = 0.75  # share of a point's time that its phase must have, in that share of the points
# From the bottom to the top, each in its colour.
ROLES = ("engine", "trainer", "controller", "driver", "other", UNKNOWN, ALL, "reference")
MIB = 1024  # a GiB
LATER = "the last minutes"


def median(run: Run, name: str) -> float | None:
    """The median of a metric over the steps; None where no step has it."""
    values = [value for _, value in charts.points(run.training, name)]
    return statistics.median(values) if values else None


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Tiles of the report's head: tokens a second, model FLOPs utilisation; those that were measured."""
    found = []
    if (rate := median(run, "tokens_per_second_step")) is not None:
        each = median(run, "tokens_per_second_step_per_gpu")
        beside = "whole step, median" + ("" if each is None else f"; {whole_number(each)} a GPU")
        found.append(("tokens a second", whole_number(rate), beside))
    if (used := median(run, "model_flops_utilization")) is not None:
        found.append(("model FLOPs utilisation", f"{used:.1%}", "of the training phase, median"))
    return found


def whole_number(value: float | None) -> str:
    """`9,016`; three digits below 100, a dash for none."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else charts.text(value)


def times(run: Run) -> dict:
    """Seconds by phase of the run, and of a step.

    Returns:
        `phases` and `step`: rows with `name`, `seconds`, `share`; those of `step` are means over the steps, and have
        medians of `rate` (tokens a second), `rate_gpu`, both texts, and `mfu`, None where there is none. `peak_gb`.
    """
    parts = [(str(p.get("phase")), number(p.get("seconds")) or 0.0) for p in run.phases]
    whole = sum(duration for _, duration in parts) or 1
    phases = [{"name": name, "seconds": duration, "share": duration / whole} for name, duration in parts]
    rows = [found for record in run.training if (found := seconds(record))]
    step = []
    for name, share in shares(run.training).items():
        row = {"name": name, "share": share, "seconds": sum(found.get(name, 0.0) for found in rows) / len(rows)}
        row["rate"] = whole_number(median(run, f"tokens_per_second_{name}"))
        row["rate_gpu"] = whole_number(median(run, f"tokens_per_second_{name}_per_gpu"))
        row["mfu"] = median(run, "model_flops_utilization" + ("" if name == "train" else f"_{name}"))
        step.append(row)
    return {"phases": phases, "step": step, "peak_gb": number(run.memory.get("peak_gb"))}


def step_chart(run: Run) -> dict | None:
    """Seconds of each step by phase as stacked bars; None where no step says them. See `chart`."""
    rows = [(r["global_step"], found) for r in run.training if (found := seconds(r))]
    if not rows:
        return None
    size = -(-len(rows) // BARS)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    names = [name for name in PHASES if any(name in found for _, found in rows)]
    means = [[sum(found.get(name, 0.0) for _, found in group) / len(group) for name in names] for group in groups]
    spans = [(float(place), place + 0.86) for place in range(len(groups))]
    labels = {place: charts.text(group[0][0]) for place, group in enumerate(groups)}
    every = max(1, -(-len(groups) // 8))
    ticks = [(place + 0.43, label) for place, label in labels.items() if place % every == 0]
    title = "seconds of a step" if size == 1 else f"seconds of a step, mean of {size}"
    styles = [f"p{PHASES.index(name)}" for name in names]
    return chart(title, spans, means, list(zip(names, styles, strict=True)), (0.0, float(len(groups))), ticks)


def memory_charts(run: Run) -> list[dict]:
    """Memory of the host and of each GPU by role over the run; of a longer one its last minutes too. See `chart`."""
    whole, recent = (timeline(run.timeline.get(key)) for key in ("whole", "recent"))
    lists = {"": whole} if whole else {}
    if len(whole) > COLUMNS:
        lists |= {f", {LATER}": recent} if recent else {}
    found = []
    for where, points in lists.items():
        size = -(-len(points) // COLUMNS)
        drawn = [merge(points[i : i + size]) for i in range(0, len(points), size)]
        start = whole[0]["time"]
        found.append(memory_chart(f"host, GB{where}", drawn, start, [point["host_gb"] for point in drawn], 1.0))
        for index in ordered({index for point in drawn for index in point["gpu_mib"]}):
            held = [point["gpu_mib"].get(index, {}) for point in drawn]
            found.append(memory_chart(f"GPU {index}, GiB{where}", drawn, start, held, MIB))
    return found


def ordered(indices: set[str]) -> list[str]:
    """Numbers in texts, the smallest first."""
    return sorted(indices, key=lambda index: (len(index), index))


def merge(points: list[dict]) -> dict:
    """One point of several neighbours."""
    made = points[0]
    for point in points[1:]:
        made = merged(made, point)
    return made


def memory_chart(title: str, points: list[dict], start: float, held: list[dict[str, float]], unit: float) -> dict:
    """The chart of one device: `held` is each point's memory by role, `start` the time that the axis counts from."""
    order = {role: place for place, role in enumerate(ROLES)}
    roles = sorted({role for roles in held for role in roles}, key=lambda role: (order.get(role, len(order)), role))
    spans = []
    for point, after in zip(points, [*points[1:], None], strict=True):
        end = point["time"] + point["seconds"]
        if after and abs(after["time"] - end) < GAP_SECONDS:
            end = after["time"]
        spans.append(((point["time"] - start) / 60, (max(end, point["time"]) - start) / 60))
    values = [[roles_.get(role, 0.0) / unit for role in roles] for roles_ in held]
    ends = (spans[0][0], max(end for _, end in spans))
    ticks = [(place, f"{charts.text(place)} min") for place in charts.nice_ticks(*ends, 8)]
    styles = [(role, f"f{order.get(role, place) % 6}") for place, role in enumerate(roles)]
    return chart(title, spans, values, styles, ends, ticks, phases_behind(points))


def phases_behind(points: list[dict]) -> list[str | None]:
    """The phase that each point lies in, None outside a step; nothing where phases are shorter than points."""
    names = [max(point["phases"], key=point["phases"].get, default="") for point in points]
    clear = [p["phases"].get(name, 0.0) >= CLEAR * p["seconds"] for name, p in zip(names, points, strict=True)]
    if sum(clear) < CLEAR * len(points):
        return []
    return [name if name in PHASES else None for name in names]


def chart(
    title: str,
    spans: list[tuple[float, float]],
    values: list[list[float]],
    names: list[tuple[str, str]],
    ends: tuple[float, float],
    ticks: Iterable[tuple[float, str]],
    behind: Iterable[str | None] = (),
) -> dict:
    """A stacked chart of piecewise constant values.

    Args:
        spans: horizontal (from, to) of each column; values: of each column, one a name, none below 0.
        names: (name, style) from the bottom to the top.
        ends: of the horizontal axis; ticks: (place, text) on it.
        behind: a phase behind each column, or None.

    Returns:
        `title`, `layers` and `behind` (`name`, `style`, SVG `path`), `x_ticks`, `y_ticks`, `most`.
    """
    totals = [sum(column) for column in values]
    behind = list(behind)
    top = max(totals, default=0.0) * (1.2 if behind else 1.05) or 1.0
    first, last = ends
    wide, high = WIDTH - charts.LEFT - charts.RIGHT, HEIGHT - charts.TOP - charts.BOTTOM

    def x(place: float) -> float:
        return round(charts.LEFT + wide * ((place - first) / (last - first) if last > first else 0.5), 1)

    def y(value: float) -> float:
        return round(HEIGHT - charts.BOTTOM - high * value / top, 1)

    layers, below = [], [0.0] * len(values)
    for place, (name, style) in enumerate(names):
        above = [low + column[place] for low, column in zip(below, values, strict=True)]
        path = area([(x(a), x(b)) for a, b in spans], [y(v) for v in below], [y(v) for v in above])
        layers.append({"name": name, "style": style, "path": path})
        below = above
    strips: dict[str, str] = {}
    for (a, b), name in zip(spans, behind, strict=False):
        if name:
            strips[name] = strips.get(name, "") + f"M{x(a)} {charts.TOP}H{x(b)}V{HEIGHT - charts.BOTTOM}H{x(a)}Z"
    shown = [{"name": n, "style": f"p{PHASES.index(n)}", "path": strips[n]} for n in PHASES if n in strips]
    marks = charts.nice_ticks(0.0, top, 4)
    return {
        "title": title, "layers": layers, "behind": shown, "most": charts.text(max(totals, default=0.0)),
        "x_ticks": [(x(place), label) for place, label in ticks],
        "y_ticks": [(y(mark), charts.text(mark)) for mark in marks],
    }  # fmt: skip


def area(spans: list[tuple[float, float]], low: list[float], high: list[float]) -> str:
    """SVG path of columns between `low` and `high`; neighbours that touch are one shape, empty ones none."""
    path, start = "", 0
    while start < len(spans):
        end = start + 1
        while end < len(spans) and spans[end][0] == spans[end - 1][1]:
            end += 1
        part = range(start, end)
        if any(low[i] != high[i] for i in part):
            path += "M" + "L".join(f"{spans[i][0]} {high[i]}H{spans[i][1]}" for i in part)
            path += "L" + "L".join(f"{spans[i][1]} {low[i]}H{spans[i][0]}" for i in reversed(part)) + "Z"
        start = end
    return path


def peaks(run: Run) -> dict:
    """The most that a phase held: `devices` (host, GPUs) and `rows` of `name` and `cells`, one text a device."""
    held = run.timeline.get("peaks")
    phases = {name: clean(point) for name, point in held.items()} if isinstance(held, dict) else {}
    indices = ordered({index for point in phases.values() for index in point["gpu_mib"]})
    order = {name: place for place, name in enumerate(PHASES)}
    rows = []
    for name in sorted(phases, key=lambda name: (order.get(name, len(order)), name)):
        point = phases[name]
        cells = [parts(point["host_gb"], 1.0)] + [parts(point["gpu_mib"].get(index, {}), MIB) for index in indices]
        rows.append({"name": name or "outside a step", "cells": cells})
    return {"devices": ["host, GB", *(f"GPU {index}, GiB" for index in indices)], "rows": rows}


def parts(roles: dict[str, float], unit: float) -> str:
    """`51.2: engine 30.1, trainer 21.1`, the largest first."""
    ranked = sorted(roles.items(), key=lambda item: -item[1])
    each = ", ".join(f"{name} {value / unit:.1f}" for name, value in ranked)
    return f"{sum(roles.values()) / unit:.1f}: {each}" if each else "–"


def timeline(value: object) -> list[dict]:
    """The points of a list from `memory_timeline.json` that are points, in the order of time."""
    found = [clean(item) for item in value] if isinstance(value, list) else []
    return sorted((point for point in found if point["seconds"] > 0), key=lambda point: point["time"])


def clean(point: object) -> dict:
    """A point of `rft.runs.timeline` with what is no number of at least 0 left out."""
    fields = point if isinstance(point, dict) else {}
    gpus = fields.get("gpu_mib") if isinstance(fields.get("gpu_mib"), dict) else {}
    return {
        "time": number(fields.get("time")) or 0.0, "seconds": number(fields.get("seconds")) or 0.0,
        "phases": numbers(fields.get("phases")), "host_gb": numbers(fields.get("host_gb")),
        "gpu_mib": {index: numbers(roles) for index, roles in gpus.items()},
    }  # fmt: skip


def numbers(value: object) -> dict[str, float]:
    items = value.items() if isinstance(value, dict) else ()
    return {name: item for name, item in items if number(item) is not None and item >= 0}
