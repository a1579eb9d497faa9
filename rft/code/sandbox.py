"""Sandboxes for programs that nobody vouches for, and a pool that has them started before they are needed."""

import asyncio
import os
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rft.code.isolation.boot import READY
from rft.code.isolation.limits import IsolationError, Limits
from rft.code.isolation.process import LEVELS, Process
from rft.code.isolation.python import Staged, stage

__all__ = ["Died", "IsolationError", "Limits", "Pool", "Sandbox", "SandboxError", "Stuck", "TimedOut", "TooLarge"]
INSIDE = Path(__file__).with_name("inside")
WARM = {"solution": 4, "judge": 1}  # started ahead of need; other roles: 1
PAUSE = 0.01  # seconds, the shortest time between two looks at the CPU time
STARTED = 60  # seconds for one sandbox to be built on a machine with much else to do
GRACE = 0.2  # seconds that a program has to end after it closed its channel, so that the cause is its own


class SandboxError(Exception):
    """What a program did that ends its sandbox; the sandbox is dead afterwards."""


class TimedOut(SandboxError):
    """The program used up its CPU time."""


class Stuck(SandboxError):
    """The program did not answer within the wall-clock limit."""


class TooLarge(SandboxError):
    """A frame, or what the program printed, is larger than allowed."""


class Died(SandboxError):
    """The program ended or closed its channel without an answer; `cause` says how."""

    def __init__(self, cause: str):
        super().__init__(cause)
        self.cause = cause


class Sandbox:
    """A process tree for one program, never used for another. Made by `Pool.acquire`.

    Frames go both ways: 4 bytes of length, big-endian, then the payload. Inside, they come on fd 3 and leave on fd 4.
    """

    def __init__(self, process: Process, limits: Limits):
        self.process, self.limits = process, limits
        self.output = bytearray()  # what the program printed so far, stdout and stderr as they came
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._sending, self._received = bytearray(), bytearray()
        self._ended = 0.0  # when its channel was closed
        self._exited = self._overflow = False
        self._wanted = 4  # bytes of the next frame with its length, as far as known
        self._news = asyncio.Event()
        self._cpu_at_send = 0.0
        self._stands = self._loop.create_future()
        self.on_close: list[Callable[[], None]] = []
        for fd, reader in ((process.read_fd, self._read_frames), (process.output_fd, self._read_output)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, reader)
        os.set_blocking(process.write_fd, False)
        self._loop.add_reader(process.pidfd, self._process_ended)

    async def stands(self) -> None:
        """Wait until the sandbox is built.

        Raises:
            IsolationError: it cannot be, here or now
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._stands), STARTED)
        except TimeoutError:
            raise IsolationError(f"a sandbox of level {self.process.level} took over {STARTED} s to start") from None

    async def send(self, payload: bytes) -> None:
        """Queue one frame; it is written while the program reads. Never waits for the program, raises nothing of it."""
        self._cpu_at_send = self.cpu_seconds()
        if not self._sending:
            self._loop.add_writer(self.process.write_fd, self._write_frames)
        self._sending += len(payload).to_bytes(4, "big") + payload
        self._write_frames()

    async def receive(self, *, cpu_seconds: float, wall_seconds: float, max_bytes: int) -> bytes:
        """The next frame.

        Args:
            cpu_seconds: CPU seconds that the whole tree may use from the last `send` on
            wall_seconds: seconds of the wall clock that this call waits at most
            max_bytes: length of the payload at most

        Raises:
            TimedOut, Stuck, Died, TooLarge: the program's doing; the sandbox is of no use afterwards, close it
        """
        deadline = time.monotonic() + wall_seconds
        while True:
            self._news.clear()
            if self._overflow:
                raise TooLarge(f"printed more than {self.limits.output_bytes} bytes")
            frame = self._frame(max_bytes)
            used = self.cpu_seconds() - self._cpu_at_send
            if used > cpu_seconds:
                raise TimedOut(f"used {used:.2f} s of CPU time, {cpu_seconds:g} s are allowed")
            if frame is not None:
                return frame
            if self._exited or (self._ended and time.monotonic() - self._ended > GRACE):
                raise Died(self.process.cause() or "closed its channel")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Stuck(f"no answer in {wall_seconds:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._news.wait(), min(left, PAUSE if self._ended else max(PAUSE, (cpu_seconds - used) / 2))
                )

    @property
    def ended(self) -> bool:
        """Whether the program is gone or closed its channel."""
        return bool(self._ended)

    def cpu_seconds(self) -> float:
        """CPU seconds that the whole tree has used, start included, read from outside."""
        return self.process.cpu_seconds()

    async def close(self) -> None:
        """Kill what runs, wait for its end, remove all it left. May be called twice."""
        if self.closed:
            return
        self.closed = True
        process = self.process
        process.kill()
        for fd in (process.read_fd, process.output_fd):
            self._loop.remove_reader(fd)
        self._loop.remove_writer(process.write_fd)
        exited = self._loop.create_future()
        self._loop.remove_reader(process.pidfd)
        self._loop.add_reader(process.pidfd, lambda: exited.done() or exited.set_result(None))
        try:
            await asyncio.shield(exited)
        finally:
            self._loop.remove_reader(process.pidfd)
            process.reap()
            for action in self.on_close:
                action()

    def _frame(self, max_bytes: int) -> bytes | None:
        if len(self._received) < 4:
            return None
        length = int.from_bytes(self._received[:4], "big")
        if length > max_bytes:
            raise TooLarge(f"a frame of {length} bytes, {max_bytes} are allowed")
        if len(self._received) < 4 + length:
            self._wanted = 4 + length
            if not self._ended:
                self._loop.add_reader(self.process.read_fd, self._read_frames)
            return None
        frame = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        self._wanted = 4
        return frame

    def _read_frames(self) -> None:
        try:
            part = os.read(self.process.read_fd, 1 << 16)
        except BlockingIOError:
            return
        self._received += part
        if not self._stands.done():
            self._check_stands()
        if not part:
            self._ended = time.monotonic()
        if not part or len(self._received) >= max(self._wanted, 1 << 16):  # nobody asked for more: let the program wait
            self._loop.remove_reader(self.process.read_fd)
        if not part or len(self._received) >= self._wanted:
            self._news.set()

    def _check_stands(self) -> None:
        if self._received[:1] == READY:
            del self._received[:1]
            self.process.stands()
            self._stands.set_result(None)
        elif self._exited or self._received:
            said = bytes(self.output).decode(errors="replace").strip() or self.process.cause()
            self._stands.set_exception(IsolationError(f"no sandbox of level {self.process.level}: {said}"))

    def _read_output(self) -> None:
        try:
            part = os.read(self.process.output_fd, 1 << 16)
        except BlockingIOError:
            return
        if not part or not self._keep(part):
            self._loop.remove_reader(self.process.output_fd)

    def _keep(self, part: bytes) -> bool:
        room = self.limits.output_bytes - len(self.output)
        self.output += part[:room]
        if len(part) > room:
            self._overflow = True
            self._news.set()
        return not self._overflow

    def _write_frames(self) -> None:
        try:
            del self._sending[: os.write(self.process.write_fd, self._sending[: 1 << 16])]
        except BlockingIOError:
            return
        except BrokenPipeError:  # `receive` says that the program is gone
            self._sending.clear()
        if not self._sending:
            self._loop.remove_writer(self.process.write_fd)

    def _process_ended(self) -> None:
        self._loop.remove_reader(self.process.pidfd)
        if not self.closed:
            with suppress(BlockingIOError):
                while part := os.read(self.process.read_fd, 1 << 16):
                    self._received += part
                    if len(self._received) > 1 << 24:
                        break
            with suppress(BlockingIOError):
                while (part := os.read(self.process.output_fd, 1 << 16)) and self._keep(part):
                    pass
        self._ended, self._exited = time.monotonic(), True
        if not self._stands.done():
            self._check_stands()
        self._news.set()


class Pool:
    """Sandboxes started ahead of need; `slots` of a role are alive at most, and who asks first is served first.

    Args:
        slots: sandboxes of one role (the solutions, the judges) alive at a time
        level: "namespaces" | "landlock" | "none"; None takes the best that this machine can do
        allow_unsafe: accept level "none", where a program can do all that the server can
        limits: what one program may use
        inside: folder of the programs `<role>.py` that speak for the sandbox

    Raises:
        IsolationError: the level asked for is not to be had, or it is "none" without allow_unsafe
    """

    def __init__(
        self,
        slots: int = 12,
        level: str | None = None,
        allow_unsafe: bool = False,
        *,
        limits: Limits | None = None,
        inside: Path = INSIDE,
    ):
        if level not in (None, *LEVELS):
            raise IsolationError(f"level {level!r}: there are {', '.join(LEVELS)}")
        if level == "none" and not allow_unsafe:
            raise IsolationError("level none: programs could do all that this process can; allow_unsafe accepts that")
        self.slots, self.level, self.limits = slots, level, limits or Limits()
        self.why_not: dict[str, str] = {}  # the better levels, and why this machine has them not
        self._inside, self._allow_unsafe = inside, allow_unsafe
        self._staged: Staged | None = None
        self._free: dict[str, asyncio.Semaphore] = {}  # of a role; it is fair
        self._used: Counter[str] = Counter()
        self._warm: dict[str, deque[Sandbox]] = {}
        self._all: set[Sandbox] = set()
        self._leaving = False

    async def __aenter__(self) -> "Pool":
        self._staged = await asyncio.to_thread(stage, self._inside)
        try:
            for level in (self.level,) if self.level else LEVELS[: 3 if self._allow_unsafe else 2]:
                try:
                    await self._try(level)
                except IsolationError as error:
                    self.why_not[level] = str(error)
                else:
                    self.level = level
                    return self
            reasons = "\n".join(f"  {level}: {reason}" for level, reason in self.why_not.items())
            raise IsolationError(f"this machine cannot isolate programs:\n{reasons}")
        except BaseException:
            os.close(self._staged.lock)
            raise

    async def __aexit__(self, *_) -> None:
        self._leaving = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._all)))
        os.close(self._staged.lock)

    async def acquire(self, role: str) -> Sandbox:
        """A fresh sandbox whose program is inside/<role>.py. Close it after use: its slot is free then.

        Raises:
            IsolationError: no sandbox could be started
        """
        if role not in self._free:
            self._free[role], self._warm[role] = asyncio.Semaphore(self.slots), deque()
        await self._free[role].acquire()
        self._used[role] += 1
        sandbox = None
        try:
            while self._warm[role] and not sandbox:
                sandbox = self._warm[role].popleft()
                if sandbox.ended:  # killed for memory, say
                    await sandbox.close()
                    sandbox = None
            sandbox = sandbox or self._start(role, self.level)
            self._fill(role)
            await sandbox.stands()
        except BaseException:
            if sandbox:
                await sandbox.close()
            self._freed(role)
            raise
        sandbox.on_close.append(lambda: self._freed(role))
        return sandbox

    async def _try(self, level: str) -> None:
        sandbox = self._start("", level)
        try:
            await sandbox.stands()
        finally:
            await sandbox.close()

    def _start(self, role: str, level: str) -> Sandbox:
        try:
            sandbox = Sandbox(Process(level, role, self.limits, self._staged), self.limits)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise IsolationError(f"no sandbox of level {level}: {error}") from error
        self._all.add(sandbox)
        sandbox.on_close.append(lambda: self._all.discard(sandbox))
        return sandbox

    def _fill(self, role: str) -> None:
        """Start what will be asked for next, as far as slots are free."""
        warm = self._warm[role]
        with suppress(IsolationError):  # who asks for it will be told
            while len(warm) < min(WARM.get(role, 1), self.slots - self._used[role]):
                warm.append(self._start(role, self.level))

    def _freed(self, role: str) -> None:
        self._used[role] -= 1
        self._free[role].release()
        if not self._leaving:
            self._fill(role)
