"""The learning rate: its schedule, its value, and what the engine's rounding leaves of its updates."""

from argparse import Namespace
from importlib.metadata import version

from rft.runs import lr_schedule
from rft.runs.preflight.lines import NO_GO, WARN, Line
from rft.runs.preflight.model import parameters
from rft.runs.preflight.rounding import check_rounding

# transformers' schedulers that accept the `min_lr_rate` which OpenRLHF passes to each of them.
SCHEDULERS = (
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "constant",
    "constant_with_warmup",
)
SLOW_STEPS = 100  # optimizer steps of warm-up, above which a run has learned nothing by the time it is judged
SMALL = 100e6  # parameters; the published rates are of models far above it


def schedulers() -> tuple[str, ...]:
    """Those of `--lr_scheduler` that can be built; transformers 5 has begun to pass `min_lr_rate` to another."""
    return SCHEDULERS if int(version("transformers").partition(".")[0]) >= 5 else (*SCHEDULERS, "inverse_sqrt")


def check_learning_rate(args: Namespace, config: dict, prompts: int | None) -> list[Line]:
    """A value that models have been trained with, and 30% of it at optimizer step 20: rft.runs.lr_schedule.

    Args:
        config: of the model; empty where it is not known, which counts as a large one.
        prompts: of an episode; None where that is not known.
    """
    if args.lr_scheduler not in schedulers():
        measured = f"--lr_scheduler {args.lr_scheduler} does not take the min_lr_rate that OpenRLHF passes"
        return [Line("learning rate", NO_GO, measured, "--lr_scheduler cosine_with_min_lr")]
    made = schedule(args, prompts or 0)
    scaling = args.lora_alpha / args.lora_rank if args.lora_rank else None
    small = bool(config) and parameters(config) < SMALL
    value = lr_schedule.judge_value(made, scaling, small)
    if value[0] == NO_GO or args.actor_learning_rate == 0:
        return [Line("learning rate", *value)]
    if args.lr_scheduler not in lr_schedule.KNOWN or prompts is None:
        measured = f"schedule not judged: --lr_scheduler {args.lr_scheduler}, {prompts} prompts; {value[1]}"
        return [Line("learning rate", WARN, measured, f"--lr_scheduler {lr_schedule.KNOWN[0]}")]
    good, measured, repair = lr_schedule.verdict(made)
    if not good:
        return [Line("learning rate", WARN if is_slow_only(made) else NO_GO, measured, repair)]
    found = [Line("learning rate", value[0], f"{measured}; {value[1]}", value[2])]
    return found + (check_rounding(args, config, made) if config else [])


def is_slow_only(made: lr_schedule.Schedule) -> bool:
    """A warm-up that is long for the judged step, but over early in the run, as the search task's of 94 updates."""
    return 0 < made.warmup <= min(SLOW_STEPS, made.total / 5)


def schedule(args: Namespace, prompts: int) -> lr_schedule.Schedule:
    """The run's learning-rate schedule."""
    return lr_schedule.make_schedule(
        prompts,
        args.n_samples_per_prompt,
        args.train_batch_size,
        args.num_episodes,
        args.lr_warmup_ratio,
        args.actor_learning_rate,
        args.max_epochs,
        args.rollout_batch_size,
        args.lr_scheduler,
    )
