"""Samples as rich text: a table of the steps, samples one below the other, or a group side by side."""

import re

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rft.record.conversation import ENVIRONMENT, turns_of
from rft.runs.report.cli import question
from rft.runs.report.samples import shortened
from rft.runs.samples.read import Sample

CHARS, WHOLE = 1_500, 10**9  # of a prompt or response that is not shown in full, and of one that is
BAR = "│ "  # before each line that an environment wrote
COLUMN = 36  # characters that a text side by side has at least
GAP = 2
RIGHT = {"yes": ("right", "green"), "no": ("wrong", "red"), "unknown": ("not graded", "yellow")}
# The most wanted columns first: in a narrow terminal the last ones are left out. A number is never cut.
STEP_COLUMNS = ("step", "from", "reward", "cut", "tokens", "searches", "samples", "right", "longest", "groups")


def steps(console: Console, rows: list[dict]) -> None:
    """A line a step: `rows` as `rft.runs.samples.read.summary` makes them."""
    cells = [
        {
            "step": str(row["step"]), "from": {"training": "train", "evaluation": "eval"}[row["kind"]],
            "reward": share(row["reward"]), "cut": share(row["truncated"]), "right": share(row["right"]),
            "tokens": whole(row["tokens"]), "longest": whole(row["longest"]),
            "samples": str(row["samples"]), "groups": str(row["groups"]), "searches": share(row["searches"]),
        }
        for row in rows
    ]  # fmt: skip
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in STEP_COLUMNS}
    names = [name for name in STEP_COLUMNS if name != "searches" or any(row[name] is not None for row in rows)]
    while len(names) > 1 and sum(widths[name] + GAP for name in names) - GAP > console.width:
        names.pop()
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name == "from" else "right", overflow="fold", min_width=widths[name])
    for row in cells:
        table.add_row(*(row[name] for name in names))
    console.print(table)


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def one(console: Console, sample: Sample, search: re.Pattern | None, full: bool) -> None:
    """A sample: its numbers, the question (in full: the prompt), the response."""
    console.print(heading(sample, f"step {sample.step}, group {sample.group}, sample {sample.number}"))
    prompt = str(sample.row.get("prompt", ""))
    console.print(plain(prompt if full else question(prompt), search, "dim"))
    console.print(response(sample, search, full))
    console.print()


def side_by_side(console: Console, group: list[Sample], search: re.Pattern | None, full: bool) -> None:
    """The samples of a group in as many columns as have room, at least one."""
    first, prompt = group[0], str(group[0].row.get("prompt", ""))
    rewards = [reward for one in group if (reward := one.facts()["reward"]) is not None]
    spread = f", rewards {min(rewards):g} to {max(rewards):g}" if rewards else ""
    console.print(Text(f"step {first.step}, {first.kind}, group {first.group}, samples: {len(group)}{spread}", "bold"))
    console.print(plain(prompt if full else question(prompt), search, "dim"))
    columns = max(1, min(len(group), (console.width + GAP) // (COLUMN + GAP)))
    for start in range(0, len(group), columns):
        row = group[start : start + columns]
        table = Table.grid(padding=(0, GAP, 1, 0), pad_edge=False)
        for _ in range(columns):
            table.add_column(width=(console.width + GAP) // columns - GAP, overflow="fold")
        table.add_row(*(heading(sample, f"sample {sample.number}") for sample in row))
        table.add_row(*(response(sample, search, full) for sample in row))
        console.print(table)


def heading(sample: Sample, place: str) -> Text:
    """`<place>: right, reward 1, answer 41, label 41, 512 tokens`."""
    facts = sample.facts()
    word, style = RIGHT[facts["right"]]
    text = Text(f"{place}: ", "bold").append(word, style)
    reward = "no reward" if facts["reward"] is None else f"reward {facts['reward']:.4g}"
    words = [reward, f"answer {facts['answer']}", f"label {facts['label']}"]
    words += [] if facts["tokens"] is None else [f"{facts['tokens']:,.0f} tokens"]
    words += [] if facts["searches"] is None else [f"searches {facts['searches']:g}"]
    text.append(" ".join(clean(", ".join(["", *words])).split()), "not bold")
    return text.append(", cut at the limit", "bold red") if facts["cut"] else text


def response(sample: Sample, search: re.Pattern | None, full: bool) -> Text:
    """What the model wrote; of a conversation each turn under its heading, what an environment wrote behind a bar."""
    turns = shortened(turns_of(sample.row), WHOLE if full else CHARS)
    if len(turns) == 1:
        return plain(turns[0]["text"], search)
    parts = []
    for turn in turns:
        words = [turn["by"]] + ([] if turn["tokens"] is None else [f"{turn['tokens']:g} tokens"])
        words += [] if turn["seconds"] is None else [f"{turn['seconds']:.1f} s"]
        parts.append(Text(f"[{', '.join(words)}]", "dim bold"))
        text, style = turn["text"].strip("\n"), ""
        if turn["by"] == ENVIRONMENT:
            text, style = "\n".join(BAR + line for line in text.split("\n")), "dim"
        parts.append(plain(text, search, style))
    return Text("\n").join(parts)


def plain(text: str, search: re.Pattern | None = None, style: str = "") -> Text:
    """Text of a model for a terminal, which it must not steer: special tokens dim, what was searched for marked."""
    shown = Text(clean(text), style)
    shown.highlight_regex(r"<\|[^|<>]{1,40}\|>", "dim cyan")
    if search:
        shown.highlight_regex(search, "bold reverse")
    return shown


def clean(text: str) -> str:
    """Text without control characters; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "?" for c in text)
