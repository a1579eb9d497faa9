"""Wrong variants of a program, and what plain Python says of a program and its tests."""

import ast
import json
import subprocess
import sys

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult}


def mutant(source: str, entry_point: str, number: int) -> str | None:
    """A variant of a program: a constant changed, one more or less, a comparison swapped, the argument returned.

    ``number`` chooses among all that can be made; None where there is none.
    """
    tree = ast.parse(source)
    own = next((node for node in tree.body if getattr(node, "name", "") == entry_point), tree)
    within = set(ast.walk(own))  # a helper of the prompt is the tests' too
    places = [
        (place, change)
        for place, node in enumerate(ast.walk(tree))
        if node in within
        for change in changes(node, entry_point)
    ]
    if not places:
        return None
    place, change = places[number % len(places)]
    change(list(ast.walk(tree))[place])
    return ast.unparse(ast.fix_missing_locations(tree))


def changes(node: ast.AST, entry_point: str):
    """What can be made wrong at one node: functions that change a node of its kind."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield lambda same: setattr(same, "value", node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is str and node.value and len(node.value) < 20:
        yield lambda same: setattr(same, "value", node.value + "x")
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield lambda same: setattr(same, "ops", [COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield lambda same: setattr(same, "op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.FunctionDef) and node.name == entry_point and node.args.args:
        name = node.args.args[0].arg
        yield lambda same: setattr(same, "body", [ast.Return(ast.Name(name, ast.Load()))])


def plain_results(cases: list[dict]) -> list[bool]:
    """Whether program, setup and tests of each case, in one process, raise nothing: what an assert run says.

    For programs of the data sets and their variants only: it isolates nothing.
    """
    text = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(
        [sys.executable, "-I", "-S", __file__], input=text, capture_output=True, text=True, timeout=600, check=True
    )
    return json.loads(done.stdout)


def in_children(lines: list[str]) -> list[bool]:
    """Each case in a process of its own, with 2 s of CPU time."""
    import math
    import os
    import resource

    found = []
    for line in lines:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            case, status = json.loads(line), 1
            try:
                space = {"__name__": "program", "math": math}  # MBPP's tests take it without an import
                exec(case["setup"] + "\n" + case["program"], space)
                for test in case["tests"]:
                    exec(test, space)
                if "check" in space:
                    space["check"](space[case["entry_point"]])
                status = 0
            finally:
                os._exit(status)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
    return found


if __name__ == "__main__":
    print(json.dumps(in_children(sys.stdin.read().splitlines())))
