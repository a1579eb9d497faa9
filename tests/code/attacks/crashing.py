"""Attacks 46 to 49: a crash of what reads or runs the program."""

from attack_case import Attack

ATTACKS = [
    Attack(
        46,
        "dumps a core",
        """\
import os, resource
try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
except (OSError, ValueError):
    pass
def f(x):
    os.abort()
""",
    ),
    Attack(47, "is a source of 10 MB", "def f(x):\n    return 0\n" + "# filling\n" * 1_000_000),
    Attack(47, "is nested too deep for the parser", "def f(x):\n    return " + "(" * 50_000 + ")" * 50_000),
    Attack(47, "is nested too deep for the compiler", "def f(x):\n    return " + "-" * 90_000 + "1"),
    Attack(47, "is a chain too long for the compiler", "def f(x):\n    return " + "x" + ".x" * 90_000),
    Attack(47, "is a number that the compiler works out", "x = " + "**".join(["9"] * 40)),
    Attack(
        48,
        "overflows the stack",
        """\
import sys
sys.setrecursionlimit(2**31 - 1)
def f(x):
    return f(x)
""",
    ),
    Attack(48, "reads address 0", "import ctypes\ndef f(x):\n    return ctypes.string_at(0)"),
    Attack(
        48,
        "breaks the interpreter",
        """\
import types
def f(x):
    code = (lambda: 0).__code__
    exec(code.replace(co_code=bytes([124, 255] * 40), co_consts=(), co_stacksize=0))
""",
    ),
    Attack(
        49,
        "imports a module that unfolds",
        """\
import io, sys, zipfile
with zipfile.ZipFile("/tmp/rft_attack_left.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
    with bomb.open("bomb.py", "w", force_zip64=True) as file:
        for _ in range(1024):
            file.write(b" " * (1 << 20))
sys.path.insert(0, "/tmp/rft_attack_left.zip")
import bomb
def f(x):
    return 0
""",
        seconds=2.0,
    ),
    Attack(
        49,
        "unpickles what unfolds",
        """\
import pickle
def f(x):
    return len(pickle.loads(b"(" + b"I1\\n" * 1000 + b"l" + b"0" * 0 + b"(2" * 200_000 + b"t" * 200_000 + b"."))
""",
        seconds=2.0,
    ),
]
