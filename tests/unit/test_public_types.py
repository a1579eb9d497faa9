"""Parameters of public functions have types, so that a reader sees what goes in without the callers."""

import ast

from own_modules import MODULES


def untyped(body: list[ast.stmt], of_class: str = "") -> list[str]:
    """`function(parameter)` of each public function's parameter without annotation; `self` and `cls` need none."""
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found += untyped(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") and node.name not in ("__init__", "__call__"):
                continue
            arguments = node.args
            taken = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            found += [
                f"{of_class}{node.name}({each.arg})"
                for each in taken
                if each and each.annotation is None and not (of_class and each.arg in ("self", "cls"))
            ]
    return found


def test_public_parameters_have_types():
    found = {name: untyped(ast.parse(file.read_text(encoding="utf-8")).body) for name, file in MODULES.items()}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_a_parameter_without_type_is_found():
    source = "class A:\n def f(self, x, *y, z: int = 1, **k): ...\n def _g(self, x): ...\nasync def h(a): ...\n"
    assert untyped(ast.parse(source).body) == ["A.f(x)", "A.f(y)", "A.f(k)", "h(a)"]
