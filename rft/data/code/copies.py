"""Find training tasks that an evaluation set holds: by their text, reference solution, tests, or function's name.

Text is compared by `rft.data.decontaminate`, where the answer of a task is its solution. MBPP's splits repeat tasks in
other words, which the other three find.
"""

import ast
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from rft.data import decontaminate
from rft.data.canonical import canonical_words_text, content_hash, words
from rft.data.code.tasks import Task, bound_names
from rft.data.decontaminate import EvalIndex, Match, build_index, find_match, jaccard, shingles
from rft.data.published import Problem

COMMON_TESTS = 0.5  # share of a task's tests that another one has
NAMED_JACCARD = 0.45  # of the texts of two tasks whose functions have one name


class CodeIndex(NamedTuple):
    """What evaluation tasks are looked up by; the values are their ids, the first of several."""

    texts: EvalIndex
    solutions: dict[str, str]
    tests: dict[str, list[str]]
    names: dict[str, list[Task]]


def settings() -> dict[str, float]:
    """The bounds, for a manifest."""
    return decontaminate.settings() | {"common_tests": COMMON_TESTS, "jaccard_same_name": NAMED_JACCARD}


def index_of(tasks: Iterable[Task]) -> CodeIndex:
    """Index evaluation tasks. A second for a thousand."""
    tasks = list(tasks)
    problems = [Problem(task.id, task.text, solution_identity(task), task.kind, None, None) for task in tasks]
    index = CodeIndex(build_index(problems), {}, {}, {})
    for task, problem in zip(tasks, problems, strict=True):
        index.solutions.setdefault(problem.label, task.id)
        for test in test_identities(task):
            index.tests.setdefault(test, []).append(task.id)
        index.names.setdefault(name_identity(task), []).append(task)
    return index


def find_copy(task: Task, index: CodeIndex) -> Match | None:
    """The evaluation task that a training task repeats, or None.

    Reasons: those of `find_match`; "solution", equal up to names, layout and docstrings; "tests", at least
    `COMMON_TESTS` of them, whatever the function's name; "name", of the function, with a text that is alike.
    """
    solution = solution_identity(task)
    found = find_match(task.text, canonical_words_text(task.text), content_hash(task.text), solution, index.texts)
    if found:
        return found
    if solution in index.solutions:
        return Match("solution", index.solutions[solution], 1.0)
    return _by_tests(task, index) or _by_name(task, index)


def solution_identity(task: Task) -> str:
    """A number that equals that of a program with other names, layout, annotations or docstrings; as text."""
    tree = ast.parse(task.solution)
    dumped = ast.dump(_Unnamed(bound_names(tree)).visit(tree))
    return str(int(hashlib.sha256(dumped.encode()).hexdigest()[:16], 16))


def test_identities(task: Task) -> set[str]:
    """Each test as what it computes, whatever the function's name."""
    return {ast.dump(_Renamed(task.entry_point).visit(ast.parse(test))) for test in task.tests}


def name_identity(task: Task) -> str:
    """The entry point without the habits of writing names."""
    return task.entry_point.lower().replace("_", "")


def _by_tests(task: Task, index: CodeIndex) -> Match | None:
    own, shared = test_identities(task), {}
    for test in own:
        for other in index.tests.get(test, ()):
            shared[other] = shared.get(other, 0) + 1
    other = max(shared, key=shared.get, default=None)
    if other is None or shared[other] / len(own) < COMMON_TESTS:
        return None
    return Match("tests", other, round(shared[other] / len(own), 4))


def _by_name(task: Task, index: CodeIndex) -> Match | None:
    alike = [(_likeness(task, other), other.id) for other in index.names.get(name_identity(task), ())]
    likeness, other = max(alike, default=(0.0, ""))
    return Match("name", other, round(likeness, 4)) if likeness >= NAMED_JACCARD else None


def _likeness(task: Task, other: Task) -> float:
    return jaccard(*(shingles(words(canonical_words_text(each.text))) for each in (task, other)))


class _Renamed(ast.NodeTransformer):
    """Gives one name another."""

    def __init__(self, name: str):
        self.name = name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("f", node.ctx) if node.id == self.name else node


class _Unnamed(ast.NodeTransformer):
    """Numbers the bound names as they come; leaves out annotations and docstrings."""

    def __init__(self, bound: set[str]):
        self.bound, self.names = bound, {}

    def number(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}") if name in self.bound else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.number(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.number(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name, node.returns = self.number(node.name), None
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node
