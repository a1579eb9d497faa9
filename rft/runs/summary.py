"""After a run: the before/after table, `result.json`, and a figure of reward and accuracy over steps.

    python -m rft.runs.summary RUN_DIR

Reads from the run directory: evals/before.json and evals/after.json (`eval/eval_posthoc.py`), training_metrics.jsonl,
eval_metrics.jsonl, phases.jsonl, memory.json.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table

from rft import overlay
from rft.hooks.metrics import EVAL_FILE, TRAINING_FILE
from rft.runs.metrics import read_jsonl, series
from rft.stats import mcnemar_exact

matplotlib.use("Agg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir
    result = summarize_run(run_dir)
    (run_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(run_dir, result)
    print_result(run_dir, result)


def summarize_run(run_dir: Path) -> dict:
    """The content of `result.json`; see `docs/running.md` for its fields."""
    before, after = (json.loads((run_dir / "evals" / f"{name}.json").read_text())[0] for name in ("before", "after"))
    mode = before["mode"]
    same = ("mode", "dataset", "max_tokens")
    problems = [[record["id"] for record in result["records"]] for result in (before, after)]
    if [before[key] for key in same] != [after[key] for key in same] or problems[0] != problems[1]:
        raise ValueError(f"{run_dir}: the evaluations before and after differ in {', '.join(same)} or problems")
    test = mcnemar_exact([r["correct"] for r in before["records"]], [r["correct"] for r in after["records"]])
    training = read_jsonl(metrics_dir(run_dir) / TRAINING_FILE)
    if not training:
        raise ValueError(f"{metrics_dir(run_dir)}: found no training step in {TRAINING_FILE}")
    sync_seconds = series(training, "sync_seconds")[1]
    memory = json.loads((run_dir / "memory.json").read_text()) if (run_dir / "memory.json").is_file() else {}
    return {
        "before": {key: value for key, value in before.items() if key != "records"},
        "after": {key: value for key, value in after.items() if key != "records"},
        "gain": after[mode] - before[mode],
        "mcnemar": {"lost": test.only_a, "won": test.only_b, "p_value": test.p_value},
        "steps": len(training),
        "sync_seconds_median": statistics.median(sync_seconds) if sync_seconds else None,
        "seconds": {phase["phase"]: phase["seconds"] for phase in read_jsonl(run_dir / "phases.jsonl")},
        "peak_gb": memory.get("peak_gb"),
        "tree_id": overlay.tree_ids(),
    }


def metrics_dir(run_dir: Path) -> Path:
    """Where the run's metrics are: `METRICS_LOG_DIR`, else the run directory."""
    return Path(os.environ.get("METRICS_LOG_DIR") or run_dir)


def draw(run_dir: Path, result: dict) -> None:
    """`curves.png`: sampled reward a step, greedy held-out accuracy in the loop and after the fact."""
    from matplotlib import pyplot

    mode, training = result["before"]["mode"], read_jsonl(metrics_dir(run_dir) / TRAINING_FILE)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(*series(training, "reward"), color="tab:blue", alpha=0.8, label="reward of sampled rollouts (train)")
    evaluations = read_jsonl(metrics_dir(run_dir) / EVAL_FILE)
    for name in sorted({key for record in evaluations for key in record if key.endswith("_pass1")}):
        axes.plot(*series(evaluations, name), "o-", color="tab:orange", label=f"{name} in the loop (held out)")
    ends = [0, training[-1]["global_step"]]
    values = [result["before"][mode], result["after"][mode]]
    errors = [
        [values[i] - result[key]["interval95"][0] for i, key in enumerate(("before", "after"))],
        [result[key]["interval95"][1] - values[i] for i, key in enumerate(("before", "after"))],
    ]
    axes.errorbar(ends, values, yerr=errors, fmt="s", color="black", capsize=4, label=f"{mode} post hoc, 95% interval")
    axes.set(xlabel="step", ylabel="accuracy", ylim=(0, 1), title=f"{run_dir.parent.name}: n={result['before']['n']}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(run_dir / "curves.png", dpi=120)
    pyplot.close(figure)


def print_result(run_dir: Path, result: dict) -> None:
    """The before/after table and the seconds by phase, on the terminal."""
    console, mode = Console(), result["before"]["mode"]
    table = Table(title=f"{mode} on {result['before']['dataset']} (n={result['before']['n']})")
    for column in ("", mode, "95% interval", "mean tokens", "truncated"):
        table.add_column(column)
    for name in ("before", "after"):
        row = result[name]
        low, high = row["interval95"]
        table.add_row(
            name, f"{row[mode]:.3f}", f"{low:.3f}-{high:.3f}", f"{row['mean_tokens']:.1f}", f"{row['truncated']:.3f}"
        )
    console.print(table)
    test = result["mcnemar"]
    console.print(
        f"gain {100 * result['gain']:+.1f} points: {test['won']} problems won, {test['lost']} lost, "
        f"exact McNemar p = {test['p_value']:.2g}"
    )
    console.print("seconds: " + ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in result["seconds"].items()))
    if result["peak_gb"]:
        console.print(f"peak memory of all processes: {result['peak_gb']:.1f} GB")
    console.print(f"result: {run_dir / 'result.json'}, figure: {run_dir / 'curves.png'}")


if __name__ == "__main__":
    main()
