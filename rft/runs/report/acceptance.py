"""The `# Acceptance:` line of a run's launcher, held against what the run measured.

    # Acceptance: 'after - before >= 0.03' (greedy_pass@1, some_ood.jsonl, 95% interval of the difference above 0)

In quotes: comparisons with `<`, `<=`, `>` or `>=`, joined by `and`, of sums, products and numbers with

    after, before                          the evaluations of evals/after.json and before.json, problem by problem
    max(METRIC), min(METRIC), mean(METRIC) of training_metrics.jsonl, of its last steps with METRIC[-50:]

Behind the quotes these are understood: a mode and a file, which choose the evaluation; `share of boxed answers`, the
format checks of a supervised run in place of evaluations; `interval … above 0` and `format check '…' after`, further
conditions; `mean over seeds`, which one run cannot decide. Whatever else stands there is for the reader.
"""

import ast
import operator
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from rft.runs.report.comparisons import within
from rft.runs.report.config import ROOT, launched
from rft.runs.report.data import Run, number

LINE = re.compile(r"^# Acceptance: ('([^']+)'.*)$", re.MULTILINE)
MET, NOT_MET, OPEN = "met", "not met", "not decidable"
COMPARE = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
OVER_STEPS = {"max": max, "min": min, "mean": lambda values: sum(values) / len(values)}


class Verdict(NamedTuple):
    """`word`: met, not met or not decidable. `line`: what the launcher says. `reasons`: a text for each condition."""

    word: str
    line: str
    reasons: list[str]


class Undecidable(Exception):
    """Why a condition cannot be decided by this run."""


def acceptance(run: Run) -> Verdict | None:
    """Whether the run does what its launcher wants; None where no launcher with such a line is known."""
    match = LINE.search(launcher_text(run))
    return judge(match[1], match[2], run) if match else None


def launcher_text(run: Run) -> str:
    """The launcher as it was at the run's commit, else as it is now; empty where none is known."""
    name, _ = launched(run)
    if not name:
        return ""
    file = f"launch/{name}.sh"
    git = run.manifest.get("git")
    commit = git.get("commit") if isinstance(git, dict) else None
    if shutil.which("git") and isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40}", commit):
        shown = ["git", "show", f"{commit}:{file}"]
        found = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout
    return (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""


def judge(line: str, conditions: str, run: Run) -> Verdict:
    """The verdict on the conditions in quotes and those of the words behind them. `line` is all of it."""
    behind = line[len(conditions) + 2 :]
    evaluated = boxed(run) if "share of boxed answers" in behind else chosen(within(run), behind)
    decided: list[tuple[bool | None, str]] = []
    for text in re.split(r"\s+and\s+", conditions):
        try:
            decided.append(decide(text, run, evaluated))
        except Undecidable as why:
            decided.append((None, f"{text}: not decidable, {why}"))
    if re.search(r"interval[^,;]* above 0", behind):
        decided.append(above_zero(evaluated))
    if wanted := re.search(r"format check '([^']+)' after", behind):
        decided.append(format_is(wanted[1], run))
    if seeds := re.search(r"mean over seeds[\d, ]*", behind):
        decided.append((None, f"{seeds[0].strip()}: not decidable, this is one run"))
    results = [result for result, _ in decided]
    word = NOT_MET if False in results and not seeds else OPEN if None in results else MET
    return Verdict(word, line, [reason for _, reason in decided])


def chosen(comparisons: list[dict], words: str) -> dict | str:
    """The comparison before/after that the words choose, or why there is none."""
    if not comparisons:
        return "there is no evaluation before and after"
    named = re.search(r"[\w.-]+\.jsonl", words)
    judged = [one for one in comparisons if one["versus"]]
    fitting = [
        one
        for one in judged
        if (named is None or Path(one["versus"]["dataset"]).name == named[0])
        and (not re.search(r"pass@|avg@", words) or one["versus"]["mode"] in words)
    ]
    if fitting:
        return fitting[0]
    if not judged:
        return comparisons[0]["sentence"].removeprefix("No verdict: ").rstrip(".")
    there = ", ".join(f"{one['versus']['mode']} on {one['versus']['dataset']}" for one in judged)
    return f"what it asks for was not evaluated; there is {there}"


def boxed(run: Run) -> dict | str:
    """The shares of boxed answers before and after a supervised training, or that there are none."""
    try:
        values = [run.result[side]["has_boxed"]["value"] for side in ("before", "after")]
        return {"values": values, "versus": {"interval95": run.result["change"]["has_boxed"]["interval95"]}}
    except (KeyError, TypeError):
        return "there is no format check before and after"


def format_is(wanted: str, run: Run) -> tuple[bool | None, str]:
    """Whether the format check behind a supervised training has this verdict."""
    after = run.result.get("after")
    found = after.get("verdict") if isinstance(after, dict) else None
    if not isinstance(found, str):
        return None, f"format check '{wanted}' after: not decidable, there is none"
    return found == wanted, f"format check after: '{found}', {'as' if found == wanted else 'not as'} wanted"


def above_zero(evaluated: dict | str) -> tuple[bool | None, str]:
    """Whether the 95% interval of the difference lies above 0."""
    if isinstance(evaluated, str):
        return None, f"95% interval above 0: not decidable, {evaluated}"
    low, high = evaluated["versus"]["interval95"]
    return (
        low > 0,
        f"95% interval of the difference: {low:+.3f} to {high:+.3f}, {'above' if low > 0 else 'not above'} 0",
    )


def decide(text: str, run: Run, evaluated: dict | str) -> tuple[bool, str]:
    """Whether a comparison holds, and its numbers. Raises Undecidable."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in COMPARE:
        raise Undecidable("it is no comparison that this program reads")
    left, right = (value(side, run, evaluated) for side in (tree.left, tree.comparators[0]))
    holds = COMPARE[type(tree.ops[0])](round(left, 9), round(right, 9))  # 0.6 - 0.57 is 0.03
    return holds, f"{text}: {left:.4g} against {right:.4g}, {'holds' if holds else 'does not hold'}"


def value(node: ast.expr, run: Run, evaluated: dict | str) -> float:
    """The number that a part of a condition stands for. Raises Undecidable."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand, run, evaluated)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = value(node.left, run, evaluated), value(node.right, run, evaluated)
        if isinstance(node.op, ast.Div) and right == 0:
            raise Undecidable("it divides by 0")
        return ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Name) and node.id in ("before", "after"):
        if isinstance(evaluated, str):
            raise Undecidable(evaluated)
        return evaluated["values"][node.id == "after"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        if node.func.id in OVER_STEPS:
            return over_steps(node.func.id, node.args[0], run)
        raise Undecidable(f"{ast.unparse(node)} is of a pair of runs, and this is one")
    raise Undecidable(f"{ast.unparse(node)} is nothing that this program reads")


def over_steps(kind: str, node: ast.expr, run: Run) -> float:
    """`max`, `min` or `mean` of a metric over the steps, or over the last ones (`METRIC[-50:]`). Raises Undecidable."""
    count, name = None, node
    if isinstance(node, ast.Subscript) and (last := re.fullmatch(r"-(\d+):", ast.unparse(node.slice))):
        count, name = int(last[1]), node.value
    if not isinstance(name, ast.Name):
        raise Undecidable(f"{ast.unparse(node)} is nothing that this program reads")
    logged = [record[name.id] for record in run.training if name.id in record]
    logged = logged[-count:] if count else logged
    values = [float("nan") if number(one) is None else one for one in logged]
    if not values or (count and len(values) < count):
        raise Undecidable(f"{name.id} is logged in {len(values)} steps" if values else f"no step has logged {name.id}")
    if any(one != one for one in values):
        if kind == "max":
            return float("inf")  # null in the file: it was not finite
        raise Undecidable(f"{name.id} is not finite in some step")
    return OVER_STEPS[kind](values)
