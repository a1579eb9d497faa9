"""The monitor's page: a state of `rft.runs.monitor.state` as lines of rich text. Pure; it neither reads nor writes."""

import textwrap
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group
from rich.text import Text

from rft.runs.monitor.forecast import cost_in_words, idle_in_words, left_in_words
from rft.runs.monitor.layout import INDENT, comma_parts, cut, flow
from rft.runs.monitor.metrics import GAP, LEGEND, MARKS, fit, metric_rows, show, side_by_side, spark
from rft.runs.monitor.progress import clock, cost, status, step_seconds, training_seconds
from rft.runs.monitor.state import State
from rft.stats import wilson_interval

STYLES = {"good": "bold green", "busy": "bold cyan", "warn": "bold yellow", "bad": "bold red"}
PROBLEMS = "_problems"  # ends the metric that counts an evaluation's problems
TWO_COLUMNS = 150  # from this width on
GPU_WIDTH = 38  # columns of one GPU's numbers
FULL_DISK, LOW_DISK = 0.02, 0.1  # share of the disk that is free: red, yellow


def page(state: State, width: int, height: int | None = None, plain: bool = False) -> Group:
    """One page.

    Args:
        width: columns of the terminal; no line is wider.
        height: lines of the terminal; metrics that need no attention are left out first. None: all of them.
        plain: only ASCII in what the page draws itself.
    """
    above = [*_head(state, width, plain), Text()]
    below = [
        *_evaluations(state, width, plain),
        *_events(state, width, 3 if height is None else 1),
        *_machine(state, width),
    ]
    columns = 2 if width >= TWO_COLUMNS else 1
    rows = metric_rows(state.training.records, (width - GAP * (columns - 1)) // columns, plain)
    if height is not None:
        rows = fit(rows, max(2, height - len(above) - len(below) - 1) * columns, columns)
    lines = [row for _, row in rows]
    body = lines if columns == 1 else [side_by_side(lines)]
    legend = flow(LEGEND.split(" "), width, "dim", gap=" ") if lines and height is None else []
    texts = [*above, *body, *legend, *([Text()] if lines else []), *below]
    texts = [cut(text, width, plain) if isinstance(text, Text) else text for text in texts]
    return Group(*(texts if height is None or columns == 2 else texts[:height]))


def _head(state: State, width: int, plain: bool) -> list[Text]:
    now, records = status(state), state.training.records
    name = cut(Text(clean(state.name), "bold"), width, plain)
    lines = flow([name, Text(now.word, STYLES[now.style])], width, gap="   ")
    lines += _wrapped(now.detail, width, STYLES[now.style])
    step, seconds = (records[-1]["global_step"] if records else 0), step_seconds(state)
    share = min(1.0, step / state.total_steps) if state.total_steps else None
    words = [f"step {step:.0f} of {state.total_steps}", f"{share:.0%}"] if state.total_steps else [f"step {step:.0f}"]
    if seconds:
        words.append(f"{clock(seconds)} a step")
    if not now.ended and (not state.total_steps or step < state.total_steps):
        words += left_in_words(state)
    if share is not None and (room := min(40, width - len("  ".join(words)) - 2)) > 5:
        words.insert(0, _bar(share, room, plain))
    lines += flow(words, width)
    costs = [*cost(records), ", ".join(idle_in_words(state)), ", ".join(cost_in_words(state, now.ended))]
    costs = [part for part in costs if part]
    for part in ["; ".join(costs)] if len("; ".join(costs)) <= width - INDENT else costs:
        lines += [
            Text(" " * INDENT, "dim").append_text(line)
            for line in flow(comma_parts(part), width - INDENT, gap=" ", indent=0)
        ]
    facts = []
    if state.started:
        facts.append(f"started {datetime.fromtimestamp(state.started, UTC):%Y-%m-%d %H:%M} UTC")
    if state.training.modified and not now.ended:
        facts.append(f"last line {clock(max(0, state.now - state.training.modified))} ago")
    if state.log_modified and not now.ended:
        facts.append(f"train.log {clock(max(0, state.now - state.log_modified))} ago")
    if now.ended and (trained := training_seconds(state)):
        facts.append(f"trained for {clock(trained)}")
    lines += flow(comma_parts(", ".join(facts) or "no run.json yet"), width, "dim", gap=" ")
    if state.phases.records:
        lines += flow(comma_parts(_phases(state, width)), width, "dim", gap=" ")
    if now.style == "bad" and now.word == "ended early":
        lines += [part for line in state.log_tail if line.strip() for part in _wrapped(line, width, "red")]
    return lines


def _wrapped(words: str, width: int, style: str, most: int = 3) -> list[Text]:
    """Words on up to `most` lines, no word broken."""
    words, room = clean(words), max(10, width - INDENT)
    lines = textwrap.wrap(
        words, room, max_lines=most, placeholder=" ..", break_long_words=False, break_on_hyphens=False
    )
    return [Text(" " * INDENT + line, style) for line in lines]


def _phases(state: State, width: int) -> str:
    """The finished phases with their times; where they do not all fit, the last ones."""
    done = [clean(f"{p['phase']} {clock(p['seconds'])}") for p in state.phases.records]
    while len(text := "phases done: " + ", ".join(done)) > width and len(done) > 2:
        done = ["..", *done[1 + (done[0] == "..") :]]
    return text


def _bar(share: float, width: int, plain: bool) -> str:
    full = int(share * width)
    return ("#" if plain else "█") * full + ("." if plain else "░") * (width - full)


def _evaluations(state: State, width: int, plain: bool) -> list[Text]:
    """The newest value of each data source and mode, with Wilson's interval where the value is a count of problems."""
    series = {}
    for record in state.evaluations.records:
        for name, value in record.items():
            if name.startswith("eval_") and not name.endswith(PROBLEMS) and isinstance(value, int | float):
                series.setdefault(name, []).append((record["global_step"], value))
    rows = []  # name, value, when, interval, all values
    for name, points in series.items():
        step, value = points[-1]
        rows.append((clean(name[5:]), value, f"step {step:.0f}", _interval(state, name, value), [v for _, v in points]))
    for key in ("before", "after"):
        found = state.result.get(key)
        if isinstance(found, dict) and isinstance(value := found.get(found.get("mode")), int | float):
            name = clean(f"{found['dataset']} {found['mode']}")
            rows.append((name, value, key, (*found["interval95"], found["n"]), []))
    lines, widest = [], min(36, max((len(row[0]) for row in rows), default=0))
    for name, value, when, interval, values in rows:
        between = "{:.3f} to {:.3f}, n={}".format(*interval) if interval else ""
        shown = cut(Text(name), widest, plain).plain
        line = Text(f"  {shown:<{widest}} {value:.3f}  {when:<9} {between:<22} ")
        if len(line.plain.rstrip()) <= width:
            lines.append(line.append_text(spark(values, width - line.cell_len, plain=plain)))
        else:
            name = cut(Text(name), width - INDENT, plain).plain
            lines += flow([" " * INDENT + name, f"{value:.3f}", when, between], width, indent=2 * INDENT)
    if state.best:
        where = Path(state.best.get("checkpoint") or "the base model").name
        value, metric = show(state.best["value"]), state.best["metric"].removeprefix("eval_")
        lines += flow(
            [f"  best: step {state.best['global_step']},", f"{clean(metric)} {value},", clean(where)], width, gap=" "
        )
    return [Text("evaluations (95% interval)", "bold"), *lines, Text()] if lines else []


def _interval(state: State, name: str, value: float) -> tuple[float, float, int] | None:
    """Wilson's interval and n, where the value is a share of problems, each solved or not; else None.

    `pass@k` in the loop is one: the share of problems with a right sample among the k that were drawn. `pass1` of older
    runs is one where a single sample was drawn, and says nothing about n: the evaluation set does.
    """
    last = state.evaluations.records[-1]
    logged = {key[5 : -len(PROBLEMS)]: round(n) for key, n in last.items() if key.endswith(PROBLEMS) and n}
    for source, n in {**state.eval_problems, **logged}.items():
        mode = name.removeprefix(f"eval_{source}_")
        is_share = "_pass@" in mode or (mode == "pass1" and state.options.eval_n_samples_per_prompt == 1)
        right = round(value * n)
        if mode != name and is_share and abs(value * n - right) < 1e-3 and 0 <= right <= n:
            return (*wilson_interval(right, n), n)
    return None


def _events(state: State, width: int, most: int) -> list[Text]:
    lines = []
    for record in state.spikes:
        worst = record.get("worst_tokens") or [{}]
        token = f"worst token {worst[0]['token']!r}" if isinstance(worst[0].get("token"), str) else ""
        norm = record.get("grad_norm")
        norm = f"grad_norm {'not finite' if norm is None else show(norm)}"
        parts = [f"  step {record['global_step']}", norm, token, clean(str(record.get("bundle") or "no bundle"))]
        lines += flow(parts, width, "yellow", indent=2 * INDENT)
    if lines:
        lines.insert(0, Text("last spikes", "bold"))
    decisions = state.decisions.records[-3:]
    if decisions:
        lines.append(Text("decisions", "bold"))
    for record in decisions:
        style = STYLES["bad"] if record.get("action") == "stop" else "yellow"
        words = (f"step {record['global_step']}", record.get("action"), record.get("rule"), record.get("reason"))
        lines += _wrapped("  ".join(str(word) for word in words if word), width, style, most)
    return lines


def _machine(state: State, width: int) -> list[Text]:
    free, total = state.disk
    share = free / total if total else 1.0
    mark, style = ("!", "bold red") if share < FULL_DISK else ("~", "yellow") if share < LOW_DISK else ("+", "")
    parts = [Text.assemble((mark, MARKS[mark]), (f" disk {free / 1e9:.1f} GB free of {total / 1e9:.0f}", style))]
    parts.append(f"{state.processes} processes of this run here")
    if state.peak_gb is not None:
        parts.append(f"peak memory {state.peak_gb:.1f} GB")
    lines = flow(parts, width, gap="   ")
    if isinstance(state.gpus, str):
        lines += flow(["!", clean(state.gpus)], width, "yellow", gap=" ")
    gpus = (
        []
        if not isinstance(state.gpus, list)
        else [
            f"  GPU {index} {used:>3}% {memory:>6} of {of} MiB {heat} C" for index, used, memory, of, heat in state.gpus
        ]
    )
    a_line = width // GPU_WIDTH
    if a_line:
        rows = [gpus[i : i + a_line] for i in range(0, len(gpus), a_line)]
        lines += [Text("".join(f"{gpu:<{GPU_WIDTH}}" for gpu in row).rstrip()) for row in rows]
    else:
        lines += [line for gpu in gpus for line in flow(["", *gpu.split()], width, gap=" ", indent=4)]
    files = {"phases": state.phases, "training_metrics": state.training, "eval_metrics": state.evaluations}
    for name, read in {**files, "decisions": state.decisions}.items():
        if read.broken:
            words = f"~ {name}.jsonl: {read.broken} lines are not complete records and are left out"
            lines += flow(words.split(" "), width, "yellow", gap=" ")
    if not state.training.records and not state.metrics_elsewhere:
        lines += _wrapped("if the run logs to another path, set METRICS_LOG_DIR here too", width, "dim")
    return lines


def clean(text: str) -> str:
    """One line without control characters: what a model wrote must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
