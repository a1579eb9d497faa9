"""The tasks that a tiny model can be made for, each a module with `SIZES`, `TEXTS`, `make_splits`, `read_split` and
`worked_turn`, or, for conversations of several turns, `worked_tokens`."""

from rft.tiny import programs, search, task, unboxed

TASKS = {"sums": task, "code": programs, "search": search, "unboxed": unboxed}
STYLES = task.STYLES  # every task has answers in these two
