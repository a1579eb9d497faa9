"""A code task and its row: the prompt, and the tests as the label."""

import ast
import json
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

SHOWN_TESTS = 3  # of a task, in its prompt: MBPP has three, a few of its sanitised tasks more
MBPP_PROMPT = (  # of lm_eval's `mbpp`, without the [BEGIN] that a base model needs to begin and a chat model does not
    "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n{tests}"
)
HUMANEVAL_PROMPT = (  # of lm_eval's `humaneval_instruct`
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{text}\n```\n"
)


class Task(NamedTuple):
    """A code task."""

    id: str  # "mbpp/601", "HumanEval/0"
    kind: str  # of the label: "mbpp", "humaneval", "stdio"
    text: str  # what to write, in words: what copies are found by
    prompt: str  # the user's message
    setup: str  # Python that runs before the tests
    tests: list  # Python, or {"input", "output"} of a program
    entry_point: str | None  # the function that the tests call
    solution: str  # the reference program; "" where there is none


def task_row(task: Task, datasource: str) -> dict:
    """The row that the trainer and the evaluation read; `solution` is for neither, but for whoever checks a judge."""
    label = {"kind": task.kind, "setup": task.setup, "tests": task.tests, "entry_point": task.entry_point}
    row = {
        "input": [{"role": "user", "content": task.prompt}],
        "label": json.dumps(label),
        "id": task.id,
        "datasource": datasource,
    }
    return row | ({"solution": task.solution} if task.solution else {})


def parse(code: str, what: str) -> ast.Module:
    """The syntax tree of a data set's code; ValueError says what of it is no Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what} is no Python ({error}); correct it or remove the task") from None


def parse_tests(tests: Iterable[str]) -> list[ast.Module]:
    """The syntax trees of tests; ValueError names the first that is no Python or does nothing."""
    trees = []
    for number, test in enumerate(tests, 1):
        trees.append(parse(test, f"test {number}, {test.strip()[:60]!r},"))
        if not trees[-1].body:
            raise ValueError(f"test {number} is empty, wanted Python such as 'assert f(1) == 2'; correct it")
    return trees


def called(tree: ast.AST) -> list[str]:
    """Names that are called, the outermost calls first."""
    return [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]


def defined(tree: ast.Module) -> set[str]:
    """Functions, classes and variables of a program's top level."""
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return found | {target.id for target in targets if isinstance(target, ast.Name)}


def entry_point_of(tests: list[ast.Module], known: Callable[[str], bool]) -> str:
    """The function that all tests are about: the outermost call that every test has, of the `known` names.

    Raises:
        ValueError: no such function.
    """
    common = [name for name in called(tests[0]) if all(name in called(test) for test in tests)]
    for name in common:
        if known(name):
            return name
    raise ValueError(
        f"found no function of the solution that every test calls (called: {', '.join(common) or 'none in common'}); "
        "correct the tests or remove the task"
    )


def implied_imports(tests: list[ast.Module], setup: ast.Module) -> str:
    """Imports of the standard library that tests need and nothing states, such as `math` of `math.isclose(…)`.

    lm_eval runs tests in the program's own names, where the reference solution happens to have imported them.
    """
    used = {
        node.value.id
        for tree in tests
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    bound = {name for tree in (setup, *tests) for name in bound_names(tree)}
    missing = sorted((used & sys.stdlib_module_names) - bound)
    return "".join(f"import {name}\n" for name in missing)


def bound_names(tree: ast.AST) -> set[str]:
    """Names that code gives to something, at any depth: variables, functions, classes, imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found
