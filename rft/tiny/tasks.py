"""The tasks that a tiny model can be made for, each a module with `TEXTS`, `make_splits`, `read_split` and
`worked_turn`."""

from rft.tiny import programs, task

TASKS = {"sums": task, "code": programs}
STYLES = task.STYLES  # every task has answers in these two
