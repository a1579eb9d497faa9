"""Results on the terminal; every row names its mode and dataset."""

import sys

from rich.console import Console
from rich.table import Table

from rft.evals.searches import sentence

WIDTH = 160


def print_results(results: list[dict], console: Console | None = None) -> None:
    """One row a metric, then the paired comparisons and the notes."""
    console = console or wide_console()
    table = Table(title="post-hoc evaluation")
    for column in ("model", "kind", "dataset", "metric", "value", "95% interval", "n", "truncated", "mean tokens"):
        table.add_column(column, overflow="fold")
    for r in results:
        for name, metric in r["metrics"].items():
            table.add_row(
                r["model"], r["kind"], r["dataset"], name, f"{metric['value']:.3f}", interval(metric["interval95"]),
                str(r["n"]), f"{r['truncated']:.3f}", f"{r['mean_tokens']:.1f}",
            )  # fmt: skip
    console.print(table)
    if any("versus" in r for r in results):
        print_comparisons(results, console)
    for dataset, note in {(r["dataset"], r["note"]): None for r in results if r.get("note")}:
        console.print(f"{dataset}: {note}", style="yellow", highlight=False)
    for r in results:
        if r.get("causes"):
            console.print(
                f"{r['model']} on {r['dataset']}, share of samples by how a test of theirs ended: {met(r)}",
                highlight=False,
            )
        if r.get("conversations"):
            console.print(f"{r['model']} on {r['dataset']}: {sentence(r['conversations'])}", highlight=False)
        if "none" in r.get("isolation", ()):
            unsafe = f"{r['model']} on {r['dataset']}: programs ran without isolation, and may have forged verdicts"
            console.print(unsafe, style="yellow", highlight=False)
        if r["ungradable"]:
            left_out = f"{r['model']} on {r['dataset']}: {r['ungradable']} problems left out, their labels do not parse"
            console.print(left_out, style="yellow", highlight=False)


def met(result: dict) -> str:
    """Causes of tests that did not pass, each with its share of samples, the most frequent first."""
    ranked = sorted(result["causes"].items(), key=lambda pair: -pair[1])
    return ", ".join(f"{cause} {share:.3f}" for cause, share in ranked)


def wide_console() -> Console:
    """The terminal; a file or pipe has no width of its own, and rich's 80 columns would fold every name."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def print_comparisons(results: list[dict], console: Console) -> None:
    """Paired differences against the baseline, the A/A run among them where there is one."""
    table = Table(title="against the first model, problem by problem")
    tests = ("difference", "95% interval", "won", "lost", "p", "p (Holm)", "McNemar")
    for column in ("model", "dataset", "metric", *tests):
        table.add_column(column, overflow="fold")
    for r in results:
        if "versus" not in r:
            continue
        v = r["versus"]
        table.add_row(
            f"{r['model']} - {v['baseline']}", v["dataset"], v["metric"], f"{100 * v['difference']:+.1f}",
            f"{100 * v['interval95'][0]:+.1f} to {100 * v['interval95'][1]:+.1f}", str(v["won"]), str(v["lost"]),
            p_value(v["p_value"]), p_value(v["p_holm"]), p_value(v["mcnemar_p"]),
        )  # fmt: skip
    console.print(table)


def interval(ends: list[float]) -> str:
    """Three decimals a side."""
    return f"{ends[0]:.3f}-{ends[1]:.3f}"


def p_value(p: float | None) -> str:
    """Two digits; a dash where the test does not apply."""
    return "-" if p is None else f"{p:.2g}"
