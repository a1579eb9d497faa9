"""Note in a run's run.json that it was ended before its end, and by what: `stopped`, as early stopping does.

python -m rft.runs.stopped RUN_DIR CAUSE REASON EXIT_STATUS
"""

import argparse
from pathlib import Path

from rft.hooks.run_files import note_stop
from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("cause", help="in the place of a rule's name: interrupted, launcher_killed, stopped_process")
    parser.add_argument("reason")
    parser.add_argument("exit_status", type=int)
    args = parser.parse_args()
    note(args.run_dir, args.cause, args.reason, args.exit_status)


def note(run_dir: Path, cause: str, reason: str, exit_status: int) -> None:
    """Write `stopped`: `global_step` of the last logged step, `rule` (the cause), `reason`, `exit_status`.

    A run without run.json has not begun to train, and stays without.
    """
    if (run_dir / "run.json").is_file():
        records = read_jsonl(run_dir / TRAINING_FILE)
        step = records[-1]["global_step"] if records else 0
        note_stop(run_dir, {"global_step": step, "rule": cause, "reason": reason, "exit_status": exit_status})


if __name__ == "__main__":
    main()
