"""Rows of NuminaMath-1.5, and of anything with its schema, streamed from the hub, parquet, JSONL or Arrow."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from rft.data.row_files import read_rows
from rft.data.tables import arrow_rows, parquet_rows
from rft.problems import shorten

# All are strings, the validity columns too ("Yes", "No", …): a test for truth would pass every row.
COLUMNS = ("problem", "solution", "answer", "question_type", "problem_is_valid", "solution_is_valid", "source")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def read_numina(source: str | list[Path], revision: str | None = None) -> Iterator[dict]:
    """Rows with `COLUMNS` (each a string or None), in the order of the source; other columns are left out.

    Args:
        source: a .parquet, .jsonl or .arrow file, a directory of parquet files, a directory that
            `datasets.Dataset.save_to_disk` wrote, or the name of a hub dataset (its split `train`); or a list of files.
        revision: of the hub dataset.

    Raises:
        ValueError: nothing of these; columns are missing; a value is no string, with its row and column.
        OSError: the hub cannot be reached.
    """
    if isinstance(source, list):
        return chain.from_iterable(_checked(_file(path), str(path)) for path in source)
    path = Path(source)
    if path.is_dir():
        rows = _directory(path)
    elif path.suffix in (".parquet", ".jsonl", ".arrow") or path.is_file():
        rows = _file(path)
    elif _HUB_NAME.fullmatch(source):
        rows = _hub(source, revision)
    else:
        raise ValueError(
            f"found no {source}; wanted a .parquet, .jsonl or .arrow file, a directory of them, or a hub dataset "
            "such as AI-MO/NuminaMath-1.5; correct --source"
        )
    return _checked(rows, source)


def _checked(rows: Iterable[dict], source: str) -> Iterator[dict]:
    number = 0
    for number, row in enumerate(rows, 1):
        for column in COLUMNS:
            value = row.get(column, row)
            if value is row:
                raise ValueError(_missing(f"{source}, row {number}", row))
            if value is not None and not isinstance(value, str):
                raise ValueError(
                    f"{source}, row {number}: column {column!r} is {shorten(value)}, wanted a string or null; "
                    "use NuminaMath-1.5 as published (validity columns are text, 'Yes' or 'No')"
                )
        yield row
    if number == 0:
        raise ValueError(f"{source}: found no rows, wanted problems; fetch the data set again")


def _missing(place: str, columns: Iterable[str]) -> str:
    found = sorted(columns)
    absent = [c for c in COLUMNS if c not in found]
    return (
        f"{place}: found columns {found}, wanted also {absent}; use NuminaMath-1.5 as published, or rename the columns"
    )


def _file(path: Path) -> Iterator[dict]:
    if not path.is_file():
        raise ValueError(f"found no file {path}; wanted NuminaMath-1.5 rows; correct --source")
    if path.suffix == ".jsonl":
        return (row for _, row in read_rows(path))
    if path.suffix == ".parquet":
        return parquet_rows(path, _columns(path))
    if path.suffix == ".arrow":
        return arrow_rows(path, _columns(path))
    raise ValueError(f"found {path}, wanted a .parquet, .jsonl or .arrow file; convert it or correct --source")


def _directory(path: Path) -> Iterator[dict]:
    is_saved = (path / "state.json").is_file()  # by save_to_disk
    files = sorted(path.glob("data-*.arrow") if is_saved else path.rglob("*.parquet"))
    if not files:
        raise ValueError(
            f"found neither parquet files nor a saved dataset in {path}; wanted one of them; correct --source"
        )
    return (row for file in files for row in _file(file))


def _columns(path: Path) -> Callable[[list[str]], list[str]]:
    """Chooses `COLUMNS` among a file's columns, which must have them."""

    def choose(names: list[str]) -> list[str]:
        if not set(COLUMNS) <= set(names):
            raise ValueError(_missing(str(path), names))
        return list(COLUMNS)

    return choose


def _hub(name: str, revision: str | None) -> Iterator[dict]:
    from datasets import load_dataset

    try:
        rows = load_dataset(name, split="train", revision=revision, streaming=True)
    except (OSError, ValueError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"found no hub dataset {name} with a split 'train' ({first}); "
            "check the name and the network, or pass a downloaded copy with --source"
        ) from None
    return iter(rows)
