"""Early stopping: judge the run by its own files after every step, and save and end it where a rule says so.

The trainer's process decides with the same files and rules as `rft.runs.diagnose`, so that a resumed run knows its
history and a user can repeat every decision. The driver's process saves as at the normal end, and exits with status 10.
"""

import json
import os
from argparse import Namespace
from pathlib import Path

from rft.hooks.run_files import forget_stop, note_stop, run_dir
from rft.record import disk
from rft.record.files import append_lines
from rft.record.names import DECISIONS_FILE, EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.rules.judge import chosen, findings, judge

STATUS = 10
_said: dict[str, str] = {}  # rule -> level that is in the file already


def decide(args: Namespace, global_step: int) -> dict | None:
    """After a step was logged, and evaluated if it was its turn: why training must end now, or None.

    Whatever is not ok is written to `$METRICS_LOG_DIR/decisions.jsonl` when its level changes: `global_step`, `rule`,
    `action` (`stop`; `watch` for a warning, and for a rule that may not stop), `reason`, `numbers`.

    Args:
        args: OpenRLHF's; `stop_rules` as `rft.rules.judge.chosen` reads it.
        global_step: steps trained.

    Returns:
        `global_step`, `rule`, `reason`, `change` of the first rule that stops; None also without METRICS_LOG_DIR.
    """
    directory = os.environ.get("METRICS_LOG_DIR")
    if args.stop_rules == "off" or not directory:
        return None
    place = Path(directory)
    facts = {"disk": disk.places(args.ckpt_path, [args.save_path, place])}
    verdicts = judge(read_jsonl(place / TRAINING_FILE), read_jsonl(place / EVAL_FILE), facts)
    stopping = stopping_rules(args, global_step)
    for verdict in findings(verdicts):
        stops = verdict.level == "bad" and verdict.rule in stopping
        if stops or _said.get(verdict.rule) != verdict.level:
            _said[verdict.rule] = verdict.level
            action = "stop" if stops else "watch"
            decision = {"global_step": global_step, "rule": verdict.rule, "action": action, "level": verdict.level}
            decision |= {"reason": verdict.reason, "numbers": verdict.numbers}
            append_lines(place / DECISIONS_FILE, json.dumps(decision) + "\n")
            print(f"{action}: {verdict.rule} ({verdict.level}) at step {global_step}: {verdict.reason}", flush=True)
        if stops:
            about = {"rule": verdict.rule, "reason": verdict.reason, "change": verdict.change}
            return {"global_step": global_step, **about}
    for verdict in verdicts:
        if verdict.level == "ok":
            _said.pop(verdict.rule, None)
    return None


def stopping_rules(args: Namespace, global_step: int) -> set[str]:
    """The rules that may stop the run now. Weights that are frozen because the user asked for it are no reason to."""
    rules = chosen(args.stop_rules)
    if args.actor_learning_rate == 0 or global_step <= args.freezing_actor_steps + 3:
        rules.discard("frozen_weights")
    return rules


def finish(args: Namespace, stopped: dict | None) -> None:
    """The last act of the driver, after the model was saved: `stopped` into run.json, or out of it at a normal end.

    Raises:
        SystemExit: status 10, where a rule has stopped the run.
    """
    if not stopped:
        forget_stop()  # of an earlier pass in the same directory
        return
    if place := run_dir():
        record = {key: stopped[key] for key in ("global_step", "rule", "reason")} | {"exit_status": STATUS}
        note_stop(place, record)
    print(
        f"stopped: rule {stopped['rule']} at step {stopped['global_step']}; the model is saved in {args.save_path}\n"
        f"  found:  {stopped['reason']}\n"
        f"  repair: {stopped['change']}\n"
        f"  to train on regardless: --stop_rules default,-{stopped['rule']}, or off",
        flush=True,
    )
    raise SystemExit(STATUS)
