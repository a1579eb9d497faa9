"""A run directory as plain data for its report. What is missing, incomplete or damaged is named, never guessed."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rft.evals.searches import sentence
from rft.record.names import EVAL_FILE, MEMORY_FILE, TIMELINE_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir, samples_dir
from rft.record.samples import TRAINING, content, sample_files

LINES_NAMED = 5  # of those that cannot be read
SPIKE_FILE = "spike_log.jsonl"
FORMAT = "format_"  # of files of rft.runs.format_check in evals/
KNOWN = (TRAINING_FILE, "run.json", EVAL_FILE, "evals", "samples", "phases.jsonl", "result.json")


@dataclass
class Run:
    """What one run left. Lists are empty and dicts without entries where a piece is missing; `notes` names it."""

    path: Path
    samples_path: Path
    name: str  # directory and its parent: train_grpo_tiny/20261121T165927Z
    label: str = ""  # how tables and sentences of this report call it
    manifest: dict = field(default_factory=dict)
    training: list[dict] = field(default_factory=list)
    loop: list[dict] = field(default_factory=list)  # evaluations in the training loop
    spikes: list[dict] = field(default_factory=list)
    decisions: list[dict] = field(default_factory=list)
    phases: list[dict] = field(default_factory=list)
    memory: dict = field(default_factory=dict)
    timeline: dict = field(default_factory=dict)  # of memory, see rft.runs.timeline
    result: dict = field(default_factory=dict)
    best: dict = field(default_factory=dict)
    posthoc: dict[str, list[dict]] = field(default_factory=dict)  # results by file name in evals/
    notes: list[str] = field(default_factory=list)


def load(run_dir: Path, alone: bool = True) -> Run:
    """Read a run directory, finished or not.

    Args:
        run_dir: the run's directory.
        alone: the report's only run, so that `METRICS_LOG_DIR` and `SAMPLES_LOG_DIR` can only mean it.

    Raises ValueError where the directory does not exist or holds nothing of a run.
    """
    path = run_dir.resolve()
    metrics, samples = (metrics_dir(path), samples_dir(path)) if alone else (path, path / "samples")
    if not path.is_dir() or not (any((path / name).exists() for name in KNOWN) or (metrics / TRAINING_FILE).is_file()):
        found = "nothing of a run in it" if path.is_dir() else "no such directory"
        raise ValueError(f"{run_dir}: found {found}; wanted a run directory, runs/LAUNCHER/TIME; correct the path")
    run = Run(path, samples, f"{path.parent.name}/{path.name}")
    note = run.notes.append
    run.manifest = read_object(path / "run.json", note, "configuration and fingerprints are unknown")
    run.training = read_lines(
        metrics / TRAINING_FILE, note, "no step was finished, or METRICS_LOG_DIR is another path", by_step=True
    )
    run.loop = read_lines(metrics / EVAL_FILE, note, "no evaluation in the loop (--eval_steps)", by_step=True)
    run.spikes = read_spikes(metrics, note)
    run.decisions = read_lines(metrics / "decisions.jsonl", note)
    run.phases = read_lines(path / "phases.jsonl", note, "seconds by phase are unknown")
    run.memory = read_object(path / MEMORY_FILE, note, "peak memory is unknown")
    run.timeline = read_object(path / TIMELINE_FILE, note)
    run.result = read_object(path / "result.json", note, "the run is unfinished, or its report failed")
    run.best = read_object(path / "best.json", note)
    evaluations = [file for file in (path / "evals").glob("*.json") if not file.name.startswith(FORMAT)]
    for file in sorted(evaluations, key=lambda file: (file.name != "before.json", file.name)):
        if results := read_results(file, note):
            run.posthoc[file.name] = results
    supervised = (path / "evals" / f"{FORMAT}before.json").is_file()  # its evaluations are those checks
    if "after.json" not in run.posthoc and not supervised:
        note("evals/after.json: not there; the trained adapter has no post-hoc evaluation (eval/eval_posthoc.py)")
    if not any(file.kind == TRAINING for file in sample_files(samples)) and not supervised:
        note("samples/samples_step*.jsonl.gz: not there; --samples_every 0, or no step was finished")
    if (metrics / "discarded_metrics.jsonl").is_file():
        note("discarded_metrics.jsonl: the run was resumed and trained some steps again; the last pass is shown")
    return run


def number(value: object) -> float | None:
    """A finite number as it is, None for everything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def dicts(value: object) -> list[dict]:
    """The dicts in a list; none where the value is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _loads(text: str):
    return json.loads(text, parse_constant=lambda _: None)  # NaN and infinities, which JSON does not have


def read_lines(path: Path, note: Callable, missing: str | None = None, by_step: bool = False) -> list[dict]:
    """The objects of a JSONL file, gzipped or not, that can be read; what cannot is counted in a note.

    Unlike `rft.record.readers.read_jsonl` it skips a broken line: a kill tears the last line of an appended file, and
    the resumed run writes on behind it.

    Args:
        note: called with one text for each thing to tell.
        missing: what it means when the file is not there; None where that means nothing.
        by_step: lines need a `global_step`; the last line of a step counts, in the order of the steps.
    """
    if not path.is_file():
        if missing:
            note(f"{path.name}: not there; {missing}")
        return []
    try:
        *lines, tail = content(path).decode("utf-8", "replace").split("\n")
    except ValueError as error:
        note(f"{path.name}: cannot be read ({error}); left out")
        return []
    records, broken = [], []
    for place, line in enumerate(lines, 1):
        try:
            record = _loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or (by_step and number(record.get("global_step")) is None):
            broken.append(place)
        else:
            records.append(record)
    if broken:
        which = ", ".join(map(str, broken[:LINES_NAMED])) + (", …" if len(broken) > LINES_NAMED else "")
        note(f"{path.name}: {len(broken)} of {len(lines)} lines cannot be read (line {which}); left out")
    if tail:
        note(f"{path.name}: the last line is incomplete, after a kill or while it is being written; left out")
    if by_step:
        records = [r for _, r in sorted({r["global_step"]: r for r in records}.items())]
    return records


def count(path: Path, note: Callable) -> int:
    """Complete lines of a JSONL file, gzipped or not; a damaged one has none and makes a note."""
    try:
        return content(path).count(b"\n")
    except ValueError as error:
        note(f"{path.name}: cannot be read ({error}); left out")
        return 0


def read_spikes(directory: Path, note: Callable) -> list[dict]:
    """The lines of the spike log, and the bundles in spikes/ that it does not have."""
    spikes = read_lines(directory / SPIKE_FILE, note)
    logged = {str(spike.get("bundle")) for spike in spikes}
    for file in sorted(directory.glob("spikes/step_*/spike.json")):
        if f"spikes/{file.parent.name}" not in logged:
            spikes.append(read_object(file, note))
    return [spike for spike in spikes if number(spike.get("global_step")) is not None]


def read_object(path: Path, note: Callable, missing: str | None = None) -> dict:
    """A JSON file with one object; {} and a note where there is none."""
    if not path.is_file():
        if missing:
            note(f"{path.name}: not there; {missing}")
        return {}
    try:
        content = _loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        content = error
    if isinstance(content, dict):
        return content
    note(f"{path.name}: cannot be read ({content if isinstance(content, ValueError) else 'no object'}); left out")
    return {}


def read_results(file: Path, note: Callable) -> list[dict]:
    """The results of one file of `eval/eval_posthoc.py`, those of before the field `metrics` existed included."""
    try:
        content = _loads(file.read_text(encoding="utf-8", errors="replace"))
        return [completed(result) for result in content]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        note(f"evals/{file.name}: cannot be read as results of eval_posthoc.py ({error!r}); left out")
        return []


def completed(result: dict) -> dict:
    """A result with what older files lack, numbers that are none as None, records as the comparison reads them, and
    how an agent searched, in words.

    Raises KeyError, TypeError or ValueError for what is no result.
    """
    mode, n = str(result["mode"]), int(result["n"])
    own = {"value": float(result[mode]), "interval95": [float(end) for end in result["interval95"]]}
    whole = {
        name: metric
        for name, metric in result.get("metrics", {}).items()
        if isinstance(metric, dict) and None not in map(number, (metric.get("value"), *metric["interval95"]))
    }
    records = [
        {"label": None} | r | {"id": r["id"], "correct": bool(r["correct"]), "response": str(r["response"])}
        for r in result["records"]
    ]
    samples = len(records) // max(1, len({r["id"] for r in records}))
    return {"samples_per_problem": samples} | result | {
        "model": str(result["model"]), "dataset": str(result["dataset"]), "mode": mode, "n": n, mode: own["value"],
        "interval95": own["interval95"], "metrics": whole or {mode: own}, "records": records,
        "truncated": number(result.get("truncated")), "mean_tokens": number(result.get("mean_tokens")),
        "searched": sentence(result["conversations"]) if result.get("conversations") else "",
    }  # fmt: skip
