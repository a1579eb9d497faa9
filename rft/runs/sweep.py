"""The runs of launch/sweep_lr.sh on one page: each against the control, and against each other, problem by problem.

    .venv/bin/python -m rft.runs.sweep SWEEP_DIR

Reads SWEEP_DIR/lr_<RATE>/result.json, evals/after.json and training_metrics.jsonl; prints the page and leaves it as
SWEEP_DIR/verdicts.md. Exit status 2: bad input.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from rft.evals.compare import outcome, versus
from rft.evals.results import read_results
from rft.evals.table import interval, p_value
from rft.record.files import replace_text
from rft.record.names import TRAINING_FILE
from rft.record.readers import metrics_dir, read_jsonl, series
from rft.stats import holm

WORDS = {"better": "**better**", "worse": "**worse**", "unclear": "cannot be told apart"}
KEPT = ("adapter_output_kept_share", "sync_output_kept_share")  # in trainer and engine
NOTE = (
    "Intervals cover the choice of problems, not the luck of training: repeat the best rates with another SEED before "
    "you rely on them. p is exact and paired, corrected by Holm over all rows; *better* and *worse* need p below 5% "
    "and an interval without 0."
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    place = parser.parse_args(argv).sweep_dir
    try:
        text = page(place)
        replace_text(place / "verdicts.md", text)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{text}\nwritten: {place / 'verdicts.md'}")
    return 0


def page(place: Path) -> str:
    """The page's text, markdown.

    Raises:
        ValueError: fewer than two runs have a result, or one of them cannot be read.
    """
    folders = {folder.name.removeprefix("lr_"): folder for folder in place.glob("lr_*") if folder.is_dir()}
    found = sorted((rate for rate in folders if (folders[rate] / "result.json").is_file()), key=as_number)
    if len(found) < 2:
        raise ValueError(
            f"too few runs to compare\n  found:  {len(found)} with a result in {place}\n"
            "  wanted: lr_<RATE>/result.json of two or more\n  repair: bash launch/sweep_lr.sh makes them"
        )
    results = {rate: read_results([folders[rate] / "evals" / "after.json"]) for rate in found}
    lines = ["# Learning rates", "", *overview(results, folders), "", "## Each against each", "", *verdicts(results)]
    lines += ["", NOTE]
    if missing := sorted(folders.keys() - results.keys(), key=as_number):
        lines += ["", f"Without a result: {', '.join(missing)}."]
    if 0 not in map(as_number, results):
        lines += ["", "**No control**: no run at learning rate 0 has a result, so a change may be the machine's noise."]
    return "\n".join(lines) + "\n"


def as_number(rate: str) -> float:
    """A rate as its run's directory names it. Raises ValueError for another name."""
    try:
        return float(rate)
    except ValueError:
        raise ValueError(f"found a run lr_{rate}; wanted lr_ and a number; move it away") from None


def overview(results: dict[str, list[dict]], folders: dict[str, Path]) -> list[str]:
    """A row a rate and dataset: accuracy after training, and how the run went."""
    titles = ("learning rate", "dataset", "metric", "before", "after", "95% interval", "n", "steps", "kept, trainer")
    rows = [f"| {' | '.join(titles)} | kept, engine | |", "|---" * (len(titles) + 2) + "|"]
    for rate, of_rate in results.items():
        folder = folders[rate]
        summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        training = read_jsonl(metrics_dir(folder) / TRAINING_FILE)
        kept = [f"{values[-1]:.2f}" if (values := series(training, name)[1]) else "-" for name in KEPT]
        stopped = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("stopped")
        for result in of_rate:
            before = summary["before"] if summary["before"]["dataset"] == result["dataset"] else None
            cells = [rate, result["dataset"], result["mode"], f"{before[result['mode']]:.3f}" if before else "-"]
            cells += [f"{result[result['mode']]:.3f}", interval(result["interval95"]), str(result["n"])]
            cells += [str(summary["steps"]), *kept, "stopped by a rule" if stopped else ""]
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def verdicts(results: dict[str, list[dict]]) -> list[str]:
    """A row a pair of rates and dataset, the higher rate against the lower one, the control's first."""
    compared, refused = [], []
    for lower, higher in itertools.combinations(results, 2):
        for a, b in itertools.product(results[lower], results[higher]):
            if (a["dataset"], a["mode"]) != (b["dataset"], b["mode"]):
                continue
            try:
                compared.append((lower, higher, versus(a | {"model": lower}, b | {"model": higher}, seed=0)))
            except ValueError as error:
                refused.append(f"| {higher} against {lower} | {a['dataset']} | no verdict: {error} | | | | |")
    for (*_, one), p in zip(compared, holm([one["p_value"] for *_, one in compared]), strict=True):
        one["p_holm"] = p
    rows = ["| | dataset | verdict | points | 95% interval | won / lost | p (Holm) |", "|---" * 7 + "|"]
    for lower, higher, one in compared:
        low, high = one["interval95"]
        cells = [f"{higher} against {lower}", one["dataset"], WORDS[outcome(one)], f"{100 * one['difference']:+.1f}"]
        cells += [f"{100 * low:+.1f} to {100 * high:+.1f}", f"{one['won']} / {one['lost']}", p_value(one["p_holm"])]
        rows.append(f"| {' | '.join(cells)} |")
    return rows + refused


if __name__ == "__main__":
    sys.exit(main())
