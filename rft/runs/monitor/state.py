"""Read a run for the monitor: cheaply, again and again, while others write. Nothing is ever written.

A file may be absent, replaced, or hold an incomplete line: at its end after a kill, in its middle after a resume.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from rft.options.command import recorded
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import metrics_dir, spike_log
from rft.record.step_phases import PHASES, time_name
from rft.rules.healthy import HEALTHY
from rft.runs.find import read_json, start_time
from rft.runs.memory import marked_processes
from rft.runs.monitor.progress import total_steps

TRAINING_NAMES = frozenset({*HEALTHY, "global_step", "reward", "grad_norm_max", "actor_lr"})
TRAINING_NAMES |= {time_name(phase) for phase in (*PHASES, "step")} | {"tokens_per_second_step_per_gpu"}
TAIL_BYTES = 1 << 22  # of the spike log, which grows by several kilobytes a spike
GPU_SECONDS = 5.0  # a driver that hangs must not take the monitor with it
GPU_FIELDS = "index,utilization.gpu,memory.used,memory.total,temperature.gpu"


class Lines(NamedTuple):
    """A JSONL file as far as it was read: the records of its complete lines, and how many lines could not be used."""

    records: list[dict]
    broken: int = 0
    identity: tuple[int, int] | None = None  # device and inode
    offset: int = 0  # bytes read, always at the start of a line
    modified: float | None = None  # seconds since the epoch; None where there is no file


class State(NamedTuple):
    """A run at one moment. Times are seconds since the epoch, sizes bytes."""

    name: str
    now: float
    metrics_elsewhere: bool
    manifest: dict
    started: float | None
    options: argparse.Namespace
    total_steps: int | None
    eval_problems: dict[str, int]  # problems of the evaluation set by data source
    phases: Lines
    training: Lines
    evaluations: Lines
    decisions: Lines
    spikes: list[dict]  # last ones first, one record an optimizer step
    result: dict
    best: dict
    peak_gb: float | None
    log_modified: float | None
    log_tail: list[str]
    disk: tuple[int, int]  # free, total
    gpus: list[list[str]] | str | None  # rows of GPU_FIELDS, a complaint, or None without nvidia-smi
    processes: int  # of this run on this machine


def run_options(manifest: dict) -> argparse.Namespace:
    """The options of a run's command; the defaults, of which no length follows, where it has none that can be read."""
    try:
        return recorded(manifest.get("command") or [])
    except ValueError:
        return recorded([])


def read_state(run: Path, before: State | None = None) -> State:
    """Read a run's directory; with the state `before` only what is new since."""
    metrics, manifest, log = metrics_dir(run), read_json(run / "run.json"), run / "train.log"
    options = run_options(manifest)
    same_run = before is not None and before.manifest == manifest and before.total_steps is not None
    full = run.resolve()
    return State(
        name="/".join(full.parts[-2:]),
        now=time.time(),
        metrics_elsewhere=metrics.resolve() != full,
        manifest=manifest,
        started=start_time(run, manifest),
        options=options,
        total_steps=before.total_steps if same_run else total_steps(options),
        eval_problems=before.eval_problems if same_run else count_problems(options.eval_dataset),
        phases=follow(run / "phases.jsonl", "phase", before and before.phases),
        training=follow(metrics / TRAINING_FILE, "global_step", before and before.training, TRAINING_NAMES),
        evaluations=follow(metrics / EVAL_FILE, "global_step", before and before.evaluations),
        decisions=follow(metrics / "decisions.jsonl", "global_step", before and before.decisions),
        spikes=last_spikes(spike_log(run)),
        result=read_json(run / "result.json"),
        best=read_json(run / "best.json"),
        peak_gb=number(read_json(run / "memory.json").get("peak_gb")),
        log_modified=log.stat().st_mtime if log.exists() else None,
        log_tail=tail(log, 1 << 12).decode(errors="replace").split("\n")[-4:],
        disk=(usage := shutil.disk_usage(run)) and (usage.free, usage.total),
        gpus=read_gpus(),
        processes=max(len(marked_processes(name)) for name in {str(run.absolute()), str(full)}),
    )


def follow(path: Path, key: str, before: Lines | None, names: frozenset[str] | None = None) -> Lines:
    """Read what a JSONL file has gained since `before`; all of it where it was replaced or became shorter.

    Args:
        key: the field that a record must have; `global_step` must be a number.
        names: keep only these fields, numbers or None; without it records keep all fields.
    """
    try:
        with path.open("rb") as stream:
            info = os.fstat(stream.fileno())
            identity = (info.st_dev, info.st_ino)
            if before is None or identity != before.identity or info.st_size < before.offset:
                before = Lines([])
            stream.seek(before.offset)
            fresh = stream.read()
    except FileNotFoundError:
        return Lines([])
    whole = fresh[: fresh.rfind(b"\n") + 1]
    found, broken = [], before.broken
    for line in whole.split(b"\n")[:-1]:
        record = parse(line, key)
        if record is None:
            broken += 1
        elif names is None:
            found.append(record)
        else:
            found.append({name: number(record[name]) for name in names & record.keys()})
    return Lines(before.records + found, broken, identity, before.offset + len(whole), info.st_mtime)


def parse(line: bytes, key: str) -> dict | None:
    """A line's record; None unless it is a JSON object with the field `key`."""
    try:
        record = json.loads(line)
    except ValueError:  # not UTF-8, or not JSON
        return None
    if not isinstance(record, dict) or record.get(key) is None:
        return None
    return None if key == "global_step" and number(record[key]) is None else record


def number(value: object) -> float | None:
    """A finite number, or None."""
    return value if type(value) in (int, float) and math.isfinite(value) else None


def count_problems(dataset: str | None) -> dict[str, int]:
    """Problems of an evaluation set by `datasource` (`default` where it has none, as OpenRLHF calls it)."""
    if not dataset or not dataset.endswith(".jsonl") or not Path(dataset).is_file():
        return {}
    counts = {}
    for line in Path(dataset).read_bytes().split(b"\n"):
        if (row := parse(line, "input")) is not None:
            source = str(row.get("datasource", "default"))
            counts[source] = counts.get(source, 0) + 1
    return counts


def last_spikes(path: Path, count: int = 3) -> list[dict]:
    """The newest spikes, last first; of several ranks' lines on one optimizer step, one."""
    spikes = {}
    for line in reversed(tail(path, TAIL_BYTES).split(b"\n")[:-1]):
        if (record := parse(line, "global_step")) is not None:
            spikes.setdefault(record.get("optimizer_step"), record)
        if len(spikes) == count:
            break
    return list(spikes.values())


def tail(path: Path, size: int) -> bytes:
    """The last `size` bytes of a file; nothing where there is no file."""
    if not path.is_file():
        return b""
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
        return stream.read()


def read_gpus() -> list[list[str]] | str | None:
    """One row of GPU_FIELDS a GPU, or what nvidia-smi did instead; None where it is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=GPU_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {GPU_SECONDS:g} s"
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    wanted = GPU_FIELDS.count(",") + 1
    return [row for row in rows if len(row) == wanted] or f"nvidia-smi ended with status {answer.returncode}"
