"""MBPP as published (Austin et al. 2021, arXiv 2108.07732): the full set or its sanitised part, in four splits."""

import re
from collections.abc import Iterable
from pathlib import Path

from rft.data.code.tasks import (
    MBPP_PROMPT,
    SHOWN_TESTS,
    Task,
    defined,
    entry_point_of,
    implied_imports,
    parse,
    parse_tests,
)
from rft.data.published import raw_rows
from rft.data.sets import SUFFIXES, HubSet, Input, missing_shards
from rft.problems import is_text, shorten

REPO = "google-research-datasets/mbpp"
HUB = (HubSet("mbpp", REPO, re.compile(r"^(full|sanitized)/")),)
# By task id, both ends included; the first ten are the examples of few-shot prompts, and in no other split.
SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}
FULL, SANITIZED = "full", "sanitized"
FORMS = {  # (text, setup) of each published form; both have task_id, code and test_list
    FULL: ("text", "test_setup_code"),
    SANITIZED: ("prompt", "test_imports"),
}
_SPLIT_IN_NAME = re.compile(r"(?:^|[/_.-])(prompt|test|validation|train)(?=[-_.])")


def split_of(task_id: int) -> str:
    """ "prompt", "test", "validation" or "train"."""
    return next(name for name, (first, last) in SPLITS.items() if first <= task_id <= last)


def match(given: Path, sanitized: bool) -> list[Input]:
    """The files of one subset: `given` itself, or below a folder those with `mbpp` in their path.

    A file with `sanitized` in its path, as in the hub's repository and in google-research's, is of that subset.

    Raises:
        ValueError: no such file or folder, none of this subset in it, or a shard of several missing.
    """
    if given.is_file():
        if sanitized:
            raise ValueError(f"found --sanitized with the file {given}, taken as it is; leave --sanitized out")
        return [Input("mbpp", given, given.name, given.resolve().parent.name, "")]
    if not given.is_dir():
        raise ValueError(f"found no {given}, wanted a file or a folder with MBPP; correct --from")
    names = sorted(
        path.relative_to(given).as_posix()
        for path in given.rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith((".", "dataset_info"))
    )
    whole = given.resolve().name.lower()
    known = [name for name in names if "mbpp" in f"{whole}/{name}".lower()]
    taken = [name for name in known if ("sanitized" in f"{whole}/{name}".lower()) == sanitized]
    if not taken:
        other = "leave --sanitized out" if sanitized else "pass --sanitized"
        raise ValueError(
            f"{given}: found {', '.join(known[:8]) or 'no data file with mbpp in its path'}; wanted the "
            f"{SANITIZED if sanitized else FULL} set as .parquet, .jsonl or .json"
            f"{f'; {other}' if known else '; docs/data.md says where it comes from'}"
        )
    if shards := list(missing_shards(taken)):
        raise ValueError(f"{given}: found no {shards[0]}, wanted all shards; download it too")
    return [Input("mbpp", given / name, name, given.resolve().name, "") for name in taken]


def of_subset(inputs: Iterable[Input], sanitized: bool) -> list[Input]:
    """The hub's files of one subset."""
    return [each for each in inputs if each.name.startswith(SANITIZED) == sanitized]


def read_mbpp(inputs: Iterable[Input]) -> dict[str, list[Task]]:
    """Tasks by split, in the order of their numbers.

    Raises:
        ValueError: file, row and cause of what is no task of MBPP, of a task that comes twice, of one that is in a file
            with another split's name; files of two forms.
    """
    found, forms = {}, {}
    for each in inputs:
        named = _SPLIT_IN_NAME.search(each.name.lower())
        for place, row in raw_rows(each.path):
            where = f"{each.path}, {place}"
            try:
                number, form = _identity(row)
                if found.setdefault(number, where) is not where:
                    raise ValueError(f"found task_id {number}, which {found[number]} has too; remove one of the two")
                if named and named[1] != split_of(number):
                    raise ValueError(
                        f"found task_id {number}, of the {split_of(number)} split, in a file named {named[1]}; wanted "
                        "the published split; fetch the file again"
                    )
                if len({*forms, form}) > 1:
                    raise ValueError(f"found the {form} form after the {next(iter(forms))} one; name one of both")
                forms.setdefault(form, []).append((number, _task(row, number, form)))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
    splits = {name: [] for name in SPLITS}
    for number, task in sorted(pair for pairs in forms.values() for pair in pairs):
        splits[split_of(number)].append(task)
    return splits


def _identity(row: object) -> tuple[int, str]:
    """task_id and form of a row."""
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted an object with a task of MBPP")
    form = next((form for form, (text, _) in FORMS.items() if text in row), None)
    missing = sorted({"task_id", "code", "test_list"} - row.keys())
    if form is None or missing:
        raise ValueError(
            f"found fields {sorted(row)}, wanted task_id, code, test_list and text (or prompt, of the sanitised set); "
            f"fetch MBPP from {REPO}"
        )
    number = row["task_id"]
    if type(number) is not int or not 1 <= number <= SPLITS["train"][1]:
        raise ValueError(f"field 'task_id' is {shorten(number)}, wanted 1 to {SPLITS['train'][1]}; fetch MBPP again")
    return number, form


def _task(row: dict, number: int, form: str) -> Task:
    text_field, setup_field = FORMS[form]
    text, code = _text(row, text_field), _text(row, "code")
    tests, setup = row["test_list"], row.get(setup_field) or ""
    if isinstance(setup, list):
        setup = "\n".join(_strings(setup, setup_field))
    if not isinstance(setup, str):
        raise ValueError(f"field {setup_field!r} is {shorten(setup)}, wanted Python")
    if not isinstance(tests, list) or not tests:
        raise ValueError(f"field 'test_list' is {shorten(tests)}, wanted a list of asserts")
    tests = [_lines(test) for test in _strings(tests, "test_list")]
    trees, setup = parse_tests(tests), _lines(setup)
    setup_tree = parse(setup, f"field {setup_field!r}")
    entry_point = entry_point_of(trees, defined(parse(code, "field 'code'")).__contains__)
    return Task(
        id=f"mbpp/{number}",
        kind="mbpp",
        text=text,
        prompt=MBPP_PROMPT.format(text=text, tests="\n".join(tests[:SHOWN_TESTS])),
        setup=implied_imports(trees, setup_tree) + setup,
        tests=tests,
        entry_point=entry_point,
        solution=code,
    )


def _text(row: dict, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip() or not is_text(value):
        raise ValueError(f"field {name!r} is {shorten(value)}, wanted text")
    return _lines(value).strip()


def _strings(values: list, name: str) -> list[str]:
    for value in values:
        if not isinstance(value, str) or not is_text(value):
            raise ValueError(f"field {name!r} holds {shorten(value)}, wanted text")
    return values


def _lines(text: str) -> str:
    """Text with plain line ends: MBPP's code has those of Windows."""
    return text.replace("\r\n", "\n")
