"""After a supervised run: what it did to format and accuracy, paired by problem, as a table and `result.json`.

    .venv/bin/python -m rft.runs.sft_summary RUN

Reads from the run's directory evals/format_before.json and evals/format_after.json (`rft.runs.format_check`),
training_metrics.jsonl, eval_metrics.jsonl and memory.json. Exit status 2: bad input, with one message.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from rich.table import Table

from rft.evals.paired import compare
from rft.evals.table import interval, p_value, wide_console
from rft.record.files import replace_json
from rft.record.names import EVAL_FILE, MEMORY_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir, read_jsonl
from rft.runs.find import chosen_run
from rft.stats import wilson_interval

ASKED = ("data", "n", "seed", "max_tokens", "reasoning_effort")  # of a check: what its answers depend on
SHOWN = {"has_boxed": "answers with \\boxed{}", "correct": "right answers"}  # of each record, by name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, or a folder of runs")
    args = parser.parse_args()
    try:
        run = chosen_run(args.run)
        result = summarize(run)
        replace_json(run / "result.json", result)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(run, result)
    return 0


def summarize(run: Path) -> dict:
    """The content of `result.json`.

    Returns:
        `before`, `after`: verdict of the format check and of each of `SHOWN` its rate with `interval95`; `change`: of
        each the paired difference with interval and p; `steps`, `sft_loss` of the first and the last, `sft_eval_loss`
        of the last evaluation, `peak_gb`.

    Raises:
        ValueError: a check is missing, they asked otherwise or other problems, or no step was trained.
    """
    checks = {name: _check(run, name) for name in ("before", "after")}
    records = {name: {one["id"]: one for one in check["records"]} for name, check in checks.items()}
    _require_alike(run, **checks)
    steps = read_jsonl(metrics_dir(run) / TRAINING_FILE)
    if not steps:
        raise ValueError(f"{run}: found no step in {TRAINING_FILE}, wanted one; train the run first")
    held_out = read_jsonl(metrics_dir(run) / EVAL_FILE)
    memory = run / MEMORY_FILE
    order = sorted(records["before"])
    values = {side: {name: [float(records[side][one][name]) for one in order] for name in SHOWN} for side in checks}
    return {
        "n": len(order),
        **{side: {"verdict": checks[side]["verdict"], **_rates(values[side])} for side in checks},
        "change": {name: compare(values["before"][name], values["after"][name])._asdict() for name in SHOWN},
        "steps": len(steps),
        "sft_loss": [steps[0]["sft_loss"], steps[-1]["sft_loss"]],
        "sft_eval_loss": held_out[-1]["sft_eval_loss"] if held_out else None,
        "peak_gb": json.loads(memory.read_text())["peak_gb"] if memory.is_file() else None,
    }


def _check(run: Path, name: str) -> dict:
    file = run / f"evals/format_{name}.json"
    if not file.is_file():
        raise ValueError(f"found no {file}, wanted the format check {name} the training; bash launch/resume.sh {run}")
    return json.loads(file.read_text(encoding="utf-8"))


def _require_alike(run: Path, before: dict, after: dict) -> None:
    """Refuse checks whose answers cannot be paired, with the command that asks after as was asked before."""
    differing = [name for name in ASKED if before[name] != after[name]]
    found, wanted = (", ".join(f"{name} {check[name]}" for name in differing) for check in (after, before))
    if not differing and {one["id"] for one in before["records"]} != {one["id"] for one in after["records"]}:
        found, wanted = "other problems", f"those of before: {before['data']} as it was then"
    if found:
        command = [".venv/bin/python", "-m", "rft.runs.format_check", "--model", after["model"], "--data"]
        command += [before["data"], "--n", before["n"], "--seed", before["seed"], "--max-tokens", before["max_tokens"]]
        command += ["--reasoning-effort", before["reasoning_effort"], "--output", run / "evals/format_after.json"]
        raise ValueError(
            "the format after was not checked as the format before\n"
            f"  found:  {found}\n  wanted: {wanted}\n  repair: {shlex.join(map(str, command))}"
        )


def _rates(values: dict[str, list[float]]) -> dict:
    return {
        name: {"value": sum(each) / len(each), "interval95": list(wilson_interval(int(sum(each)), len(each)))}
        for name, each in values.items()
    }


def show(run: Path, result: dict) -> None:
    """The table, the verdict, and what comes next."""
    console = wide_console()
    table = Table(title=f"{result['n']} problems, greedy; 95% intervals")
    for column in ("", "before", "after", "difference", "p"):
        table.add_column(column)
    for name, what in SHOWN.items():
        sides = [result[side][name] for side in ("before", "after")]
        change = result["change"][name]
        table.add_row(
            what,
            *(f"{side['value']:.3f} {interval(side['interval95'])}" for side in sides),
            f"{change['difference']:+.3f} {interval(change['interval95'])}",
            p_value(change["p_value"]),
        )
    console.print(table)
    first, last = result["sft_loss"]
    held_out = result["sft_eval_loss"]
    also = "" if held_out is None else f", on held-out rows {held_out:.4f}"
    print(f"loss, nats a learned token: {first:.4f} -> {last:.4f} in {result['steps']} steps{also}")
    print(f"verdict: {result['after']['verdict']}; adapter: {run / 'adapter'}")
    if result["after"]["verdict"] != "SFT first":
        print(
            f"GRPO goes on from it: --init_adapter {run / 'adapter'} behind a launcher of the same base (docs/sft.md)"
        )


if __name__ == "__main__":
    sys.exit(main())
