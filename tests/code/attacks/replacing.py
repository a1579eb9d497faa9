"""Attacks 12 to 14: what tests are written with, replaced."""

from attack_case import LITERAL, SECRET, Attack

UNITTEST = f"import unittest\nunittest.TestCase().assertEqual(f(3), '{SECRET}')"

ATTACKS = [
    Attack(
        12,
        "replaces AssertionError",
        """\
import builtins
class Never(Exception):
    pass
builtins.AssertionError = builtins.Exception = builtins.BaseException = Never
def f(x):
    return 0
""",
    ),
    Attack(
        13,
        "replaces what tests are written with",
        """\
import builtins, operator, math
for name in ("isinstance", "all", "any", "type", "repr", "hash", "callable", "issubclass"):
    setattr(builtins, name, lambda *args, **kw: True)
for name in ("len", "abs", "sum", "round", "max", "min", "ord", "id"):
    setattr(builtins, name, lambda *args, **kw: 10**6)
builtins.sorted = builtins.set = builtins.str = builtins.list = lambda *args, **kw: []
operator.eq = math.isclose = lambda *args, **kw: True
def f(x):
    return "x"
""",
    ),
    Attack(
        13,
        "replaces what its caller runs on",
        """\
import builtins, os, struct, sys, io
def nothing(*args, **kw):
    return True
os.write = os.read = nothing
struct.pack = struct.unpack = nothing
builtins.compile = builtins.exec = builtins.open = nothing
for module in list(sys.modules.values()):
    for name in ("encode", "decode", "same", "send", "receive", "read_frame", "write_frame"):
        if hasattr(module, name):
            try:
                setattr(module, name, nothing)
            except Exception:
                pass
def f(x):
    return 0
""",
    ),
    Attack(
        14,
        "patches unittest and pytest",
        """\
import unittest, sys, types
unittest.TestCase.assertEqual = unittest.TestCase.assertTrue = lambda *args, **kw: None
unittest.case.TestCase.failureException = type("Never", (Exception,), {})
sys.modules["pytest"] = types.SimpleNamespace(approx=lambda *args: type("Any", (), {"__eq__": lambda a, b: True})())
def f(x):
    return 0
""",
        (LITERAL, UNITTEST, f"import unittest\ncase = unittest.TestCase()\ncase.assertTrue(f(3) == '{SECRET}')"),
    ),
]
