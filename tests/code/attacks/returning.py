"""Attacks 22 to 26: what a program sends back."""

from attack_case import LITERAL, SECRET, Attack

FRAMES = """\
import os, struct, sys
def frame(payload, length=None):
    return struct.pack(">I", len(payload) if length is None else length) + payload
def send(data):
    for fd in range(3, 12):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""
VALUES = """\
VALUES = [float("nan"), float("inf"), -0.0, 10**10**5, "\\ud800", True, b"\\xff", 1j, range(3),
    ..., None, [float("nan")]]
def f(x):
    return VALUES[x]
"""
NEVER_EQUAL = ("float('nan')", "1.0", "1", "10", "'a'", "2", "'\\xff'", "1", "[0, 1, 2]", "None", "0", "[float('nan')]")

ATTACKS = [
    Attack(
        22,
        "answers before it is asked",
        FRAMES
        + """
for payload in (b"True", b"1", b"", b"\\x00"):
    send(frame(payload))
def f(x):
    return 0
""",
    ),
    Attack(
        22,
        "repeats every frame that its process sends",
        """\
import os
write = os.write
os.write = lambda fd, data: (write(fd, data), write(fd, data))[0]
def f(x):
    return 0
""",
    ),
    Attack(
        22,
        "sends half of a frame",
        FRAMES
        + """
def f(x):
    send(frame(b"T", 1000))
    os._exit(0)
""",
    ),
    Attack(
        22,
        "sends half of a frame and waits",
        FRAMES
        + """
import time
def f(x):
    send(frame(b"T", 1000))
    time.sleep(1000)
""",
        (LITERAL,),
        seconds=0.2,
    ),
    Attack(
        22,
        "announces a frame of 4 GB",
        FRAMES
        + """
def f(x):
    send(frame(b"", 0xFFFFFFFF))
    while True:
        send(b"x" * 65536)
""",
    ),
    Attack(
        22,
        "closes the descriptors",
        """\
import os
def f(x):
    os.closerange(0, 256)
    return 0
""",
    ),
    Attack(
        22,
        "sends frames without end",
        FRAMES
        + """
def f(x):
    while True:
        send(frame(b"N") * 1000)
""",
    ),
    Attack(
        23,
        "returns what runs when unpickled",
        """\
import os
class Payload:
    def __reduce__(self):
        return os.system, ("touch {host}/left /tmp/rft_attack_left /dev/shm/rft_attack_left",)
    __reduce_ex__ = lambda self, protocol: self.__reduce__()
    def __getstate__(self):
        return self.__reduce__()
def f(x):
    import pickle
    return [Payload(), pickle.dumps(Payload()), "cos\\nsystem\\n(S'touch {host}/left'\\ntR."][x % 3]
""",
    ),
    Attack(
        24,
        "returns a list nested a million deep",
        """\
def f(x):
    value = []
    for _ in range(10**6):
        value = [value]
    return value
""",
    ),
    Attack(
        24,
        "returns nested dicts, tuples and itself",
        """\
def f(x):
    value, ring = (), []
    ring.append(ring)
    for _ in range(50_000):
        value = {"k": (value,)}
    return ring if x % 2 else value
""",
    ),
    Attack(
        24,
        "returns what is small and unfolds to gigabytes",
        """\
def f(x):
    value = ["x" * 1000]
    for _ in range(40):
        value = [value, value]
    return value
""",
        seconds=2.0,
    ),
    Attack(
        25,
        "returns values that equal nothing here",
        VALUES,
        tuple(f"assert f({n}) == {wanted}" for n, wanted in enumerate(NEVER_EQUAL)),
        seconds=2.0,
    ),
    Attack(
        25,
        "returns values that equal nothing here, to a judge",
        VALUES,
        tuple(f"value = f({n})\nassert value == {wanted}" for n, wanted in enumerate(NEVER_EQUAL)),
        seconds=2.0,
    ),
    Attack(25, "returns an integer of a million digits", "def f(x):\n    return 10**10**6", seconds=2.0),
    Attack(
        26,
        "returns a generator, a coroutine, an endless iterator",
        """\
import itertools
def generator():
    while True:
        yield 1
async def coroutine():
    return 1
def f(x):
    return [generator(), coroutine(), itertools.count(), iter(int, 1), map(f, itertools.repeat(0))][x]
""",
        (
            *(f"assert f({n}) == '{SECRET}'" for n in range(5)),
            f"assert list(f(0)) == '{SECRET}'",
            f"assert '{SECRET}' in f(2)",
        ),
    ),
]
