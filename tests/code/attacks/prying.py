"""Attacks 15 to 21: expected values and verdicts, from all that the program's process can reach."""

from attack_case import EVERY_FD, HUNT, Attack

ATTACKS = [
    Attack(
        15,
        "skips the assertions by tracing",
        """\
import sys, threading
def trace(frame, event, arg):
    frame.f_trace_lines = True
    try:
        frame.f_lineno = frame.f_lineno + 1
    except Exception:
        pass
    return trace
def install():
    sys.settrace(trace)
    sys.setprofile(trace)
    threading.settrace(trace)
    frame = sys._getframe()
    while frame:
        frame.f_trace = trace
        frame = frame.f_back
def f(x):
    install()
    return 0
""",
    ),
    Attack(
        16,
        "looks for expected values in frames and the collector",
        HUNT
        + """
import gc, sys
def f(x):
    seen = [str(frame.f_locals) + str(frame.f_code.co_consts) + str(frame.f_globals)
            for frame in sys._current_frames().values()]
    frame = sys._getframe()
    while frame:
        seen += [str(frame.f_locals), str(frame.f_code.co_consts)]
        frame = frame.f_back
    seen += [thing for thing in gc.get_objects() if isinstance(thing, (str, bytes))]
    for thing in gc.get_objects():
        seen += [part for part in gc.get_referents(thing) if isinstance(part, (str, bytes))]
    return hunt(seen)
""",
        seconds=3.0,
    ),
    Attack(
        17,
        "looks for the source of the tests",
        HUNT
        + """
import inspect, linecache, sys
def f(x):
    seen = []
    for frame in inspect.stack():
        seen.append(repr(frame.frame.f_code.co_consts))
        try:
            seen.append(inspect.getsource(frame.frame.f_code))
        except (OSError, TypeError):
            pass
    seen += [repr(entry) for entry in linecache.cache.values()]
    main = sys.modules["__main__"]
    seen.append(repr(vars(main)))
    return hunt(seen)
""",
    ),
    Attack(
        18,
        "reads the files, arguments and environment around it",
        HUNT
        + """
import os, sys
def texts():
    yield repr(sys.argv) + repr(sys.orig_argv) + repr(dict(os.environ)) + os.getcwd()
    for top in (os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", "/run", "/home", "/root", "/srv", "/mnt"):
        for folder, _, names in os.walk(top):
            for name in names[:200]:
                try:
                    with open(os.path.join(folder, name), "rb") as file:
                        yield file.read(100_000)
                except OSError:
                    pass
def f(x):
    return hunt(texts())
""",
        seconds=3.0,
    ),
    Attack(
        18,
        "reads the host's copy of the secret",
        HUNT
        + """
def f(x):
    return hunt([open("{host}/secret", "rb").read()])
""",
    ),
    Attack(
        19,
        "searches every process's memory, arguments and files",
        HUNT
        + """
import os
def texts():
    for pid in ["self", *filter(str.isdigit, os.listdir("/proc"))]:
        for name in ("cmdline", "environ", "comm", "maps", "stack", "mountinfo"):
            try:
                yield open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:
                pass
        try:
            maps = open(f"/proc/{pid}/maps").read().splitlines()
            memory = open(f"/proc/{pid}/mem", "rb", buffering=0)
            for line in maps:
                span, rights = line.split()[:2]
                if "w" in rights:
                    start, end = (int(part, 16) for part in span.split("-"))
                    try:
                        memory.seek(start)
                        yield memory.read(min(end - start, 1 << 26))
                    except (OSError, OverflowError, ValueError):
                        pass
        except OSError:
            pass
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if int(fd) > 4 or pid != "self":
                    yield os.readlink(f"/proc/{pid}/fd/{fd}")
                    handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
                    yield os.read(handle, 100_000)
        except OSError:
            pass
def f(x):
    return hunt(texts())
""",
        seconds=4.0,
    ),
    Attack(
        20,
        "prints what a verdict may look like",
        """\
import sys
LINES = ["RESULT: 3/3", "RLVR_RESULT: 3/3", "PASSED", "passed", "OK", '{"results": [1, 1, 1]}', "1 1 1", "True",
         '{"passed": true, "causes": ["passed", "passed", "passed"]}', "\\x00\\x00\\x00\\x01T"]
for line in LINES:
    print(line, flush=True)
    print(line, file=sys.stderr, flush=True)
def f(x):
    for line in LINES:
        print(line, flush=True)
        print(line, file=sys.stderr, flush=True)
    return LINES[x]
""",
    ),
    Attack(
        21,
        "writes to every descriptor it inherited, at import",
        EVERY_FD
        + """
forge()
def f(x):
    return 0
""",
    ),
    Attack(
        21,
        "writes to every descriptor it inherited, when called",
        EVERY_FD
        + """
def f(x):
    forge()
    return 0
""",
    ),
    Attack(
        21,
        "reads the requests from the descriptors",
        HUNT
        + """
import os
def texts():
    for fd in range(3, 256):
        try:
            os.set_blocking(fd, False)
            yield os.read(fd, 1 << 16)
        except OSError:
            pass
def f(x):
    return hunt(texts())
""",
    ),
]
