"""What a program's process can do to its verdict: forged frames, time, the end of sandboxes; scripts and the tool.

The programs do no harm where nothing isolates them; those that would are in tests/code.
"""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import run, together, verdicts

from rft.code import judge, values
from rft.code.judge import verify, verify_stdio
from rft.code.solution import Failed, answer, text
from rft.code.tool import execute

FRAME = "import os, sys\nmain = sys.modules['__main__']\nvalues = main.values\n"
FORGED = {
    "early": (
        FRAME + "main.write(values.encode((0, 'value', values.encode(2), values.encode(None))))\ndef f(): return 1",
        ["error", "error"],
    ),
    "twice": (
        FRAME
        + "def f():\n    frame = sys._getframe(1)\n    while 'number' not in frame.f_locals: frame = frame.f_back\n"
        "    answer = (frame.f_locals['number'], 'value', values.encode(2), values.encode(None))\n"
        "    main.write(values.encode(answer)); main.write(values.encode(answer))\n    return 2",
        ["passed", "error"],  # an answer to the open call is a value, the second one answers nothing
    ),
    "truncated": (FRAME + "def f():\n    os.write(4, b'\\0\\0\\1\\0abc')\n    os._exit(0)", ["error", "error"]),
    "oversize": (FRAME + "def f():\n    os.write(4, b'\\xff' * 100)\n    return 2", ["killed", "killed"]),
    "no tuple": (FRAME + "def f():\n    main.write(values.encode([1]))\n    return 2", ["error", "error"]),
    "a verdict": (
        FRAME + "def f():\n    main.write(values.encode(('verdict', 'passed', '')))\n    return 1",
        ["error", "error"],
    ),
    "on every fd": (
        FRAME
        + "def f():\n    for fd in range(256):\n        try: os.write(fd, b'passed\\n')\n        except OSError: pass",
        ["killed", "killed"],
    ),
    "a broken value": (
        FRAME
        + "values.encode = lambda *a, e=values.encode: e(a[0] if type(a[0]) is tuple else b'')\ndef f(): return 2",
        ["failed", "failed"],
    ),
    "closed": (FRAME + "def f():\n    os.closerange(0, 256)\n    return 2", ["error", "error"]),
}


ANSWER = values.encode((1, "value", values.encode(2), values.encode(None)))
PARTS = st.sampled_from(
    [1, 2, True, 1.0, "value", "raised", b"", b"N", None, 10**5000, (), [], {}, "\ud800", values.Handle(3)]
)


@settings(max_examples=200)
@given(st.binary(max_size=40) | st.lists(PARTS, max_size=5).map(tuple).map(values.encode) | st.just(ANSWER))
def test_any_frame_is_an_answer_or_the_programs_error(frame):
    try:
        kind, body, changed = answer(frame, 1)
    except Failed as failed:
        assert failed.cause == "error" and frame != ANSWER
    else:
        assert [type(part) for part in (kind, body, changed)] == [str, bytes, bytes]


@settings(max_examples=200)
@given(st.binary(max_size=40) | PARTS.map(values.encode) | st.lists(PARTS, max_size=4).map(tuple).map(values.encode))
def test_any_note_has_a_text(body):
    assert len(text(body)) <= 500


ASKED = {"compared": "assert f() == 2", "judged": "x = 2\nassert f() == x"}


@pytest.fixture(scope="module")
def found_of_forged():
    return together({(name, how): ((FORGED[name][0], [ASKED[how]] * 2), {}) for name in FORGED for how in ASKED})


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("how", ASKED)
def test_frames_carry_no_verdict(name, how, found_of_forged):
    causes, found = FORGED[name][1], found_of_forged[name, how]
    if (name, how) == ("a broken value", "judged"):
        causes = ["error", "error"]  # the name `f` itself has no value that can be read
    assert found.causes == causes, found.notes


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(600)"], ids=["busy", "asleep"])
def test_time(body, monkeypatch):
    monkeypatch.setattr("rft.code.solution.wall_seconds", lambda pool, seconds: 3.0)
    program = f"def f(x):\n    if x: return x\n    {body}"
    found = verdicts(
        program, ["assert f(1) == 1", "assert f(0) == 1", "x = 0\nassert f(x)", "assert f(2) == 2"], seconds=0.5
    )
    last = "timeout" if body.startswith("import") else "passed"  # two that slept are enough
    assert found.causes == ["passed", "timeout", "timeout", last]
    assert verdicts(body, ["assert f() == 1"] * 3, seconds=0.5).causes == ["timeout"] * 3


def test_a_judge_that_a_value_keeps_busy(monkeypatch):
    monkeypatch.setattr(judge, "JUDGE_SECONDS", 0.5)
    tests = ["assert sum(f(1)) == 0", "assert [*f(0)] == []"]
    assert verdicts("def f(x): return range(x * 10**12)", tests, seconds=1.0).causes == ["timeout", "passed"]


def test_sandboxes_of_a_list_are_bounded(monkeypatch):
    monkeypatch.setattr(judge, "MAX_ENDED", 3)
    program = "import os\ndef f(x): return x or os._exit(1)"
    tests = [f"assert f({x}) == {x}" for x in (0, 1, 0, 2, 0, 3)]
    assert verdicts(program, tests).causes == ["error", "passed", "error", "passed", "error", "error"]


def test_who_sleeps_twice_is_not_asked_again(monkeypatch):
    monkeypatch.setattr("rft.code.solution.wall_seconds", lambda pool, seconds: 3.0)
    found = verdicts(
        "import time\ndef f(x): return x or time.sleep(99)", [f"assert f({x}) == {x}" for x in (0, 1, 0, 2)]
    )
    assert found.causes == ["timeout", "passed", "timeout", "timeout"]
    scripts = [{"input": x, "output": x} for x in ("0", "1", "0", "2")]
    program = "import time\nprint(int(input()) or time.sleep(99))"
    found = run(lambda pool: verify_stdio(pool, program, scripts))
    assert found.causes == ["timeout", "passed", "timeout", "timeout"]


def test_stdio():
    program = (
        "import sys, os\nline = input()\n"
        "if line == 'exit': print(1); sys.stdout.flush(); os._exit(0)\n"
        "if line == 'status': print(1); sys.exit(3)\n"
        "if line == 'raise': print(1); 1 / 0\n"
        "if line == 'leave': print(1); exit()\n"
        "if line == 'noise': print('2', file=sys.stderr)\n"
        "if line == 'much': print('x' * 300_000)\n"
        "print(sum(map(int, sys.stdin.read().split())), '')"
    )
    tests = {
        ("add\n1 2\n3\n", "6"): "passed",
        ("add\n1 2\n", "3  \n\n\n"): "passed",
        ("add\n1 2\n", " 3"): "failed",
        ("add\n1 2\n", "4"): "failed",
        ("add\n1 2\n", ""): "failed",
        ("exit", "1"): "passed",
        ("leave", "1"): "passed",
        ("status", "1"): "error",
        ("raise", "1"): "error",
        ("noise", "0"): "passed",
        ("much", "x" * 300_000 + "\n0\n"): "passed",
        ("", "0"): "error",
    }
    given = [{"input": given, "output": wanted} for given, wanted in tests]
    found = run(lambda pool: verify_stdio(pool, program, given, seconds=10.0))
    assert dict(zip(tests, found.causes, strict=True)) == tests, found.notes


@pytest.mark.parametrize(
    "program, cause",
    [
        ("def f(:", "compile_error"),
        ("while True: pass", "timeout"),
        ("import os; print(1, flush=True); import ctypes; ctypes.string_at(0)", "killed"),
        ("while True: print('x' * 1000)", "killed"),
        ("import os; print(1, flush=True); os.write(4, b'\\0\\0\\0\\1N'); os._exit(0)", "error"),
    ],
)
def test_stdio_ends(program, cause):
    tests = [{"input": "", "output": "1"}] * 2
    found = run(lambda pool: verify_stdio(pool, program, tests, seconds=1.0))
    assert found.causes == [cause, cause], found.notes


def test_the_tool():
    async def job(pool):
        return [
            await execute(pool, code, 2.0) for code in ("print(6 * 7)", "print(1)\n1 / 0", "while True: pass", "x =")
        ]

    right, raised, busy, broken = run(job)
    assert right == {"output": "42\n", "error": "", "success": True}
    assert raised["output"] == "1\n" and "ZeroDivisionError" in raised["error"] and not raised["success"]
    assert busy["error"].startswith("timeout") and not busy["success"]
    assert broken["error"].startswith("compile_error")


def test_at_once_answers_are_not_mixed_up():
    async def job(pool):
        jobs = [
            verify(pool, f"def f(): return {n}", [f"assert f() == {n}", f"x = {n}\nassert f() == x"]) for n in range(12)
        ]
        return await asyncio.gather(*jobs)

    assert [each.causes for each in run(job)] == [["passed", "passed"]] * 12


def test_a_cancelled_verification_frees_its_slots():
    async def job(pool):
        for _ in range(5):
            task = asyncio.create_task(
                verify(pool, "def f():\n    while True: pass", ["x = 1\nassert f()"], seconds=60.0)
            )
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await verify(pool, "def f(): return 1", ["assert f()"])

    assert run(job).causes == ["passed"]


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_is_not_lost_in_news_of_the_program(turns):
    """A client may go at the very moment when its program sends a part of a frame."""

    async def job(pool):
        sandbox = await pool.acquire("solution")
        await sandbox.receive(cpu_seconds=60, wall_seconds=60, max_bytes=100)
        task = asyncio.create_task(sandbox.receive(cpu_seconds=60, wall_seconds=60, max_bytes=100))
        await asyncio.sleep(0.01)
        sandbox._news.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=20)
        await sandbox.close()
        return bool(done) and task.cancelled()

    assert run(job)
