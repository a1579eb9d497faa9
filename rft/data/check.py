"""Say what is wrong with a problem file, by line and field, before a trainer or an evaluation reads it."""

from collections.abc import Collection, Iterator
from pathlib import Path

from rft.code import labels
from rft.data.canonical import content_hash
from rft.data.code.tasks import parse_tests
from rft.grading import grade, short_answer
from rft.problems import input_fault, is_text, parse_line, problem_text, shorten


def check_file(path: Path) -> tuple[list[str], dict[str, int]]:
    """Faults of a JSONL problem file, one message each, and its problems' hashes with the line of each.

    Wanted in each line: `input` (text or chat messages), `label` (as text: an answer, the tests of a program, or the
    answers to a question), and
    the same fields with the same types as in the first line, since the trainer's JSON reader takes a type from the
    first rows. `id` is unique.
    """
    if not path.is_file():
        return [f"{path}: found no file, wanted JSON lines; correct the path"], {}
    try:
        return _check_lines(path)
    except OSError as error:
        return [f"{path}: cannot be read ({error.strerror}), wanted JSON lines; correct its rights or its disk"], {}


def _check_lines(path: Path) -> tuple[list[str], dict[str, int]]:
    faults, ids, hashes, kinds = [], {}, {}, None
    number = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                row = parse_line(line)
            except ValueError as error:
                faults.append(f"{path}, line {number}: {error}")
                continue
            found = {name: kind_of(value) for name, value in row.items()}
            kinds = found if kinds is None else kinds
            messages = [*field_faults(row), *kind_faults(found, kinds), *repeat_faults(row, number, ids, hashes)]
            faults.extend(f"{path}, line {number}: {message}" for message in messages)
    if number == 0:
        faults.append(f"{path}: found an empty file, wanted one JSON object a line; make the file again")
    return faults, hashes


def field_faults(row: dict) -> Iterator[str]:
    """What is wrong with the fields of one row."""
    for name in ("input", "label"):
        if name not in row:
            yield f"field {name!r} is missing (found {sorted(row)}); wanted input and label; rename or add it"
    if "input" in row and (fault := input_fault(row["input"])):
        yield f"field 'input': {fault}"
    if "label" in row and (fault := label_fault(row["label"])):
        yield f"field 'label': {fault}"
    for name in ("id", "datasource"):
        if name in row and (not isinstance(row[name], str) or not row[name]):
            yield f"field {name!r} is {shorten(row[name])}, wanted a string with a name"
    if "output" in row and (fault := output_fault(row["output"])):
        yield f"field 'output': {fault}"


def output_fault(output: object) -> str | None:
    """What is wrong with the answer of a supervised row, or None; its reasoning is in the last message's `thinking`."""
    last = output[-1] if isinstance(output, list) and output else None
    if isinstance(last, dict) and "thinking" in last:
        if not isinstance(last["thinking"], str) or not last["thinking"].strip() or not is_text(last["thinking"]):
            return f"the last message has thinking {shorten(last['thinking'])}, wanted some text"
        output = [*output[:-1], {name: value for name, value in last.items() if name != "thinking"}]
    return input_fault(output, "assistant")


def label_fault(label: object) -> str | None:
    """What is wrong with a label, or None."""
    if not isinstance(label, str):
        return f'found {shorten(label)}, wanted a string, e.g. "42"'
    if not label.strip():
        return "found no answer, wanted one; remove the row"
    if labels.is_code_label(label):
        return code_label_fault(label)
    if short_answer.is_search_label(label):
        return search_label_fault(label)
    if not is_text(label) or not is_gradable(label):
        return f"found {shorten(label)}, which the grader cannot parse; correct it or remove the row"
    return None


def code_label_fault(label: str) -> str | None:
    """What is wrong with the label of a code task (`rft.code.labels`), or None: its tests are Python, or texts."""
    try:
        found = labels.parse(label)
        if found.kind != labels.STDIO:
            parse_tests((*filter(str.strip, [found.setup]), *found.tests))
    except ValueError as error:
        return str(error)
    return None


def search_label_fault(label: str) -> str | None:
    """What is wrong with the label of a question (`rft.grading.short_answer`), or None: answers that can be given."""
    try:
        short_answer.answers_of(label)
    except ValueError as error:
        return str(error)
    return None


def is_gradable(label: str) -> bool:
    """Whether an answer that states the label, boxed, is graded correct."""
    return grade(f"\\boxed{{{label}}}", label).correct


def kind_of(value: object) -> str:
    """The JSON type of a value, the numbers apart."""
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "list", dict: "object"}
    return names.get(type(value), "null")


def kind_faults(found: dict[str, str], wanted: dict[str, str]) -> Iterator[str]:
    """Fields that the first line has not, or lacks, or has with another type."""
    for name in [*wanted, *(n for n in found if n not in wanted)]:
        ours, first = found.get(name, "absent"), wanted.get(name, "absent")
        if ours != first:
            yield f"field {name!r} is {ours}, but {first} in the first line; wanted the same in each line"


def repeat_faults(row: dict, number: int, ids: dict[str, int], hashes: dict[str, int]) -> Iterator[str]:
    """An id or a problem that an earlier line has; both are noted in `ids` and `hashes`."""
    identifier = row.get("id")
    if isinstance(identifier, str) and ids.setdefault(identifier, number) != number:
        yield f"field 'id': found {identifier!r}, which line {ids[identifier]} has too; wanted unique ids"
    if "input" in row and input_fault(row["input"]) is None:
        key = content_hash(problem_text(row))
        if hashes.setdefault(key, number) != number:
            yield f"field 'input': the same problem as in line {hashes[key]}; remove one of the two"


def apart_faults(hashes: dict[Path, dict[str, int]], faulty: Collection[Path]) -> Iterator[str]:
    """Problems that any two files share; and which files could not be compared, since what was not read proves nothing.

    Args:
        hashes: of each file's problems, with their lines.
        faulty: files in which something is wrong, so that some of their problems may have no hash.
    """
    if len(hashes) < 2:
        yield f"found {len(hashes)} file, wanted two or more to compare; name the others behind --disjoint"
    for path in faulty:
        yield f"{path}: not compared with the other files in full, for what is wrong with it; correct that first"
    places = {}
    for path in hashes:
        if (place := places.setdefault(path.resolve(), path)) is not path:
            yield f"{path}: found the same file as {place}, wanted different ones; correct the paths"
    yield from shared_faults({path: hashes[path] for path in places.values()})


def shared_faults(hashes: dict[Path, dict[str, int]]) -> Iterator[str]:
    """Problems that two files have in common, with the lines of both."""
    files = list(hashes)
    for i, first in enumerate(files):
        for second in files[i + 1 :]:
            for key, line in hashes[second].items():
                if key in hashes[first]:
                    yield f"{second}, line {line}: the same problem as in {first}, line {hashes[first][key]}"
