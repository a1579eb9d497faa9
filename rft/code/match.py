"""Tests that need no process to judge them: assertions about one call with literal arguments and a literal result.

The tests are the data set's, never the model's. They are parsed here and not run.
"""

import ast
from dataclasses import dataclass
from typing import Any

MAX_TEST = 200_000  # characters; longer ones go to the judge
CONSTRUCTORS = {"set": set, "frozenset": frozenset, "list": list, "tuple": tuple, "dict": dict, "float": float}


@dataclass(frozen=True)
class Check:
    """One assertion: what is called, and how its value relates to the expected one.

    relation is "equal" (`==`), "is" (of True, False, None), "true" or "false" (its truth; nothing is expected).
    """

    function: str
    arguments: tuple
    keywords: dict[str, Any]
    relation: str
    expected: Any = None


def checks(test: str, setup: str = "", entry_point: str | None = None) -> list[Check] | None:
    """The assertions of a test in their order, or None for a test that a judge has to run.

    Read are asserts of `f(…) == literal`, `literal == f(…)`, `f(…) is True`, `f(…)` and `not f(…)`, one after another
    or as the body of `def check(candidate)`. A literal may be a builtin container made of one: `set([1, 2])`,
    `float("inf")`.
    """
    if max(len(test), len(setup)) > MAX_TEST:
        return None
    try:
        statements = _flat(ast.parse(test).body, entry_point)
        defined = _defined(ast.parse(setup)) - {entry_point}
        found = [_check(statement) for statement in statements]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    if not found or any(each.function in defined for each in found):
        return None
    names = {"candidate": entry_point} if entry_point else {}
    return [
        Check(names.get(each.function, each.function), each.arguments, each.keywords, each.relation, each.expected)
        for each in found
    ]


def _flat(body: list[ast.stmt], entry_point: str | None) -> list[ast.Assert]:
    """The asserts of a test; ValueError where it does something else."""
    if entry_point and [node.name for node in body if isinstance(node, ast.FunctionDef)] == ["check"]:
        others = [node for node in body if not isinstance(node, ast.FunctionDef) and not _only_metadata(node)]
        if any(ast.unparse(node) not in ("check(candidate)", f"check({entry_point})") for node in others):
            raise ValueError("statements beside check")
        (check,) = (node for node in body if isinstance(node, ast.FunctionDef))
        if ast.unparse(check.args) != "candidate" or check.decorator_list:
            raise ValueError("another check")
        body = [node for node in check.body if not _without_effect(node)]
    if not all(isinstance(node, ast.Assert) for node in body):
        raise ValueError("a statement that is no assert")
    return body


def _only_metadata(node: ast.stmt) -> bool:
    """`METADATA = {…}`, which HumanEval's tests begin with."""
    named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METADATA"
    return named or _without_effect(node)


def _without_effect(node: ast.stmt) -> bool:
    """A docstring, `pass`, `assert True`."""
    tested = node.test if isinstance(node, ast.Assert) else node.value if isinstance(node, ast.Expr) else None
    return isinstance(node, ast.Pass) or (
        isinstance(tested, ast.Constant) and (isinstance(node, ast.Expr) or tested.value is True)
    )


def _defined(tree: ast.AST) -> set[str]:
    """Every name that a setup gives a meaning to, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _check(statement: ast.Assert) -> Check:
    """One assert; ValueError where its form is another."""
    if statement.msg is not None and not isinstance(statement.msg, ast.Constant):
        raise ValueError("a message that is computed")
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _called(test.operand, "false")
    if not isinstance(test, ast.Compare):
        return _called(test, "true")
    if len(test.ops) != 1:
        raise ValueError("a chain of comparisons")
    left, right = test.left, test.comparators[0]
    if isinstance(test.ops[0], ast.Is):
        if not (
            isinstance(right, ast.Constant) and right.value in (True, False, None) and type(right.value) is not int
        ):
            raise ValueError("an identity that depends on the interpreter")
        return _called(left, "is", right.value)
    if not isinstance(test.ops[0], ast.Eq):
        raise ValueError("another comparison")
    try:
        return _called(left, "equal", _literal(right))
    except ValueError:
        return _called(right, "equal", _literal(left))


def _called(node: ast.expr, relation: str, expected: Any = None) -> Check:
    """A call of a name with literal arguments."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError("no call of a name")
    keywords = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    if None in keywords:
        raise ValueError("keywords from a dict")
    return Check(node.func.id, tuple(_literal(each) for each in node.args), keywords, relation, expected)


def _literal(node: ast.expr) -> Any:
    """The value of a literal, or of a builtin container made of one; ValueError otherwise."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CONSTRUCTORS:
        if node.keywords or len(node.args) > 1:
            raise ValueError("other arguments than one literal")
        return CONSTRUCTORS[node.func.id](*(_literal(each) for each in node.args))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind([_literal(each) for each in node.elts])
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_literal(key): _literal(item) for key, item in zip(node.keys, node.values, strict=True)}
    return ast.literal_eval(node)
