"""Problem files as others publish them, read as problems of an evaluation."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rft.data.canonical import content_hash, integer_label
from rft.data.row_files import read_rows
from rft.data.tables import parquet_rows
from rft.grading import last_boxed
from rft.problems import TOO_DEEP, input_fault, problem_text, shorten

_LEVEL = re.compile(r"(?:Level )?([1-5?])(?:\.0)?")  # "Level ?" is published for a few
_CONTESTS = {"I": 1, "II": 2}


class Problem(NamedTuple):
    """A problem of an evaluation file."""

    id: str
    text: str
    label: str | None  # None where the file states no answer
    datasource: str
    level: float | None  # MATH's difficulty, 1 to 5
    year: int | None  # of an AIME


def read_published(path: str | Path) -> list[Problem]:
    """Problems of an evaluation file, in its order: our own JSONL, or a published JSON list, JSONL or Parquet.

    Known forms are rows with `input` and `label`, and rows with `problem` (or `question`) and `answer` (or a
    `solution` that states it). The answer of GSM8K follows `####`. MATH's difficulty is `difficulty` or `level`.

    Raises:
        ValueError: file, place and field of what is wrong; columns of neither form; no problems; an id that two
            rows have. (Published files without ids hold some problems twice; those get one id, and stay.)
    """
    path, problems, seen = Path(path), [], {}
    for place, row in raw_rows(path):
        try:
            problem = _problem(row, path.stem)
        except ValueError as error:
            raise ValueError(f"{path}, {place}: {error}") from None
        earlier, text = seen.setdefault(problem.id, (place, problem.text))
        if earlier != place and ("id" in row or content_hash(text) != content_hash(problem.text)):
            raise ValueError(
                f"{path}, {place}: found id {problem.id!r}, which {earlier} has too; "
                "wanted unique ids; remove one of the two"
            )
        problems.append(problem)
    return problems


def raw_rows(path: Path) -> Iterator[tuple[str, object]]:
    """(place, row) of a JSON list, of JSON lines, or of a Parquet file."""
    if not path.is_file():
        raise ValueError(f"found no file {path}; wanted a JSON, JSONL or Parquet file of problems; correct the path")
    if path.suffix == ".parquet":
        yield from ((f"row {number}", row) for number, row in enumerate(parquet_rows(path), 1))
        return
    with path.open("rb") as stream:
        is_list = stream.read(4096).lstrip()[:1] == b"["
    if not is_list:
        yield from ((f"line {number}", row) for number, row in read_rows(path))
        return
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}; fetch the file again") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; convert the file or fetch it again") from None
    except RecursionError:
        raise ValueError(f"{path}: {TOO_DEEP}") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise ValueError(f"{path}: {error}; fetch the file again") from None
    if not rows:
        raise ValueError(f"{path}: found no problems in the file, wanted at least one; fetch the file again")
    yield from ((f"problem {number}", row) for number, row in enumerate(rows, 1))


def _problem(row: object, stem: str) -> Problem:
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted an object with a problem and its answer")
    if "input" in row and "label" in row:
        return _own(row)
    name = next((n for n in ("problem", "question") if n in row), None)
    if name is None or not ("answer" in row or "solution" in row):
        raise ValueError(
            f"found columns {sorted(row)}, wanted 'input' and 'label', or 'problem' (or 'question') and 'answer' "
            "(or 'solution'); rename the columns"
        )
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"field {name!r} is {shorten(text)}, wanted the text of a problem")
    return _published(row, text, stem)


def _own(row: dict) -> Problem:
    fault = input_fault(row["input"])
    if fault:
        raise ValueError(f"field 'input': {fault}")
    text, label = problem_text(row), row["label"]
    if label is not None and not isinstance(label, str):
        raise ValueError(f"field 'label' is {shorten(label)}, wanted a string")
    for name in ("id", "datasource"):
        if name in row and (not isinstance(row[name], str) or not row[name]):
            raise ValueError(f"field {name!r} is {shorten(row[name])}, wanted a string with a name")
    identifier = row.get("id", f"{row.get('datasource', 'problem')}/{content_hash(text)}")
    return Problem(identifier, text, label, row.get("datasource", "default"), None, None)


def _published(row: dict, text: str, stem: str) -> Problem:
    label, level, year = _stated_answer(row), None, None
    if "aime_number" in row:
        datasource, year = "aime", _whole(row, "year")
        identifier = f"aime/{year}-{_whole(row, 'aime_number')}-{_whole(row, 'problem_number')}"
    elif "unique_id" in row or "type" in row:
        datasource, level = "math", _level(row)
        unique = row.get("unique_id")
        if unique is not None and not isinstance(unique, str):
            raise ValueError(f"field 'unique_id' is {shorten(unique)}, wanted a string or null")
        identifier = f"math/{unique.removesuffix('.json')}" if unique else f"math/{content_hash(text)}"
    else:
        stated = row.get("solution") or row.get("answer")
        datasource = "gsm8k" if isinstance(stated, str) and "####" in stated else stem
        identifier = row.get("id")
        if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
            raise ValueError(f"field 'id' is {shorten(identifier)}, wanted a string or a number")
        identifier = f"{datasource}/{content_hash(text)}" if identifier in (None, "") else str(identifier)
    return Problem(identifier, text, label, datasource, level, year)


def _whole(row: dict, name: str) -> int:
    """A field that numbers an AIME: an integer, its digits, or the contest's I or II."""
    value = row.get(name)
    if name == "aime_number" and isinstance(value, str):
        value = _CONTESTS.get(value, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        return int(value)
    found = shorten(row[name]) if name in row else "missing"
    raise ValueError(f"field {name!r} is {found}, wanted a whole number, as each problem of an AIME has it")


def _level(row: dict) -> float | None:
    """MATH's difficulty, 1 to 5, from `difficulty` or `level`: a number, or text such as "Level 5"."""
    name = next((n for n in ("difficulty", "level") if row.get(n) is not None), None)
    if name is None:
        return None
    value = row[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _LEVEL.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"field {name!r} is {shorten(value)}, wanted 1 to 5, or text such as 'Level 5'")
    return None if found[1] == "?" else float(found[1])


def _stated_answer(row: dict) -> str | None:
    """The answer as the grader reads it: the field, what follows GSM8K's `####`, or the solution's last box."""
    answer, solution = row.get("answer"), row.get("solution")
    if isinstance(answer, float) and math.isfinite(answer):  # 204.0, as tables write integers in a column with gaps
        answer = str(int(answer) if answer.is_integer() else answer)
    elif isinstance(answer, int) and not isinstance(answer, bool):
        answer = str(answer)
    for text in (answer, solution):
        if isinstance(text, str) and "####" in text:
            answer = text.rpartition("####")[2]
            break
    if not (isinstance(answer, str) and answer.strip()) and isinstance(solution, str):
        answer = last_boxed(solution)[0]
    if not isinstance(answer, str) or not answer.strip():
        return None
    return integer_label(answer) or answer.strip()
