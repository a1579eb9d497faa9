"""The format of a problem: one JSON object a line with `input`, `label` and `id`, as trainer and evaluation read it.

Standard library only. `rft.data` makes such files, and names every fault of one.
"""

import json
from collections.abc import Iterator
from pathlib import Path

INSTRUCTION = "Put the final answer within \\boxed{}."  # first line of every prompt that we make
ROLES = ("system", "developer", "user", "assistant", "tool")
REMAKE = "wanted problems as JSON lines (input, label, id); .venv/bin/python -m rft.data make, or correct the path"
TOO_DEEP = "found hundreds of nested brackets, wanted plain fields; remove the row"


def problem_row(text: str, label: str, identifier: str, datasource: str) -> dict:
    """The row that the trainer and the evaluation read. `text` is the problem alone, without an instruction."""
    return {
        "input": [{"role": "user", "content": f"{INSTRUCTION}\n{text}"}],
        "label": label,
        "id": identifier,
        "datasource": datasource,
    }


def problem_text(row: dict) -> str:
    """The problem alone, from a row whose `input` is text or chat messages: the last user message."""
    content = row["input"]
    if not isinstance(content, str):
        content = next(m["content"] for m in reversed(content) if m["role"] == "user")
    return content.removeprefix(INSTRUCTION).removesuffix(INSTRUCTION).strip()


def read_problems(path: str | Path) -> list[dict]:
    """Problems of a JSONL file: each with `input` (chat messages), `label` (string) and `id`, unique in the file.

    Where `input` is text it becomes one message of the user, as the trainer's chat template makes it.

    Raises:
        ValueError: file, line and field of the first thing that is missing, doubled or of the wrong kind.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"found no file {path}; {REMAKE}")
    content, problems, lines = path.read_bytes(), [], {}
    if not content.strip():
        raise ValueError(f"{path}: no problems in the file; {REMAKE}")
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        where = f"{path}, line {number}"
        try:
            problem = parse_line(line + b"\n")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if isinstance(problem.get("input"), str):
            problem["input"] = [{"role": "user", "content": problem["input"]}]
        for field, fault in _faults(problem):
            raise ValueError(
                f"{where}: field {field!r} {fault} (fields here: {', '.join(problem)}); make the file with "
                "data/prepare_*.py"
            )
        if problem["id"] in lines:
            raise ValueError(
                f"{where}: found id {problem['id']!r}, as on line {lines[problem['id']]}; wanted one problem per id; "
                "remove or rename one of them"
            )
        lines[problem["id"]] = number
        problems.append(problem)
    return problems


def _faults(problem: dict) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it) of what an evaluation needs."""
    messages = problem.get("input")
    if not isinstance(messages, list):
        yield "input", f"is {messages!r}, wanted chat messages or text"
    elif fault := input_fault(messages):
        yield "input", f"is wrong: {fault}"
    for field in ("label", "id"):
        if not isinstance(problem.get(field), str) or not problem[field]:
            yield field, f"is {problem.get(field)!r}, wanted a string that is not empty"


def parse_line(line: bytes) -> dict:
    """The JSON object in one line; ValueError says what is there instead."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise ValueError(
            f"found byte 0x{byte:02x} at column {error.start + 1}, wanted UTF-8; "
            "convert the file, e.g. iconv -f LATIN1 -t UTF-8"
        ) from None
    if text.startswith("\ufeff"):
        raise ValueError("found a byte order mark, wanted plain UTF-8; remove the first three bytes of the file")
    if not text.strip():
        raise ValueError("found a blank line, wanted a JSON object; remove the line")
    try:
        row = json.loads(text, object_pairs_hook=_unique_fields, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        end = "" if text.endswith("\n") else " (the last line has no newline: the file may be cut)"
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}{end}; make the file again") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted a JSON object")
    return row


def _unique_fields(pairs: list[tuple]) -> dict:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"found field {twice!r} twice, wanted it once; remove one")
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"found {name}, which is not JSON; write a number or null")


def input_fault(messages: object, last_role: str = "user") -> str | None:
    """What is wrong with a prompt (text, or chat messages that end with `last_role`), or None."""
    if isinstance(messages, str):
        return None if messages.strip() and is_text(messages) else f"found {shorten(messages)}, wanted some text"
    if not isinstance(messages, list) or not messages:
        return f"found {shorten(messages)}, wanted text or a list of chat messages"
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            return f"message {place} is {shorten(message)}, wanted an object with 'role' and 'content'"
        if message["role"] not in ROLES:
            return f"message {place} has role {shorten(message['role'])}, wanted one of {', '.join(ROLES)}"
        content = message["content"]
        if not isinstance(content, str) or not content.strip() or not is_text(content):
            return f"message {place} has content {shorten(content)}, wanted some text"
    if messages[-1]["role"] != last_role:
        return f"the last message is of role {messages[-1]['role']!r}, wanted {last_role!r}"
    return None


def is_text(text: str) -> bool:
    """Whether every character can be written as UTF-8: a lone surrogate, as JSON may hold, cannot."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def shorten(value: object, limit: int = 60) -> str:
    """`value` as it is written in code, cut to `limit` characters."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of hundreds of nested brackets"
    return text if len(text) <= limit else text[: limit - 1] + "…"
