"""How far a run is: the steps it will take, the time a step takes, what it is doing now. Pure functions.

Steps are rollout batches, as in training_metrics.jsonl.
"""

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.record.step_phases import shares
from rft.runs.ending import ending

if TYPE_CHECKING:
    from rft.runs.monitor.state import State

TRAINING_PHASES = ("grpo", "sft", "train")  # names in phases.jsonl, which launchers choose
RECENT_STEPS = 50
STALL_STEPS = 5  # a run counts as stalled when its last line is older than this many steps, and a minute
STALL_SECONDS = 60.0
EVALUATION_PATIENCE = 4  # an evaluation in the loop may take that many times longer


class Status(NamedTuple):
    """`style`: good, busy, warn or bad. `ended`: nothing more is expected."""

    word: str
    style: str
    detail: str = ""
    ended: bool = False


def total_steps(options: argparse.Namespace) -> int | None:
    """Steps of the whole run: full rollout batches of each episode. None where the prompts cannot be counted.

    OpenRLHF drops an episode's last batch unless it is full. With `--dynamic_filtering` it is an upper bound, and so it
    is of a supervised run, whose steps are batches of rows, where some are too long.

    Args:
        options: of the run's command (`rft.options.command.recorded`).
    """
    if rows := getattr(options, "dataset", None):
        count = count_lines(Path(rows))
        return count and min(options.max_samples, count) // options.train_batch_size * options.max_epochs
    if not options.prompt_data or options.prompt_data_probs or options.rollout_batch_size < 1:
        return None
    counts = [count_lines(Path(name.strip())) for name in options.prompt_data.split(",")]
    if None in counts:
        return None
    prompts = min(options.max_samples, sum(min(options.max_samples, count) for count in counts))
    return prompts // options.rollout_batch_size * options.num_episodes


def count_lines(path: Path) -> int | None:
    """Lines of a .jsonl file, the last one with or without its newline; None for anything else."""
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    data = path.read_bytes()
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def step_seconds(state: "State") -> float | None:
    """Median seconds of the last steps; of a run that does not log them, its training time over its steps."""
    records = state.training.records
    if (recent := _median(records[-RECENT_STEPS:], "time_step_seconds")) is not None:
        return recent
    seconds = training_seconds(state)
    return seconds / len(records) if records and seconds else None


def cost(records: list[dict]) -> list[str]:
    """`64% rollout, 30% train, …` and `1,234 tokens/s, 617 a GPU, 31% of peak FLOPs` of the last steps, if known."""
    recent = records[-RECENT_STEPS:]
    rates = []
    whole, each = (_median(recent, f"tokens_per_second_step{suffix}") for suffix in ("", "_per_gpu"))
    if whole is not None:
        rates += [f"{whole:,.0f} tokens/s"] + ([f"{each:,.0f} a GPU"] if each is not None else [])
    if (used := _median(recent, "model_flops_utilization")) is not None:
        rates.append(f"{used:.0%} of peak FLOPs")
    parts = [f"{share:.0%} {name}" for name, share in shares(recent).items() if share >= 0.005]
    return [", ".join(words) for words in (parts, rates) if words]


def _median(records: list[dict], name: str) -> float | None:
    values = [value for record in records if (value := record.get(name)) is not None]
    return statistics.median(values) if values else None


def training_seconds(state: "State") -> float | None:
    """Seconds that training took, as its launcher measured them; before that, from its start to its last line."""
    if found := [p.get("seconds") for p in state.phases.records if p["phase"] in TRAINING_PHASES]:
        return found[-1]
    if state.started and state.training.modified and state.training.modified > state.started:
        return state.training.modified - state.started
    return None


def status(state: "State") -> Status:
    """What the run is doing, from `rft.runs.monitor.state.State`; the first line that applies."""
    records, phases = state.training.records, [p["phase"] for p in state.phases.records]
    step = records[-1]["global_step"] if records else 0
    if stopped := state.manifest.get("stopped"):
        word, how = ending(stopped)
        detail = f"{how.removeprefix(f'{word} ')}: {stopped.get('reason')}"
        return Status(word, "bad", detail, state.processes == 0)
    # Lines that came after the launcher closed its training phase belong to a run that was taken up again.
    resumed = (state.training.modified or 0) > (state.phases.modified or 0) + STALL_SECONDS
    closed = any(name in phases for name in TRAINING_PHASES) and not resumed
    done = state.total_steps is not None and step >= state.total_steps
    if closed and state.processes:
        return Status("after training", "busy", f"last finished: {phases[-1]}")
    if closed and (done or state.total_steps is None or state.result):
        return Status("finished", "good", "", True)
    if closed:
        return Status("ended early", "bad", f"after step {step:.0f} of {state.total_steps}; see train.log", True)
    if done:
        return Status("trained", "good", "all steps done", state.processes == 0)
    return _under_way(state, step, phases)


def _under_way(state: "State", step: float, phases: list[str]) -> Status:
    if not state.training.records:
        word = "starting" if state.manifest else "preparing" if phases else "waiting"
        last = f"; last finished: {phases[-1]}" if phases else ""
        changed = max(state.phases.modified or 0, state.log_modified or 0)
        if phases and state.processes == 0 and state.now - changed > STALL_SECONDS:
            # As in the preflight: a launcher closes its last phase however it ends.
            return Status("ended early", "bad", "before the first step" + last + _absent(state), True)
        return Status(word, "busy", "no step yet" + last + _absent(state))
    every = state.options.eval_steps
    evaluated = state.evaluations.records and state.evaluations.records[-1]["global_step"] >= step
    evaluating = every > 0 and step % every == 0 and not evaluated
    age, seconds = state.now - state.training.modified, step_seconds(state)
    patience = max(STALL_SECONDS, STALL_STEPS * (seconds or 0)) * (EVALUATION_PATIENCE if evaluating else 1)
    if age > patience:
        usual = f"; a step takes {clock(seconds)}" if seconds else ""
        return Status("stalled", "bad", f"no line for {clock(age)}{usual}" + _absent(state))
    return Status("evaluating" if evaluating else "training", "good")


def _absent(state: "State") -> str:
    """A hint, no verdict: the run may be on another machine, or was started without a launcher."""
    return "; no process of it on this machine" if state.processes == 0 else ""


def clock(seconds: float) -> str:
    """Seconds for people: 8.1 s, 2:05, 1:02:03, 2 d 03:04."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    if days:
        return f"{days} d {hours_of_day:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
