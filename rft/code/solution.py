"""A program of the model in its sandbox, as the server sees it: requests, answers, the time of a test, restarts."""

import os
import secrets
import time
from typing import Any

from rft.code import values
from rft.code.sandbox import Died, IsolationError, Pool, Sandbox, SandboxError, Stuck, TimedOut

START_SECONDS = 60.0  # CPU and wall; for an interpreter that takes tens of milliseconds
NOTHING = values.encode(None)


class Failed(Exception):
    """The program cannot answer any more. `cause` as in Verdicts; `at_import`: before any test could ask."""

    def __init__(self, cause: str, note: str, at_import: bool = False):
        super().__init__(f"{cause}: {note}")
        self.cause, self.note, self.at_import = cause, note, at_import


def cause_of(error: SandboxError) -> str:
    """The cause of a verdict for what ended a sandbox: an exit of its own is an error, a signal or a limit kills."""
    if isinstance(error, TimedOut | Stuck):
        return "timeout"
    return "error" if isinstance(error, Died) and error.cause.startswith("exit status") else "killed"


def wall_seconds(pool: Pool, seconds: float) -> float:
    """Seconds of the wall clock after which a program that has `seconds` of CPU time is taken to sleep.

    With every slot busy a program has cores / slots of a core; twice the time which that makes, and never under four
    times and 5 seconds.
    """
    return 5.0 + seconds * max(4.0, 2.0 * pool.slots / (os.cpu_count() or 1))


async def started(pool: Pool, role: str) -> Sandbox:
    """A sandbox whose interpreter is ready. One that does not get there is the machine's failure: IsolationError."""
    sandbox = await pool.acquire(role)
    try:
        hello = await sandbox.receive(cpu_seconds=START_SECONDS, wall_seconds=START_SECONDS, max_bytes=100)
        if hello != values.encode("ready"):
            raise IsolationError(f"the {role} sandbox began with {hello[:50]!r}")
    except SandboxError as error:
        said = bytes(sandbox.output[-500:]).decode("utf-8", "replace")
        await sandbox.close()
        raise IsolationError(f"the {role} sandbox did not start: {type(error).__name__}: {error}; {said}") from error
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


class Solution:
    """One program, in a fresh sandbox whenever the last one was used up.

    Args:
        seconds: CPU seconds that a test has
        module: name of the module that the program runs in
    """

    def __init__(self, pool: Pool, program: str, seconds: float, module: str = "solution"):
        self.pool, self.program, self.seconds, self.module = pool, program, seconds, module
        self.sandbox: Sandbox | None = None
        self.used = 0.0  # CPU seconds of the test that runs
        self._from = self._wall_left = 0.0

    async def begin(self, as_script: bool = False) -> None:
        """Begin a test and its time. A fresh sandbox compiles the program and, unless it is a script, imports it."""
        self.used = 0.0
        if self.sandbox is not None:
            return self._begin()
        self.sandbox = await started(self.pool, "solution")
        self._begin()
        try:
            await self._compile()
            kind, body, _ = ("nothing", NOTHING, NOTHING) if as_script else await self.ask("start")
        except Failed as error:
            raise Failed(error.cause, error.note, True) from error
        if kind == "raised":
            raise Failed("error", f"the import of the program raised {text(body)}", True)

    def _begin(self) -> None:
        self.used, self._from = 0.0, self.sandbox.cpu_seconds()
        self._wall_left = wall_seconds(self.pool, self.seconds)

    async def _compile(self) -> None:
        """In the sandbox, since the parser can be made to crash."""
        try:
            kind, body, _ = await self.ask("compile", self.program, self.module)
        except values.TooLarge as error:
            raise Failed("compile_error", str(error)) from error
        except Failed as error:
            raise Failed("timeout" if error.cause == "timeout" else "compile_error", error.note) from error
        if kind == "compile_error":
            raise Failed("compile_error", text(body))

    async def ask(self, operation: str, *arguments: Any) -> tuple[str, bytes, bytes]:
        """The answer to one request: its kind, the bytes of the value, the bytes of the changed arguments.

        Raises Failed, and values.TooLarge or Unsupported for arguments that cannot be sent.
        """
        number = secrets.randbits(60)
        await self.sandbox.send(values.encode((number, operation, *arguments)))
        return answer(await self.receive(), number)

    async def receive(self) -> bytes:
        """The next frame, within what is left of the test's time."""
        began = time.monotonic()
        try:
            return await self.sandbox.receive(
                cpu_seconds=max(0.0, self.seconds - self.used),
                wall_seconds=max(0.0, self._wall_left),
                max_bytes=values.MAX_BYTES,
            )
        except SandboxError as error:
            raise Failed(cause_of(error), f"{type(error).__name__}: {error}") from error
        finally:
            self._wall_left -= time.monotonic() - began
            self.used = self.sandbox.cpu_seconds() - self._from

    async def close(self) -> None:
        """End the sandbox; the next test has a fresh one."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.close()


def answer(frame: bytes, number: int) -> tuple[str, bytes, bytes]:
    """The parts of an answer to the request of that number; Failed for a frame that is none."""
    try:
        parts = values.decode(frame, max_nodes=5)
    except (values.TooLarge, values.Malformed, values.Unsupported) as error:
        raise Failed("error", f"the frame of an answer is broken: {error}") from error
    if type(parts) is not tuple or [type(part) for part in parts] != [int, str, bytes, bytes]:
        raise Failed("error", "the frame of an answer has another form")
    if parts[0] != number:
        raise Failed("error", "a frame that answers no request")
    return parts[1:]


def text(body: bytes) -> str:
    """What the solution's sandbox says, whatever it is, for people."""
    try:
        value = values.decode(body, max_nodes=50)
        if type(value) is tuple and len(value) == 3:  # the form of an exception: known classes, text, its own class
            return f"{value[2]}: {value[1]}"[:500]
        return str(value)[:500]
    except (ValueError, TypeError):  # an integer of many digits has no text either
        return "unreadable"
