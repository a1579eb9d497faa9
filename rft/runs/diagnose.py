"""Say what a run's numbers mean: every rule with its verdict, the numbers behind it, and what to change.

    .venv/bin/python -m rft.runs.diagnose RUN [--json]

RUN is the directory of a run that is finished or still trains, or a folder of runs, of which the newest is taken;
docs/diagnosis.md lists the rules. Exit status: 0 healthy, 1 findings, 2 not judged: no run, or the program
failed.
"""

import argparse
import json
import sys
import traceback
from pathlib import Path

from rft.options.command import given
from rft.record import disk
from rft.record.names import DECISIONS_FILE, EVAL_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir
from rft.rules.judge import RULES, findings, judge
from rft.rules.verdict import Verdict
from rft.runs.ending import ending
from rft.runs.find import chosen_run
from rft.runs.memory import marked_processes
from rft.runs.report.data import read_lines

FINDINGS, CANNOT_JUDGE = 1, 2  # exit statuses
STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}
NO_STEPS = "train it first, or pass the directory that holds the file (METRICS_LOG_DIR)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, or a folder of runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args()
    try:
        document = diagnose(chosen_run(args.run))
        if args.json:
            print(json.dumps(document, indent=1))
        else:
            print_report(document)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_JUDGE
    except Exception:  # Python would end with 1, which says that the run has findings
        traceback.print_exc()
        return CANNOT_JUDGE
    return FINDINGS if document["findings"] else 0


def diagnose(run: Path) -> dict:
    """Judge a run by its files.

    Returns:
        `run`; `steps`, the number trained, and `last_step`; `verdicts`, one dict a rule (`rule`, `level`, `reason`,
        `numbers`, `change`); `findings`, the rules that are not ok, the worst first; `not_judged`, the rules whose
        numbers the run does not have; `stopped` as in run.json; `best` as in best.json; `decisions` of early stopping;
        `notes`, one text for each file with lines that could not be read and are left out.

    Raises:
        ValueError: the directory holds no step of a training, or another file of it is no JSON.
    """
    place, notes = metrics_dir(run), []
    training = read_lines(place / TRAINING_FILE, notes.append, by_step=True)
    evaluations = read_lines(place / EVAL_FILE, notes.append, by_step=True)
    if not training:
        found = "; ".join([f"found no step in {TRAINING_FILE}", *notes])
        raise ValueError(f"{run}: {found}; wanted one; {NO_STEPS}")
    manifest = read_object(run / "run.json")
    facts = {"disk": written_places(run, manifest)} if lives(run) else {}
    verdicts = judge(training, evaluations, facts)
    return {
        "run": str(run),
        "steps": len(training),
        "last_step": training[-1]["global_step"],
        "findings": [verdict.rule for verdict in findings(verdicts)],
        "verdicts": [as_dict(verdict) for verdict in verdicts],
        "not_judged": [name for name in RULES if name not in {verdict.rule for verdict in verdicts}],
        "stopped": manifest.get("stopped"),
        "best": read_object(run / "best.json") or None,
        "decisions": read_lines(place / DECISIONS_FILE, notes.append),
        "notes": notes,
    }


def as_dict(verdict: Verdict) -> dict:
    return {"rule": verdict.rule, **{key: value for key, value in verdict._asdict().items() if key != "rule"}}


def read_object(file: Path) -> dict:
    """A JSON file of the run; empty where there is none. Raises ValueError, naming the file, where it is no JSON."""
    try:
        return json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error}); wanted the file as the run wrote it; move it away") from None


def lives(run: Path) -> bool:
    """Whether processes of the run live on this machine; of a run that is over, the disk here says nothing."""
    return any(marked_processes(name) for name in {str(run.absolute()), str(run.resolve())})


def written_places(run: Path, manifest: dict) -> list[dict]:
    """Free space where a run still writes, by the options of its command; its own directory where there is none."""
    words = [str(word) for word in manifest.get("command", [])]
    options = given(words)
    paths = [Path((options.get(name) or [run])[0]) for name in ("ckpt_path", "save_path")]
    return disk.places(paths[0], [paths[1], run])


def print_report(document: dict) -> None:
    """Findings first, each with what to change; then what is in order, and what could not be judged."""
    from rich.markup import escape
    from rich.table import Table

    from rft.evals.table import wide_console

    console = wide_console()
    verdicts = {verdict["rule"]: verdict for verdict in document["verdicts"]}
    console.print(f"{escape(document['run'])}: {document['steps']} steps, the last is {document['last_step']}")
    for note in document["notes"]:
        console.print(f"[yellow]{escape(note)}[/yellow]", soft_wrap=True)
    if stopped := document["stopped"]:
        console.print(f"[bold]{escape(ending(stopped)[1])}[/bold]: {escape(str(stopped.get('reason')))}")
    if best := document["best"]:
        where = best["checkpoint"] or ("the base model" if best["global_step"] == 0 else "not kept")
        console.print(
            f"best: step {best['global_step']}, {escape(best['metric'])} {best['value']:.3f}, {escape(where)}"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rule", "verdict", "what the numbers say"):
        table.add_column(title, overflow="fold")
    in_order = [name for name in verdicts if verdicts[name]["level"] == "ok"]
    for name in [*document["findings"], *in_order]:
        verdict = verdicts[name]
        style = STYLES[verdict["level"]]
        table.add_row(name, f"[{style}]{verdict['level']}[/{style}]", escape(verdict["reason"]))
        if verdict["change"]:
            table.add_row("", "", f"[italic]{escape(verdict['change'])}[/italic]")
    console.print(table)
    if document["not_judged"]:
        console.print(f"not judged, too few numbers or steps: {', '.join(document['not_judged'])}", soft_wrap=True)
    count = len(document["findings"])
    console.print("healthy" if not count else f"{count} finding{'s' if count > 1 else ''}")


if __name__ == "__main__":
    sys.exit(main())
