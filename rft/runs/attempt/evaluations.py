"""What the evaluations of an attempt show: numbers with intervals, and paired comparisons; Markdown."""

from pathlib import Path

from rft.evals.compare import add_comparisons, outcome, small_set_note, versus
from rft.evals.results import read_results
from rft.evals.table import interval, p_value
from rft.runs.attempt.markdown import number, table
from rft.stats import holm


def evaluations(run: Path, against: Path | None) -> tuple[list[dict], list[dict], list[str]]:
    """(results of the run, paired comparisons, why others were not made).

    Within the run every model is compared with the first one, that of `before.json`; with `against`, each of them
    but bases with the model of the same name there. Each list of comparisons is corrected by Holm.
    """
    own, notes = read_results(result_files(run)), []
    if not own:
        return [], [], [f"found no post-hoc evaluation in `{run.name}/evals`"]
    try:
        paired = [r["versus"] | {"model": r["model"]} for r in add_comparisons(own) if "versus" in r]
    except ValueError as error:
        paired, notes = [], [str(error)]
    if against is not None:
        others = {(r["model"], r["dataset"], r["mode"]): r for r in read_results(result_files(against))}
        made = []
        for result in own:
            other = others.get((result["model"], result["dataset"], result["mode"]))
            try:
                if other is not None and result["kind"] != "base":
                    made.append(between_runs(other, result, against.resolve().name))
            except ValueError as error:
                notes.append(str(error))
        for one, adjusted in zip(made, holm([one["p_value"] for one in made]), strict=True):
            one["p_holm"] = adjusted
        if not made:
            notes.append(f"found no evaluation of one model, dataset and mode both here and in `{against.name}`")
        return own, deciding_first(made) + deciding_first(paired), notes
    return own, deciding_first(paired), notes


def between_runs(there: dict, here: dict, name: str) -> dict:
    """The paired comparison of one model's evaluation in two runs."""
    return versus(there | {"model": f"{there['model']} of {name}"}, here, seed=0) | {"model": here["model"]}


def result_files(run: Path) -> list[Path]:
    """The run's post-hoc evaluations, `before.json` first."""
    return sorted((run / "evals").glob("*.json"), key=lambda path: (path.name != "before.json", path.name))


def evaluation_table(results: list[dict]) -> str:
    """One row a number, each with mode, dataset and interval."""
    if not results:
        return "None after the run."
    rows = [
        [
            r["model"],
            r["dataset"],
            name,
            number(m["value"]),
            interval(m["interval95"]),
            f"{r['n']}",
            number(r["truncated"]),
        ]
        for r in results
        for name, m in r["metrics"].items()
    ]
    return "Post hoc:\n\n" + table(["model", "dataset", "metric", "value", "95% interval", "n", "truncated"], rows)


def verdict_word(paired: list[dict]) -> str:
    """What the first comparison shows, in the words of the research log."""
    if not paired:
        return "no paired evaluation"
    if paired[0]["p_holm"] is None:
        return "noise floor"
    return {"better": "positive", "worse": "negative", "unclear": "inconclusive"}[outcome(paired[0])]


def deciding_first(paired: list[dict]) -> list[dict]:
    """Greedy accuracy out of distribution decides (docs/sources.md); an A/A run decides nothing, and comes last."""
    return sorted(
        paired, key=lambda one: (one["p_holm"] is None, "ood" not in one["dataset"], one["mode"] != "greedy_pass@1")
    )


def comparison_lines(paired: list[dict], notes: list[str]) -> str:
    """The paired comparisons, the one that decides first; then what could not be compared."""
    lines = []
    for one in paired:
        low, high = (100 * end for end in one["interval95"])
        what = f"{one['model']} - {one['baseline']}, {one['metric']} on {one['dataset']}"
        size = f"{100 * one['difference']:+.1f} points (95% {low:+.1f} to {high:+.1f})"
        counts = f"won {one['won']}, lost {one['lost']}, tied {one['tied']}"
        tests = f"p {p_value(one['p_value'])}, Holm {p_value(one['p_holm'])}, McNemar {p_value(one['mcnemar_p'])}"
        lines.append(f"{verdict_word([one]).capitalize()}: {what}: {size}, {counts}, {tests}.")
        if (n := one["won"] + one["lost"] + one["tied"]) < 100:
            lines[-1] += f" {small_set_note(n)}."
    lines += [f"Not compared: {note}." for note in notes]
    return f" {lines[0]}" if len(lines) == 1 else "".join(f"\n- {line}" for line in lines)
