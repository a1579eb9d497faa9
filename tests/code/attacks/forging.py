"""Attacks 1 to 11: a verdict without the right answer, by how the program ends and what it returns."""

from attack_case import EVERY_FD, LITERAL, SECRET, Attack

UNITTEST = f"import unittest\nunittest.TestCase().assertEqual(f(3), '{SECRET}')"
GUARDED = f"try:\n    value = f(3)\nexcept Exception:\n    value = None\nassert value == '{SECRET}'"

ATTACKS = [
    Attack(1, "exits with 0 at import", "import sys\ndef f(x):\n    return 0\nsys.exit(0)"),
    Attack(1, "raises SystemExit at import", "def f(x):\n    return 0\nraise SystemExit"),
    Attack(2, "ends its process with 0 at import", "import os\nos._exit(0)"),
    Attack(3, "exits inside the function", "import sys\ndef f(x):\n    sys.exit(0)"),
    Attack(3, "ends its process inside the function", "import os\ndef f(x):\n    os._exit(0)"),
    Attack(
        3,
        "exits in a thread and a destructor",
        """\
import os, threading
class Last:
    def __del__(self):
        os._exit(0)
def f(x):
    threading.Thread(target=lambda: os._exit(0)).start()
    return Last()
""",
    ),
    Attack(
        4,
        "raises its own SystemExit",
        """\
class Quiet(SystemExit):
    code = 0
    def __bool__(self):
        return False
def f(x):
    raise Quiet(0)
""",
        (LITERAL, UNITTEST, GUARDED),
    ),
    Attack(
        4,
        "raises its own BaseException",
        """\
class Passed(BaseException):
    def __str__(self):
        raise SystemExit(0)
    __repr__ = __str__
def f(x):
    raise Passed
""",
        (LITERAL, UNITTEST, GUARDED),
    ),
    Attack(
        4,
        "raises what ends loops and processes",
        """\
def f(x):
    raise (StopIteration, GeneratorExit, KeyboardInterrupt)[x % 3]
""",
    ),
    Attack(
        4,
        "ends the loop that asks it",
        """\
def f(x):
    raise StopIteration
""",
        (
            f"assert all(map(lambda n: f(n) == '{SECRET}', range(3)))",
            f"assert all(f(n) == '{SECRET}' for n in range(3))",
            f"for value in map(f, [1, 2]):\n    assert value == '{SECRET}'",
            "assert [*map(f, [1, 2])] == []",
        ),
    ),
    Attack(
        5,
        "forges at exit",
        EVERY_FD
        + """
import atexit
atexit.register(os._exit, 0)
atexit.register(forge)
def f(x):
    raise SystemExit(0)
""",
    ),
    Attack(
        6,
        "kills whatever it can reach",
        """\
import os, signal
def f(x):
    for pid in (os.getppid(), 1, 0, -1):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return 0
""",
    ),
    Attack(
        6,
        "kills all but itself, at import",
        """\
import os, signal
for pid in range(1, 4000):
    if pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
def f(x):
    return 0
""",
    ),
    Attack(
        7,
        "equals everything",
        """\
class AlwaysEqual:
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __len__(self):
        return 10**6
    def __iter__(self):
        return iter(())
def f(x):
    return AlwaysEqual()
""",
    ),
    Attack(
        8,
        "answers for != and truth and hashes",
        """\
class Yes:
    def __getattr__(self, name):
        return lambda *args: True
    __hash__ = None
    def __ne__(self, other):
        return False
    def __bool__(self):
        return True
    def __contains__(self, other):
        return True
    def __lt__(self, other):
        return True
    __gt__ = __le__ = __ge__ = __eq__ = __radd__ = __lt__
def f(x):
    return Yes()
""",
        (
            LITERAL,
            f"assert not f(3) != '{SECRET}'",
            f"assert '{SECRET}' in f(3)",
            f"assert f(3) in ['{SECRET}']",
            f"assert hash(f(3)) == hash('{SECRET}')",
            "assert f(3) is True",
        ),
    ),
    Attack(
        8,
        "is asked whether it is right",
        """\
class Right:
    issubset = issuperset = startswith = endswith = isdisjoint = lambda *args: True
    def count(self, value):
        return 1
def f(x):
    return Right()
""",
        (
            f"assert f(3).issubset({{'{SECRET}'}})",
            f"assert f(3).startswith('{SECRET}')",
            f"value = f(3)\nassert value.endswith('{SECRET}') is True",
            f"value = f(3)\nassert value.count('{SECRET}') == 1",
        ),
    ),
    Attack(
        9,
        "equals everything as a str, an int, a tuple",
        """\
def equal(kind):
    return type(kind.__name__, (kind,), {"__eq__": lambda a, b: True, "__ne__": lambda a, b: False,
                                         "__hash__": lambda a: 0})
kinds = [equal(kind) for kind in (str, int, tuple, float, bytes, list, dict, set, frozenset, complex)]
def f(x):
    return kinds[x]()
""",
        tuple(f"assert f({n}) == '{SECRET}'" for n in range(10))
        + tuple(f"value = f({n})\nassert value == '{SECRET}'" for n in range(10)),
    ),
    Attack(
        9,
        "equals everything inside a builtin container",
        """\
class Same(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
def f(x):
    return [[Same("a")], {"k": Same("b")}, (Same("c"),)][x]
""",
        (
            f"assert f(0) == ['{SECRET}']",
            f"assert f(1) == {{'k': '{SECRET}'}}",
            f"value = f(2)\nassert value == ('{SECRET}',)",
        ),
    ),
    Attack(
        10,
        "answers by the frames of who asks",
        """\
import sys
def asked():
    frame = sys._getframe(1)
    while frame:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str) and value.startswith("secr" + "et-"):
                return value
        frame = frame.f_back
    return ""
class Peeking(dict):
    def __len__(self):
        return len(asked())
    def __iter__(self):
        return iter(asked())
    def __getitem__(self, key):
        return asked()[key]
    def items(self):
        return enumerate(asked())
    def __eq__(self, other):
        return True
class PeekingList(list):
    __len__, __iter__, __getitem__, __eq__ = Peeking.__len__, Peeking.__iter__, Peeking.__getitem__, Peeking.__eq__
def f(x):
    return Peeking(a=1) if x % 2 else PeekingList([1])
""",
    ),
    Attack(
        11,
        "claims to be a str",
        """\
class Meta(type):
    def __instancecheck__(cls, other):
        return True
    def __subclasscheck__(cls, other):
        return True
    def __eq__(cls, other):
        return True
    __hash__ = type.__hash__
class Spoof(metaclass=Meta):
    __class__ = property(lambda self: str)
    def __eq__(self, other):
        return True
    def __reduce_ex__(self, protocol):
        return (str, ("",))
def f(x):
    return Spoof() if x else Spoof
""",
        (LITERAL, f"assert isinstance(f(3), str) and f(3) == '{SECRET}'", f"assert f(0) == type('{SECRET}')"),
    ),
]
