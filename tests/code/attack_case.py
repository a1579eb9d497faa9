"""What an attack on the code server is: a program, the tests that it must not pass, and what is answered then."""

import os
from dataclasses import dataclass, field

SECRET = "{secret}"  # the runner's: drawn for each request, in the tests only
HOST = "{host}"  # the runner's: a folder outside of every sandbox, with the secret in its file `secret`
LITERAL = f"assert f(3) == '{SECRET}'"
JUDGED = f"def check(candidate):\n    for n in range(3):\n        assert candidate(n) == '{SECRET}'\n\ncheck(f)"
COMPARED = f"value = f(3)\nassert len(value) > 3 and sorted(value) == sorted('{SECRET}') and not value != '{SECRET}'"

# Finds a secret in bytes. It matches neither itself nor the pattern in a program's source.
HUNT = """\
import re
PATTERN = re.compile(b"secr" + b"et-[0-9a-f]{32}")

def hunt(chunks):
    for chunk in chunks:
        found = PATTERN.search(chunk if isinstance(chunk, bytes) else str(chunk).encode(errors="replace"))
        if found:
            return found.group().decode()
    return "nothing"
"""

# Names the program's threads and children, so that what is left of them on the host can be told from all others.
MARK = f"rft-at{os.getpid()}"  # 15 characters at most
MARKED = f"""\
try:
    open("/proc/self/comm", "w").write("{MARK}")
except OSError:
    try:
        __import__("ctypes").CDLL(None).prctl(15, b"{MARK}", 0, 0, 0)
    except Exception:
        pass
"""

# Runs one of the attempts that a program defines: "won" where it did what it tried, "blocked" where the system said no.
# Any other exception is a fault of the attack: it fails the second half of its tests.
ATTEMPTS = """\
def f(name):
    try:
        done = globals()["attempt_" + name]()
    except (OSError, MemoryError):
        return "blocked"
    return "won" if done else "blocked"
"""

# Writes what may pass for a verdict to every descriptor.
EVERY_FD = """\
import os

FRAMES = [b'{"results": [1, 1, 1]}\\n', b"PASSED\\n", (4).to_bytes(4, "big") + b"True", b"\\xff" * 64]

def forge():
    for fd in range(3, 256):
        for frame in FRAMES:
            try:
                os.set_blocking(fd, False)
                os.write(fd, frame)
            except OSError:
                pass
"""

# System calls by number: of x86-64, of aarch64.
SYSCALLS = """\
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def call(x86, arm, *arguments):
    done = libc.syscall(ctypes.c_long(arm if ARM else x86), *map(ctypes.c_long, arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
"""


@dataclass(frozen=True)
class Attack:
    """A program and its tests. ``wanted``: the results; none where the server may also refuse the request (4xx)."""

    number: int
    tries: str
    program: str
    tests: tuple[str, ...] = (LITERAL, JUDGED, COMPARED)
    wanted: tuple[int, ...] = field(default=())
    setup: str = ""
    seconds: float = 1.0
    entry_point: str | None = "f"

    @property
    def expected(self) -> list[int]:
        """The results that show that it failed: all 0 unless the attack says otherwise."""
        return list(self.wanted) or [0] * len(self.tests)

    @property
    def name(self) -> str:
        """What pytest calls it."""
        return f"{self.number}-{self.tries}"


def attempts(number: int, tries: str, program: str, *names: str, seconds: float = 2.0) -> Attack:
    """An attack that defines ``attempt_NAME()`` for each name, which return whether they got through.

    Each is asked twice: that it did not win, and that it reached what stops it.
    """
    tests = [f"assert f({name!r}) == {word!r}" for word in ("won", "blocked") for name in names]
    wanted = (0,) * len(names) + (1,) * len(names)
    return Attack(number, tries, ATTEMPTS + program, tuple(tests), wanted, seconds=seconds)
