"""After a run: the before/after tables, `result.json`, `evals.html`, and a figure of reward and accuracy over steps.

    .venv/bin/python -m rft.runs.summary RUN

RUN is a run's directory, or a folder of runs, of which the newest is taken. Exit status 2: bad input, with one message.
Reads from the run's directory: evals/before.json and evals/after.json (`eval/eval_posthoc.py`), training_metrics.jsonl,
eval_metrics.jsonl, the last eval_samples_step<N>.jsonl.gz, phases.jsonl, memory.json.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import matplotlib

from rft import overlay
from rft.evals.compare import add_comparisons
from rft.evals.page import page
from rft.evals.regression import compare_files
from rft.evals.results import read_results
from rft.evals.table import print_results, wide_console
from rft.record.eval_names import shares_of_correct
from rft.record.files import replace_json, replace_text
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir, samples_dir, series
from rft.record.samples import EVALUATION, sample_file
from rft.record.step_phases import shares
from rft.runs import best
from rft.runs.find import chosen_run
from rft.runs.report.data import read_lines

MEDIANS = ("sync_seconds", "tokens_per_second_step", "model_flops_utilization")

matplotlib.use("Agg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, or a folder of runs")
    args = parser.parse_args()
    try:
        summarize(chosen_run(args.run))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def summarize(run_dir: Path) -> None:
    """Write the files, and print the tables. Raises ValueError or OSError where something is missing or broken."""
    evaluations, notes = compared(run_dir), []
    training, loop = (
        read_lines(metrics_dir(run_dir) / name, notes.append, by_step=True) for name in (TRAINING_FILE, EVAL_FILE)
    )
    # Of several datasets the first decides.
    after = next(result for result in evaluations if "versus" in result)
    result = summarize_run(run_dir, training, evaluations[0], after)
    replace_json(run_dir / "result.json", result)
    replace_text(run_dir / "evals.html", page(evaluations))
    draw(run_dir, training, loop, result)
    print_results(evaluations)
    print_rest(run_dir, result)
    for note in notes:
        print(note)


def compared(run_dir: Path) -> list[dict]:
    """The evaluations before and after, those after with their paired comparison (`versus`) against those before.

    Raises ValueError where one is missing, or they differ in problems or settings.
    """
    results = add_comparisons(read_results([run_dir / "evals" / f"{name}.json" for name in ("before", "after")]))
    if 2 * len([result for result in results if "versus" in result]) != len(results):
        found = ", ".join(dict.fromkeys(f"{r['model']} on {r['dataset']} in mode {r['mode']}" for r in results))
        wanted = "before.json and after.json of the same datasets and mode"
        raise ValueError(f"{run_dir}/evals: found {found}; wanted {wanted}; make them with eval/eval_posthoc.py")
    return results


def summarize_run(run_dir: Path, training: list[dict], before: dict, after: dict) -> dict:
    """The content of `result.json`; see `docs/running.md` for its fields. Raises ValueError without a step."""
    if not training:
        place = metrics_dir(run_dir)
        raise ValueError(f"{place}: found no training step in {TRAINING_FILE}; wanted one; train the run first")
    medians = {name: statistics.median(found) for name in MEDIANS if (found := series(training, name)[1])}
    memory = json.loads((run_dir / "memory.json").read_text()) if (run_dir / "memory.json").is_file() else {}
    agreement = agreement_with_loop(run_dir, after, training[-1]["global_step"])
    return {
        "before": {key: value for key, value in before.items() if key != "records"},
        "after": {key: value for key, value in after.items() if key != "records"},
        "gain": after["versus"]["difference"],
        "loop": agreement,
        "best": best.measured(run_dir),
        "steps": len(training),
        **{f"{name}_median": medians.get(name) for name in MEDIANS},
        "step_shares": shares(training),
        "seconds": {phase["phase"]: phase["seconds"] for phase in read_lines(run_dir / "phases.jsonl", print)},
        "peak_gb": memory.get("peak_gb"),
        "tree_id": overlay.tree_ids(),
    }


def agreement_with_loop(run_dir: Path, after: dict, last_step: int) -> dict | None:
    """Whether the evaluation in the loop after the last step saw what the one of the saved adapter sees.

    Returns:
        `problems` in both, and `differences` between them, one text each; None where the last step was not evaluated in
        the loop. A loop that evaluates a part of the problems only is no difference. Where nothing can be compared
        (another dataset, or a template that dates its prompts and a midnight between both) a `note` says why.
    """
    file = sample_file(samples_dir(run_dir), EVALUATION, last_step)
    if not file.is_file():
        return None
    try:
        problems, differences = compare_files(file, after)
    except ValueError as error:
        return {"problems": 0, "differences": [], "note": str(error)}
    both = [one for one in differences if one.training is not None]
    return {"problems": problems, "differences": [f"{one.problem}: {one.cause}" for one in both]}


def draw(run_dir: Path, training: list[dict], loop: list[dict], result: dict) -> None:
    """`curves.png`: sampled reward a step, greedy held-out accuracy in the loop and after the fact."""
    from matplotlib import pyplot

    mode = result["before"]["mode"]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(*series(training, "reward"), color="tab:blue", alpha=0.8, label="reward of sampled rollouts (train)")
    for name in sorted({key for record in loop for key in shares_of_correct(record)}):
        axes.plot(*series(loop, name), "o-", color="tab:orange", label=f"{name} in the loop (held out)")
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


def print_rest(run_dir: Path, result: dict) -> None:
    """Agreement with the loop, seconds by phase, peak memory, and where the files are."""
    console = wide_console()
    if loop := result["loop"]:
        differences = loop["differences"]
        count = f"{len(differences)} of {loop['problems']} problems differ"
        found = f"not compared, {loop['note']}" if "note" in loop else count
        console.print(f"in the loop and post hoc: {found}", markup=False, soft_wrap=True)
        for difference in differences:
            console.print(f"  {difference}", markup=False, soft_wrap=True)
    for line in best.lines(result.get("best")):
        console.print(line, markup=False, soft_wrap=True)
    console.print("seconds: " + ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in result["seconds"].items()))
    if parts := result["step_shares"]:
        console.print("a step: " + ", ".join(f"{share:.0%} {phase}" for phase, share in parts.items()))
    if (rate := result["tokens_per_second_step_median"]) is not None:
        used = result["model_flops_utilization_median"]
        share = "" if used is None else f", model FLOPs utilisation of training {used:.1%}"
        console.print(f"tokens a second, whole step: {rate:,.0f}{share}")
    if result["peak_gb"]:
        console.print(f"peak memory of all processes: {result['peak_gb']:.1f} GB")
    files = ", ".join(str(run_dir / name) for name in ("result.json", "evals.html", "curves.png"))
    console.print(f"written: {files}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
