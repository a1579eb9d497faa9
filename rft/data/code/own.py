"""Your own code tasks, JSON lines with `prompt` and `tests`, as problem rows."""

import ast
import builtins
from pathlib import Path

from rft.code import labels
from rft.data.canonical import content_hash
from rft.data.code import verified
from rft.data.code.tasks import Task, bound_names, called, defined, implied_imports, parse, parse_tests, task_row
from rft.data.row_files import json_line, read_rows, require_apart, write_rows, written_together
from rft.problems import is_text, shorten

WANTED = ("prompt", "tests")
OPTIONAL = ("id", "setup", "entry_point", "solution")
KIND = "asserts"  # of tests that are Python; the others are of programs that read and print
EXAMPLE = '{"prompt": "Write a function f …", "tests": ["assert f(1) == 2"]}'


def make(tasks: Path, out: Path, verify: bool, force: bool) -> tuple[int, str | None]:
    """Write `out`, a problem row for each task, in their order.

    Returns:
        Number of problems, and the isolation level of the judge where the solutions were judged.

    Raises:
        ValueError: file, line and cause of the first thing that is no task; an id or a prompt that comes twice; a
            solution that fails; `out` has another content, and not `force`. Nothing has changed then.
    """
    if out.suffix != ".jsonl":
        raise ValueError(f"found --out {out}, wanted a file .jsonl of problems beside --tasks; pass another --out")
    require_apart([out], [tasks])
    made, level = read_own(tasks), None
    if verify:
        without = [task.id for task in made if not task.solution]
        if without:
            raise ValueError(f"{tasks}: found no solution of {without[0]!r}, wanted one of each to verify; add them")
        level, failed = verified.failures(made)
        if failed:
            name, fault = next(iter(failed.items()))
            raise ValueError(f"{tasks}: the solution of {name!r} fails its own tests ({fault}); correct the task")
    rows = [task_row(task, tasks.stem) for task in made]
    content = "".join(map(json_line, rows)).encode()
    if out.is_file() and out.read_bytes() != content and not force:
        raise ValueError(f"found {out} with another content, wanted a new file; pass another --out, or --force")
    with written_together(out.parent, [out.name]) as paths:
        write_rows(paths[out.name], rows)
    return len(rows), level


def read_own(path: Path) -> list[Task]:
    """The tasks of a file, in its order; ValueError names the line and cause of the first that is none."""
    tasks, ids, prompts, fields = [], {}, {}, None
    for number, row in read_rows(path):
        try:
            task = _task(row, path.stem)
            for what, value, seen in (("id", task.id, ids), ("prompt", task.text, prompts)):
                if seen.setdefault(value, number) != number:
                    raise ValueError(f"found the {what} {shorten(value)}, as on line {seen[value]}; remove one of both")
            fields = fields or set(row)
            if ("solution" in row) != ("solution" in fields):
                raise ValueError("found a solution in some lines only, wanted it in all or none")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        tasks.append(task)
    return tasks


def _task(row: dict, stem: str) -> Task:
    unknown, missing = sorted(row.keys() - {*WANTED, *OPTIONAL}), sorted(set(WANTED) - row.keys())
    if unknown or missing:
        raise ValueError(f"found fields {sorted(row)}, wanted {EXAMPLE}, and maybe {', '.join(OPTIONAL)}")
    for name in ("prompt", *OPTIONAL):
        if name in row and (not isinstance(row[name], str) or not is_text(row[name])):
            raise ValueError(f"field {name!r} is {shorten(row[name])}, wanted text")
    prompt, tests, solution = row["prompt"], row["tests"], row.get("solution", "")
    if not prompt.strip():
        raise ValueError("field 'prompt' is empty, wanted what to write, in words")
    if not isinstance(tests, list) or not tests:
        raise ValueError(f"field 'tests' is {shorten(tests)}, wanted a list of tests")
    tree = parse(solution, "field 'solution'")
    setup, entry_point, kind = row.get("setup", ""), row.get("entry_point") or None, labels.STDIO
    if isinstance(tests[0], str):
        setup, entry_point = _of_asserts(tests, setup, entry_point, tree if solution else None)
        kind = KIND
        if entry_point and entry_point not in prompt:
            raise ValueError(f"found no {entry_point!r} in the prompt, wanted the name that the tests call; add it")
    elif setup or entry_point:
        raise ValueError("found setup or entry_point beside tests of input and output, wanted neither; remove them")
    identifier = row.get("id") or f"{stem}/{content_hash(prompt)}"
    task = Task(identifier, kind, prompt.strip(), prompt, setup, tests, entry_point, solution)
    labels.parse(task_row(task, stem)["label"])
    return task


def _of_asserts(tests: list, setup: str, entry_point: str | None, solution: ast.Module | None) -> tuple:
    """Set-up and entry point of tests that are Python: the only function that every test calls, if there is one."""
    if wrong := [test for test in tests if not isinstance(test, str)]:
        raise ValueError(f"field 'tests' holds text and {shorten(wrong[0])}, wanted tests of one form")
    trees, setup_tree = parse_tests(tests), parse(setup, "field 'setup'")
    if entry_point is None:
        known = defined(solution) if solution else None
        stated = {*dir(builtins), *bound_names(setup_tree)}
        calls = [{n for n in called(tree) if n not in stated and (known is None or n in known)} for tree in trees]
        common = set.intersection(*calls)
        entry_point = common.pop() if len(common) == 1 else None
    return implied_imports(trees, setup_tree) + setup, entry_point
