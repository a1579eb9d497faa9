"""Attacks 34 to 45: all processes, all memory, all disk, all time, all descriptors."""

from attack_case import LITERAL, Attack, attempts

ATTACKS = [
    Attack(
        34,
        "forks without end",
        "import os\ndef f(x):\n    while True:\n        try:\n            os.fork()\n"
        "        except OSError:\n            pass",
    ),
    Attack(
        34,
        "forks without end at import",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    ),
    attempts(
        34,
        "has a thousand children",
        """\
import os, signal, time
def attempt_fork():
    children = []
    try:
        while len(children) < 1000:
            child = os.fork()
            if not child:
                time.sleep(1000)
            children.append(child)
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
""",
        "fork",
        seconds=4.0,
    ),
    Attack(
        35,
        "starts threads without end",
        """\
import threading, time
def f(x):
    while True:
        try:
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except RuntimeError:
            pass
""",
    ),
    Attack(
        35,
        "leaves threads that run on",
        """\
import threading
def spin():
    while True:
        pass
def f(x):
    for _ in range(8):
        threading.Thread(target=spin).start()
    return 0
""",
    ),
    Attack(
        36, "fills the memory", "def f(x):\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 24))"
    ),
    Attack(
        36,
        "fills the memory in many children",
        """\
import os
def f(x):
    for _ in range(6):
        if not os.fork():
            break
    kept = []
    while True:
        try:
            kept.append(bytearray(1 << 24))
        except MemoryError:
            pass
""",
    ),
    attempts(
        37,
        "asks C code for a lot of memory",
        """\
import mmap, zlib
def attempt_times():
    return len(b"x" * (1 << 36))
def attempt_zlib():
    packed = zlib.compress(bytes(1 << 24), 9)
    kept = [zlib.decompress(packed) for _ in range(4096)]
    return kept
def attempt_mmap():
    return mmap.mmap(-1, 1 << 36)
def attempt_range():
    return list(range(1 << 34))
def attempt_format():
    return f"{1:>68719476736}"
""",
        "times",
        "zlib",
        "mmap",
        "range",
        "format",
        seconds=6.0,
    ),
    attempts(
        38,
        "fills the disk",
        """\
import os
def attempt_bytes():
    names = [f"/tmp/rft_attack_left{n}" for n in range(64)]
    for name in names:
        with open(name, "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    return True
def attempt_shm():
    with open("/dev/shm/rft_attack_left", "wb") as file:
        for _ in range(4096):
            file.write(bytes(1 << 20))
    return True
def attempt_cwd():
    with open("rft_attack_left", "wb") as file:
        for _ in range(4096):
            file.write(bytes(1 << 20))
    return True
def attempt_memfd():
    handle = os.memfd_create("rft_attack_left")
    for _ in range(4096):
        os.write(handle, bytes(1 << 20))
    return True
""",
        "bytes",
        "shm",
        "cwd",
        "memfd",
        seconds=10.0,
    ),
    Attack(
        38,
        "makes files without end",
        """\
import itertools, os
def f(x):
    for n in itertools.count():
        os.close(os.open(f"/tmp/rft_attack_left{n}", os.O_CREAT | os.O_WRONLY))
""",
        (LITERAL,),
    ),
    Attack(39, "prints without end", "def f(x):\n    while True:\n        print('x' * 1000)"),
    Attack(39, "prints without end at import", "while True:\n    print('x' * 1000)"),
    Attack(
        40,
        "writes to stderr without a line's end",
        """\
import os, sys
def f(x):
    while True:
        os.write(2, b"x" * 65536)
""",
    ),
    attempts(
        41,
        "makes a file of a terabyte",
        """\
import os
def attempt_sparse():
    handle = os.open("/tmp/rft_attack_left", os.O_CREAT | os.O_RDWR)
    os.ftruncate(handle, 1 << 40)
    return os.fstat(handle).st_size == 1 << 40
def attempt_seek():
    handle = os.open("/tmp/rft_attack_left", os.O_CREAT | os.O_RDWR)
    os.pwrite(handle, b"x", 1 << 40)
    return True
""",
        "sparse",
        "seek",
    ),
    Attack(
        42,
        "ignores every signal and runs on",
        """\
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def f(x):
    while True:
        pass
""",
    ),
    Attack(
        42,
        "ignores every signal at import and raises its limits",
        """\
import resource, signal
for number in range(1, 65):
    try:
        signal.signal(number, lambda *args: None)
    except (OSError, ValueError):
        pass
for limit in range(16):
    try:
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    ),
    Attack(43, "matches a catastrophic pattern", "import re\ndef f(x):\n    return re.match('(a+)+$', 'a' * 60 + 'b')"),
    Attack(43, "computes a power within C", "def f(x):\n    return len(str(7 ** (10 ** 9)))"),
    Attack(44, "sleeps", "import time\ndef f(x):\n    time.sleep(10**6)", (LITERAL,), seconds=0.2),
    Attack(
        44,
        "waits for itself at import",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        seconds=0.2,
    ),
    Attack(44, "waits for input", "import sys\ndef f(x):\n    return sys.stdin.read() or input() or 0"),
    attempts(
        45,
        "opens every descriptor",
        """\
import os
def attempt_open():
    kept = []
    try:
        while len(kept) < 100_000:
            kept.append(os.open("/dev/null", os.O_RDONLY))
        return True
    finally:
        for handle in kept:
            os.close(handle)
""",
        "open",
    ),
]
