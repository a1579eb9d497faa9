"""Save and stop: a run that is asked to saves a complete checkpoint after its step, and ends with status 11.

The launcher asks by a file in the run directory where it gets SIGUSR1 or SIGTERM (launch/ending.sh), as schedulers send
before they take a machine away. A file, because it needs nobody who listens: a signal to a driver that still imports
would end it.
"""

from argparse import Namespace

from rft.hooks.run_files import note_stop, run_dir

STATUS = 11
FILE = "save_and_stop"  # in the run directory; the launcher removes it at each start
CAUSE = "asked_to_stop"  # in the place of a rule's name


def asked(args: Namespace, global_step: int) -> dict | None:
    """After a step: the note of the stop that was asked for, or None. Who gets one saves a checkpoint now.

    A run with `--disable_ds_ckpt` has nothing to resume from, and one with `--async_train` draws rollouts ahead of what
    it trains on: these two go on.

    Returns:
        `global_step`, `rule` (the cause), `reason`.
    """
    place = run_dir()
    if not place or not (place / FILE).is_file() or args.disable_ds_ckpt or args.async_train:
        return None
    reason = (place / FILE).read_text().strip() or f"the file {FILE} in the run directory"
    return {"global_step": global_step, "rule": CAUSE, "reason": reason}


def finish(stopped: dict | None) -> None:
    """The last act of a driver that was asked to stop: `stopped` into run.json. The checkpoint is all that it leaves.

    Args:
        stopped: what the training returned, None or a note of early stopping as well.

    Raises:
        SystemExit: status 11, where the training was asked to stop.
    """
    if not stopped or stopped["rule"] != CAUSE:
        return
    if place := run_dir():
        note_stop(place, {key: stopped[key] for key in ("global_step", "rule", "reason")} | {"exit_status": STATUS})
    print(f"stopped after step {stopped['global_step']}, with a checkpoint of it: {stopped['reason']}", flush=True)
    raise SystemExit(STATUS)
