"""What kinds of labels a run's problem files hold."""

from collections import Counter
from collections.abc import Callable

from rft.problems import parse_line
from rft.runs.preflight.data import local_files

OTHER = "other"  # of no task that has labels of its own


def kinds(kind: Callable[[object], str], names: str | None, label_key: str | None = None) -> Counter[str]:
    """How many labels of each kind the JSONL files of an option hold.

    Args:
        kind: of a label; what raises ValueError is not counted, nor a line that cannot be read: another check's.
        names: files, as `--prompt_data` takes them.
    """
    found: Counter[str] = Counter()
    for path in local_files(names).values():
        if path is None or not path.is_file():
            continue
        with path.open("rb") as stream:
            for line in stream:
                try:
                    found[kind(parse_line(line).get(label_key or "label"))] += 1
                except ValueError:
                    continue
    return found
