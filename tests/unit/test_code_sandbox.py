"""Sandboxes and their pool: limits of time and size, slots, and that nothing is left, at each level of isolation."""

import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ordinary_user import has_namespaces
from sandbox_claims import INSIDE, LIMITS, ROLE

from rft.code.isolation import uids
from rft.code.sandbox import Died, IsolationError, Pool, SandboxError, Stuck, TimedOut, TooLarge

FOLDER = Path(__file__).parent
LEVELS = ("namespaces", "landlock", "none")
HANG = 60  # seconds that only a hang exceeds
LARGE = {"cpu_seconds": 20, "wall_seconds": 200, "max_bytes": 1 << 23}


def in_pool(level, work, **options):
    """What `work(pool)` returns."""

    async def main():
        async with Pool(
            level=level, allow_unsafe=level == "none", inside=INSIDE, **{"limits": LIMITS} | options
        ) as pool:
            return await work(pool)

    return asyncio.run(main())


async def ask(pool, source, **limits):
    """The answer of a fresh sandbox, and the sandbox, closed."""
    sandbox = await pool.acquire(ROLE)
    try:
        await sandbox.send(source.encode())
        return (await sandbox.receive(**LARGE | limits)).decode(), sandbox
    finally:
        await sandbox.close()


def environment():
    """For a Python that imports ours."""
    return os.environ | {"PYTHONPATH": f"{FOLDER.parents[1]}:{FOLDER}:{os.environ.get('PYTHONPATH', '')}"}


def soon(found, what):
    deadline = time.monotonic() + HANG
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(params=LEVELS)
def level(request):
    if request.param == "namespaces" and not has_namespaces():
        pytest.skip("this machine forbids user namespaces")
    return request.param


ENDS = {
    "a loop": ("while True: pass", {"cpu_seconds": 0.3}, TimedOut, "CPU time"),
    "a loop deaf to signals": (
        "import signal\nfor n in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
        {"cpu_seconds": 0.3},
        TimedOut,
        "CPU time",
    ),
    "a regular expression": ("import re\nre.match('(a+)+b', 'a' * 99)", {"cpu_seconds": 0.3}, TimedOut, "CPU time"),
    "a late answer": (
        "import time\nwhile time.process_time() < 1: pass",
        {"cpu_seconds": 0.5},
        TimedOut,
        "CPU time",
    ),
    "sleep": ("import time\ntime.sleep(999)", {"wall_seconds": 0.3}, Stuck, "no answer in 0.3 s"),
    "half a frame": (
        "import os, time\nos.write(4, b'\\0\\0')\ntime.sleep(999)",
        {"wall_seconds": 0.3},
        Stuck,
        "no answer",
    ),
    "an exit": ("import os\nos._exit(7)", {}, Died, "exit status 7"),
    "a signal": ("import os\nos.kill(os.getpid(), 9)\nos._exit(7)", {}, Died, "SIGKILL|exit status 7"),
    "a crash": ("import ctypes\nctypes.string_at(0)", {}, Died, "SIGSEGV"),
    "closed channels": (
        "import os, time\nos.closerange(0, 99)\ntime.sleep(999)",
        {"wall_seconds": 1},
        (Died, Stuck),
        "closed its channel|no answer",
    ),
    "a long answer": ("answer = 'x' * (1 << 20)", {"max_bytes": 1 << 19}, TooLarge, "frame of 1048576 bytes"),
    "an endless frame": ("import os\nwhile True: os.write(4, b'\\x7f' * 65536)", {}, TooLarge, "frame of"),
    "much output": ("while True: print('x' * 9999)", {}, TooLarge, "printed more than 1048576 bytes"),
    "much on stderr": ("import os\nwhile True: os.write(2, b'x')", {}, TooLarge, "printed more than"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_that_ends_its_sandbox(name, level):
    source, limits, error, text = ENDS[name]

    async def work(pool):
        with pytest.raises(error, match=text):
            await ask(pool, source, **limits)
        assert (await ask(pool, "answer = 1"))[0] == "1"  # the next one

    in_pool(level, work)


def test_large_frames_both_ways_and_what_was_printed(level):
    async def work(pool):
        answer, _ = await ask(pool, f"answer = {'x' * 3_000_000!r} + 'end'")
        assert len(answer) == 3_000_003 and answer.endswith("xend")
        _, sandbox = await ask(
            pool, "import os, sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\nos.write(1, b'raw')"
        )
        assert bytes(sandbox.output) == b"out\nerr\nraw"

    in_pool(level, work)


def test_several_frames_of_one_program_and_input_in_its_file(level):
    async def work(pool):
        sandbox = await pool.acquire(ROLE)
        for source in ("import os, sys\nos.write(0, b'line\\n')\nos.lseek(0, 0, 0)\nkept = input()", "answer = kept"):
            await sandbox.send(source.encode())
        answers = [await sandbox.receive(**LARGE) for _ in range(2)]
        await sandbox.close()
        return answers

    assert in_pool(level, work) == [b"None", b"line"]


def test_cpu_time_is_that_of_all_threads_and_of_no_wait(level):
    burn = "import threading, time\ndef burn():\n while time.thread_time() < 0.2: pass\n"

    async def work(pool):
        asleep = (await ask(pool, "import time\ntime.sleep(0.5)"))[1].cpu_seconds()
        _, one = await ask(pool, f"{burn}burn()")
        assert one.cpu_seconds() > 0.2
        if not (level == "landlock" and os.geteuid()):  # no threads there
            _, many = await ask(
                pool, f"{burn}for _ in range(3):\n t = threading.Thread(target=burn); t.start(); t.join()"
            )
            assert many.cpu_seconds() > 0.6
        return asleep

    assert in_pool(level, work) < 0.5


def test_the_wait_before_the_question_is_not_counted(level):
    async def work(pool):
        sandbox = await pool.acquire(ROLE)
        for _ in range(3):
            await sandbox.send(
                b"import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.2: pass"
            )
            await sandbox.receive(cpu_seconds=0.4, wall_seconds=HANG, max_bytes=99)
        assert sandbox.cpu_seconds() > 0.55
        await sandbox.close()

    in_pool(level, work)


def test_each_program_has_its_own_process_and_slots_bound_them(level):
    async def work(pool):
        taken = [await pool.acquire(ROLE) for _ in range(3)]
        assert len(pool._all) == 3  # none ahead of need
        fourth = asyncio.create_task(pool.acquire(ROLE))
        done, _ = await asyncio.wait({fourth}, timeout=0.2)
        assert not done
        for sandbox in taken:
            await sandbox.close()
        await (await fourth).close()

        async def one(number):
            sandbox = await pool.acquire(ROLE)
            assert len(pool._all) <= 3  # the warm ones too
            await sandbox.send(
                f"import builtins\nanswer = getattr(builtins, 'seen', 0)\nbuiltins.seen = {number}".encode()
            )
            answer = await sandbox.receive(**LARGE)
            await sandbox.close()
            return answer, sandbox.process.pid

        return await asyncio.gather(*(one(number) for number in range(12)))

    found = in_pool(level, work, slots=3)
    assert {answer for answer, _ in found} == {b"0"}


def test_who_asks_first_is_served_first(level):
    order = []

    async def work(pool):
        async def one(number):
            sandbox = await pool.acquire(ROLE)
            order.append(number)
            await sandbox.close()

        await asyncio.gather(*(one(number) for number in range(8)))

    in_pool(level, work, slots=1)
    assert order == list(range(8))


def test_a_request_that_is_cancelled_gives_its_slot_back(level):
    async def work(pool):
        holder = await pool.acquire(ROLE)
        waiting = asyncio.create_task(pool.acquire(ROLE))
        running = asyncio.create_task(holder.receive(**LARGE))
        await asyncio.sleep(0.05)
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await holder.close()
        return (await ask(pool, "answer = 'next'"))[0]

    assert in_pool(level, work, slots=1) == "next"


def test_requests_that_are_cancelled_leave_as_many_warm_as_any(level):
    """What was started for them is the next ones', up to as many as are kept; the others end."""

    async def work(pool):
        asked = [asyncio.create_task(pool.acquire(ROLE)) for _ in range(8)]
        while pool.starts < 1 + len(asked):  # one more has shown the level
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        until = time.monotonic() + HANG
        while len(pool._all) != 1 and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return len(pool._warm[ROLE]), len(pool._all), (await ask(pool, "answer = 'next'"))[0]

    assert in_pool(level, work, slots=12) == (1, 1, "next")


def test_nothing_is_left(level):
    def state():
        gc.collect()  # what asyncio left in cycles holds descriptors until then
        names = {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("rft-")}
        return sorted(os.listdir("/proc/self/fd")), names | set(os.listdir("/dev/shm"))

    pids = []

    async def work(pool):
        for source in ("answer = 1", "while True: pass", "open('/tmp/left', 'w')"):
            sandbox = await pool.acquire(ROLE)
            pids.append(sandbox.process.pid)
            await sandbox.send(source.encode())
        await asyncio.sleep(0.2)
        # two are used, one is idle, others are warm: the pool's end takes all of them

    in_pool(level, lambda pool: asyncio.gather(*(ask(pool, "answer = 1") for _ in range(12))))
    before = state()
    in_pool(level, work)
    (descriptors, names), (before_descriptors, before_names) = state(), before
    assert len(descriptors) == len(before_descriptors)
    assert {name for name in names - before_names if "left" in name} <= ({"left"} if level == "none" else set())
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("level", LEVELS[:2], indirect=True)
def test_a_server_that_is_killed_leaves_no_program(level):
    argv = [sys.executable, FOLDER / "sandbox_server.py", level]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(), text=True, **pipes) as server:
        try:
            line = server.stdout.readline()
        finally:
            server.kill()
        errors = server.stderr.read()
    pids = line.split()
    assert len(pids) >= 3, errors
    soon(lambda: not any(map(running, pids)), f"of {pids} some still run")


def running(pid):
    """Whether a process is there and has not ended."""
    try:
        return re.search(r"State:\s+(\w)", Path(f"/proc/{pid}/status").read_text())[1] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_that_stops_itself_is_ended(level):
    async def work(pool):
        with pytest.raises(SandboxError):
            await ask(pool, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nos._exit(1)", wall_seconds=1)

    in_pool(level, work)


def test_without_isolation_nothing_runs_unless_it_is_asked_for():
    with pytest.raises(IsolationError, match="allow_unsafe"):
        Pool(level="none")
    with pytest.raises(IsolationError, match="there are namespaces, landlock, none"):
        Pool(level="docker")


def test_the_best_level_is_taken_and_the_others_are_explained():
    async def work(pool):
        return pool.level, pool.why_not

    level, why_not = in_pool(None, work)
    assert level in ("namespaces", "landlock"), f"this machine isolates no program: {why_not}"
    assert list(why_not) == list(LEVELS[: LEVELS.index(level)])


def test_a_machine_without_namespaces_falls_back_and_says_why():
    """A filter over the server's process stands for a kernel that forbids user namespaces."""
    argv = [sys.executable, FOLDER / "no_namespaces.py"]
    run = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=HANG)
    assert run.stdout.startswith("landlock {'namespaces': "), run.stdout + run.stderr
    assert "namespace" in run.stdout.split(": ", 1)[1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("         0          0 4294967295\n", True),
        ("0 1000 1\n1 100000 65535\n", True),
        ("0 1000 1\n", False),
        ("0 0 1000\n60000 60000 5\n", False),
    ],
)
def test_user_ids_that_a_container_has(text, wanted):
    assert uids.mapped(uids.FIRST, text) is wanted


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def work(pool):
        return None

    in_pool("none", work)
    (made,) = tmp_path.glob("rft-python-*")
    made.chmod(0o777)
    with pytest.raises(IsolationError, match=r"is not ours alone .*777.*: set TMPDIR"):
        in_pool("none", work)


def test_an_interpreter_that_fails_is_said_by_name(tmp_path):
    """What is wrong with the machine never looks like what a program did."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/absent.py").write_text("")

    async def main():
        async with Pool(level="none", allow_unsafe=True, inside=tmp_path / "inside") as pool:
            with pytest.raises(IsolationError, match="no sandbox of level none"):
                pool._staged.root.joinpath(pool._staged.code, "boot.pyc").rename(tmp_path / "boot.pyc")
                try:
                    await pool.acquire("absent")
                finally:
                    (tmp_path / "boot.pyc").rename(pool._staged.root.joinpath(pool._staged.code, "boot.pyc"))

    asyncio.run(main())
