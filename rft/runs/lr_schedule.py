"""The learning rate of each optimizer step, as OpenRLHF 0.9.3 builds it, before anything is started.

    POOL=400 NS=8 TBS=16 EP=1 WARMUP=0.05 LR=5e-7 .venv/bin/python -m rft.runs.lr_schedule      see preflight_lr.sh

Sources: `prepare_datasets` in openrlhf/trainer/ppo_trainer.py (the number of steps), `init_model_from_pretrained` in
openrlhf/trainer/ray/ppo_actor.py (warm-up, `min_lr_rate`), `cosine_with_min_lr`, `constant` and `constant_with_warmup`
in transformers 4.57. Standard library only.

A step is an optimizer step: `train_batch_size` samples. A rollout step (the `global_step` of the metrics) has
`rollout_batch_size * n_samples_per_prompt * max_epochs / train_batch_size` of them.
"""

import math
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

MIN_RATE = 0.1  # OpenRLHF's constant: the schedule ends at a tenth of the target
JUDGED_STEP = 20
LOWEST_SHARE = 0.3
KNOWN = ("cosine_with_min_lr", "constant_with_warmup", "constant")  # schedulers; the first is OpenRLHF's default
# Rates that published runs took, at alpha = rank for LoRA (docs/sources.md, "The tuned recipe").
USUAL = (1e-5, 3e-4)
USUAL_IN_FULL = (1e-6, 5e-6)
GOOD, GOOD_IN_FULL, GOOD_FOR_SMALL = 2e-5, 1e-6, 3e-3  # the last: the tiny launcher's
COLLAPSED_AT = 1e-2  # the tiny model, with LoRA, within 40 steps; gpt-oss diverged at 3e-3, supervised
VARIABLES = {
    "POOL": "prompts (lines of the training file)",
    "NS": "samples a prompt (--n_samples_per_prompt)",
    "TBS": "samples an optimizer step (--train_batch_size)",
    "EP": "passes over the prompts (--num_episodes)",
    "WARMUP": "share of the steps with a rising rate (--lr_warmup_ratio)",
    "LR": "the target (--actor_learning_rate)",
}


class Schedule(NamedTuple):
    """A learning-rate schedule; `rollout_steps` is the number of optimizer steps a rollout, None where unknown."""

    total: int
    warmup: int
    target: float
    rollout_steps: float | None = None
    decays: bool = True  # down to MIN_RATE of the target; else it stays there


def make_schedule(
    prompts: int,
    n_samples: int,
    train_batch_size: int,
    episodes: int,
    warmup_ratio: float,
    target: float,
    epochs: int = 1,
    rollout_batch_size: int | None = None,
    scheduler: str = KNOWN[0],
) -> Schedule:
    """The schedule of a run. The order of division and product is OpenRLHF's: remainders of an episode are lost.

    Args:
        scheduler: one of `KNOWN`; any other counts as the first, and only its value can be judged.
    """
    total = prompts * n_samples // train_batch_size * episodes * epochs
    rollout_steps = rollout_batch_size * n_samples * epochs / train_batch_size if rollout_batch_size else None
    warmup = 0 if scheduler == "constant" else math.ceil(total * warmup_ratio)
    return Schedule(total, warmup, target, rollout_steps, not scheduler.startswith("constant"))


def factor(schedule: Schedule, step: int) -> float:
    """The share of the target after `step` optimizer steps; the next step is made with it, the first with factor 0.

    Linear from 0 over the warm-up, then half a cosine down to `MIN_RATE` at `total`, or constant.
    """
    if step < schedule.warmup:
        return step / max(1, schedule.warmup)
    if not schedule.decays:
        return 1.0
    progress = (step - schedule.warmup) / max(1, schedule.total - schedule.warmup)
    return max(0.0, 0.5 * (1 + math.cos(math.pi * progress)) * (1 - MIN_RATE) + MIN_RATE)


def summed(schedule: Schedule, steps: int) -> float:
    """The sum of the rates of the first `steps` optimizer steps: about as far as Adam can move a weight, to 1%."""
    rising, after = min(steps, schedule.warmup), max(0, steps - schedule.warmup)
    share = rising * rising / (2 * max(1, schedule.warmup))
    if not schedule.decays:
        return schedule.target * (share + after)
    length = max(1, schedule.total - schedule.warmup)
    bent = (1 - MIN_RATE) / 2 * length / math.pi * math.sin(math.pi * min(after, length) / length)
    return schedule.target * (share + (1 + MIN_RATE) / 2 * after + bent)


def judge_value(schedule: Schedule, scaling: float | None, small: bool = False) -> tuple[str, str, str]:
    """Whether a rate is one that models have been trained with: `go`, `warn` or `no-go`; what was found; the repair.

    Args:
        scaling: alpha / rank of LoRA, by which an adapter's update is multiplied; None: all weights are trained.
        small: a model far below the published ones, which bears larger rates.
    """
    rate = schedule.target
    low, high = USUAL_IN_FULL if scaling is None else USUAL
    usual = f"usual for {'full training' if scaling is None else 'LoRA at alpha = rank'}: {low:g} to {high:g}"
    multiplied = scaling if scaling and scaling > 0 else 1  # no alpha is another check's
    good = GOOD_FOR_SMALL if small else GOOD_IN_FULL if scaling is None else float(f"{GOOD / multiplied:.1g}")
    repair = f"--actor_learning_rate {good:g}"
    if not math.isfinite(rate) or rate < 0:
        return "no-go", f"{rate:g} is no learning rate; {usual}", repair
    if rate >= COLLAPSED_AT:
        destroyed = f"{rate:g}: even the tiny model collapsed within 40 steps at {COLLAPSED_AT:g}; {usual}"
        return "no-go", destroyed, repair
    if rate == 0:
        return "warn", "0: nothing is learned, as a control run wants it", repair
    scaled = rate * (1 if scaling is None else scaling)
    found = f"{rate:g}" + (f" x alpha / rank = {scaled:g}" if scaling not in (None, 1) else "")
    # The bounds are round numbers, and a product of floats may miss them by its last digit.
    if scaled < low * (1 - 1e-9):
        far = f", at most {summed(schedule, schedule.total):.1g} in all" if schedule.total else ""
        recipe = "" if small else ", or RECIPE=tuned of the launchers"
        return "warn", f"{found} will move little{far}; {usual}", repair + recipe
    if scaled > high * (1 + 1e-9) and not small:
        return "warn", f"{found} may diverge, as gpt-oss did at 3e-3; {usual}", repair
    return "go", usual if not small else "a small model, for which there is no usual range", ""


def judged_step(schedule: Schedule) -> int:
    """Step 20, or the middle of a run below 40 steps, whose cosine has already come down at step 20."""
    return min(JUDGED_STEP, schedule.total // 2)


def verdict(schedule: Schedule) -> tuple[bool, str, str]:
    """Whether the rate gets high enough early enough; what was measured; what to change where it does not."""
    if schedule.total < 1:
        return False, "no optimizer step", "more prompts or episodes, or a smaller --train_batch_size"
    step = judged_step(schedule)
    share = factor(schedule, step)
    measured = (
        f"{share:.1%} of {schedule.target:g} after optimizer step {step} of {schedule.total:,}, "
        f"warm-up of {schedule.warmup:,}"
    )
    if schedule.rollout_steps:
        measured += f"; {schedule.rollout_steps:g} optimizer steps a rollout"
    if share >= LOWEST_SHARE:
        return True, measured, ""
    return False, f"{measured}; wanted {LOWEST_SHARE:.0%}", f"--lr_warmup_ratio {highest_ratio(schedule):.2g}, or lower"


def highest_ratio(schedule: Schedule) -> float:
    """A warm-up ratio, two digits, rounded down, with which `verdict` passes."""
    steps = int(judged_step(schedule) / LOWEST_SHARE)
    ratio = min(steps / schedule.total, 0.5)
    digits = 1 - math.floor(math.log10(ratio)) if ratio else 0
    return math.floor(ratio * 10**digits) / 10**digits


def chart(schedule: Schedule, width: int = 40) -> str:
    """A line for each step worth looking at: step, rollout step, learning rate, bar."""
    total = schedule.total
    wanted = {0, 1, 5, 10, judged_step(schedule), schedule.warmup, total // 4, total // 2, total * 3 // 4, total}
    lines = [f"{'step':>9}  {'rollout':>9}  {'rate':>9}"]
    for step in sorted(step for step in wanted if step <= total):
        share = factor(schedule, step)
        rollout = f"{step / schedule.rollout_steps:.1f}" if schedule.rollout_steps else "-"
        mark = "  <- judged" if step == judged_step(schedule) else ""
        bar = "#" * round(share * width)
        lines.append(f"{step:>9,}  {rollout:>9}  {share * schedule.target:>9.2e}  {bar:<{width}}{mark}".rstrip())
    return "\n".join(lines)


def from_environment(environment: Mapping[str, str]) -> Schedule:
    """The schedule that POOL, NS, TBS, EP, WARMUP and LR describe; RBS and SCHEDULER are optional.

    Raises:
        ValueError: a variable is missing, no number, or outside its range.
    """
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        wanted = "".join(f"\n  {name:<7}{text}" for name, text in VARIABLES.items())
        raise ValueError(f"found no {', '.join(missing)}; wanted these variables:{wanted}")
    whole = {name: _number(environment, name, int, 1) for name in ("POOL", "NS", "TBS", "EP")}
    warmup, target = _number(environment, "WARMUP", float, 0), _number(environment, "LR", float, 0)
    if warmup > 1:
        raise ValueError(f"found WARMUP={environment['WARMUP']}, wanted a share of the steps, 0 to 1, e.g. WARMUP=0.05")
    if target == 0:
        raise ValueError("found LR=0, wanted a learning rate above 0, e.g. LR=5e-7")
    rollout = _number(environment, "RBS", int, 1) if environment.get("RBS") else None
    scheduler = environment.get("SCHEDULER") or KNOWN[0]
    if scheduler not in KNOWN:
        raise ValueError(f"found SCHEDULER={scheduler}, wanted one of {', '.join(KNOWN)}; correct or unset it")
    return make_schedule(*whole.values(), warmup, target, rollout_batch_size=rollout, scheduler=scheduler)


def _number(environment: Mapping[str, str], name: str, kind: type, lowest: int):
    text = environment[name].strip()
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= lowest):
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"found {name}={text}, wanted {wanted}, {lowest} or more; correct it")
    return value


def main() -> int:
    try:
        schedule = from_environment(os.environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    good, measured, repair = verdict(schedule)
    value, found, better = judge_value(schedule, scaling=1)
    print(chart(schedule))
    print(f"{'go' if good else 'no-go'}: {measured}")
    print(f"{value}: {found}")
    if not good:
        print(f"error: the learning rate stays too low\n  repair: {repair}", file=sys.stderr)
    if value != "go":
        kind = "error" if value == "no-go" else "warning"
        print(
            f"{kind}: an unusual learning rate\n  repair: {better.replace('--actor_learning_rate ', 'LR=')}",
            file=sys.stderr,
        )
    return 0 if good and value != "no-go" else 1


if __name__ == "__main__":
    sys.exit(main())
