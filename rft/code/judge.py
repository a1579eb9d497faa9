"""Verdicts on a program of the model: the data set's tests, asked of a sandbox that holds the program alone.

Three parties. The program runs in a solution sandbox, which sees the arguments of one call at a time. A test that
states one call and its literal value is compared here; any other runs in a judge sandbox, which never sees the program,
and whose calls of it pass through here. Nothing of the program is ever more than a value: a verdict is the comparison
made here or the judge's own record.

A program that keeps count of its calls could answer by their order only if it knew the expected values; it never does.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from rft.code import match, values
from rft.code.sandbox import Pool, SandboxError, Stuck
from rft.code.script import run_script
from rft.code.solution import NOTHING, Failed, Solution, cause_of, started, text, wall_seconds

JUDGE_SECONDS = 10.0  # CPU seconds of the judge itself a test, beyond those that the program has
LARGE = 1 << 16  # bytes of a value
MAX_ENDED = 9  # tests of one list that may end their sandbox, each by up to its whole time
MAX_ASLEEP = 2  # of them by the wall clock, which is several times that: a program that sleeps holds a slot for nothing


@dataclass
class Verdicts:
    """One entry a test, in the order of the tests.

    results: 1 passed, 0 not. runtimes: CPU seconds of the program. causes: "passed" "failed" "error" "timeout" "killed"
    "unsupported" "compile_error". notes: what was wrong, for people; it may be the program's own words. isolation: the
    pool's level.
    """

    isolation: str
    results: list[int] = field(default_factory=list)
    runtimes: list[float] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, cause: str, seconds: float, note: str = "") -> None:
        """The verdict on the next test."""
        self.results.append(int(cause == "passed"))
        self.runtimes.append(round(seconds, 6))
        self.causes.append(cause)
        self.notes.append(note[:500].encode("utf-8", "replace").decode())


class _Patience:
    """Whether the remaining tests are still run after one that ended its sandbox."""

    def __init__(self):
        self.ended = self.asleep = 0

    def is_over(self, failed: Failed) -> bool:
        self.ended += 1
        self.asleep += isinstance(failed.__cause__, Stuck)
        return failed.at_import or self.ended >= MAX_ENDED or self.asleep >= MAX_ASLEEP


async def verify(
    pool: Pool,
    program: str,
    tests: list[str],
    *,
    setup: str = "",
    entry_point: str | None = None,
    seconds: float = 5.0,
) -> Verdicts:
    """Run each test against the program.

    A test is Python source that raises nothing if the program is right; it runs in a namespace of its own, behind
    `setup`. `candidate` is the entry point, and a test that defines `check` without calling it has it called with the
    entry point. Other names that neither test nor setup nor builtins define are the program's: a helper that compares
    belongs into `setup`, or the program would supply it. A test has `seconds` of the program's CPU time; the import of
    the program counts for the first test of a sandbox. A test that ends the sandbox (by time, memory, exit, a broken
    frame) leaves a fresh one to the next; after MAX_ENDED of them, MAX_ASLEEP that slept beyond the wall clock, or one
    at the import, the remaining tests are not run and have the same cause.

    Raises IsolationError, and what starting a sandbox raises: never a verdict.
    """
    verdicts, patience = Verdicts(pool.level), _Patience()
    async with AsyncExitStack() as stack:
        solution = Solution(pool, program, seconds)
        stack.push_async_callback(solution.close)
        judge = _Judge(pool, seconds)
        stack.push_async_callback(judge.close)
        for test in tests:
            checks = match.checks(test, setup, entry_point)
            try:
                await solution.begin()
                if checks is not None:
                    cause, note = await _compare(solution, checks)
                else:
                    cause, note = await judge.run(solution, setup, test, entry_point)
            except Failed as failed:
                await solution.close()
                await judge.close()  # who waits for a sandbox holds none, or two could wait for each other
                cause, note = failed.cause, failed.note
                if patience.is_over(failed):
                    verdicts.add(cause, solution.used, note)
                    return _filled(verdicts, len(tests))
            verdicts.add(cause, solution.used, note)
    return verdicts


def _filled(verdicts: Verdicts, count: int) -> Verdicts:
    """The last cause for the tests that are not run."""
    while len(verdicts.results) < count:
        verdicts.add(verdicts.causes[-1], 0.0, verdicts.notes[-1])
    return verdicts


async def _compare(solution: Solution, checks: list[match.Check]) -> tuple[str, str]:
    """The cause and a note for a test that needs no judge."""
    for check in checks:
        try:
            holds, note = await _check(solution, check)
        except (values.TooLarge, values.Unsupported) as error:
            return "unsupported", f"arguments: {error}"
        if note:
            return holds, note
        if not holds:
            return "failed", f"{check.function} gives another value"
    return "passed", ""


async def _check(solution: Solution, check: match.Check) -> tuple[bool | str, str]:
    """Whether one assertion holds, or a cause and a note where the program gave no value to say it of."""
    truth = check.relation in ("true", "false")
    # What equals the expected value has as many nodes: more are never built here.
    limit = values.MAX_NODES if truth else values.nodes(check.expected)
    kind, body, _ = await solution.ask("function", check.function, check.arguments, check.keywords)
    try:
        value = await _decoded(body, limit) if kind == "value" else None
        if truth and isinstance(value, values.Handle):  # such as a match of a pattern
            kind, body, _ = await solution.ask("truth", value)
            value = values.decode(body, max_nodes=1) if kind == "value" else None
    except (values.TooLarge, values.Malformed, values.Unsupported) as error:
        return "failed", str(error)
    if kind != "value":
        return "error" if kind == "raised" else "unsupported", text(body)
    if isinstance(value, values.Handle):
        return "unsupported", "an object that is no data"
    return _holds(check, value), ""


async def _decoded(body: bytes, limit: int) -> object:
    """The value, read beside the event loop where that takes long."""
    if len(body) < LARGE:
        return values.decode(body, values.Handle, limit)
    return await asyncio.to_thread(values.decode, body, values.Handle, limit)


def _holds(check: match.Check, value: Any) -> bool:
    if check.relation == "equal":
        return values.same(value, check.expected)
    if check.relation == "is":
        return value is check.expected
    return bool(value) is (check.relation == "true")


class _Judge:
    """A judge sandbox, started when a test first needs one; it runs the tests of one program, one after another."""

    def __init__(self, pool: Pool, seconds: float):
        self.pool, self.sandbox, self.seconds = pool, None, JUDGE_SECONDS + seconds

    async def close(self) -> None:
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.close()

    async def run(self, solution: Solution, setup: str, test: str, entry_point: str | None) -> tuple[str, str]:
        """The cause and a note for one test. Raises Failed where one of the two sandboxes has ended."""
        if self.sandbox is None:
            self.sandbox = await started(self.pool, "judge")
        try:
            used = self.sandbox.cpu_seconds()
            await self.sandbox.send(values.encode((setup, test, entry_point)))
            while True:
                frame = await self.sandbox.receive(
                    cpu_seconds=max(0.0, self.seconds - self.sandbox.cpu_seconds() + used),
                    wall_seconds=wall_seconds(self.pool, self.seconds),
                    max_bytes=values.MAX_BYTES,
                )
                word, *rest = values.decode(frame, values.Handle)
                if word == "verdict":
                    cause, note = rest
                    return cause, note
                await self.sandbox.send(values.encode(await _forwarded(solution, rest)))
        except SandboxError as error:  # values of the program can make a test run long or use much memory
            raise Failed(cause_of(error), f"the judge: {type(error).__name__}: {error}") from error


async def _forwarded(solution: Solution, request: list[Any]) -> tuple[str, bytes, bytes]:
    try:
        return await solution.ask(*request)
    except (values.TooLarge, values.Unsupported) as error:
        return "unsupported", values.encode(f"arguments: {error}"), NOTHING


async def verify_stdio(pool: Pool, program: str, tests: list[dict[str, str]], *, seconds: float = 5.0) -> Verdicts:
    """Run the program as a script once a test, in a sandbox of its own, and compare what it printed.

    A test is {"input": text, "output": text}. The program passes if it ends with status 0 (its own `os._exit(0)` too)
    and its standard output has the expected lines, white space at the end of lines and empty lines at the end apart, as
    contest judges compare. Tests are left out as in `verify`.
    """
    verdicts, patience = Verdicts(pool.level), _Patience()
    for test in tests:
        solution = Solution(pool, program, seconds, module="__main__")
        try:
            output, error = await run_script(solution, test["input"].encode("utf-8", "surrogatepass"))
            expected = lines(test["output"].encode("utf-8", "surrogatepass"))
            if error:
                verdicts.add("error", solution.used, error)
            elif lines(output) != expected:
                verdicts.add("failed", solution.used, "another output")
            else:
                verdicts.add("passed", solution.used)
        except Failed as failed:
            verdicts.add(failed.cause, solution.used, failed.note)
            if patience.is_over(failed):
                return _filled(verdicts, len(tests))
        finally:
            await solution.close()
    return verdicts


def lines(output: bytes) -> list[bytes]:
    """What of an output is compared."""
    return [line.rstrip() for line in output.rstrip().split(b"\n")]
