"""Sandboxes for programs that nobody vouches for, and a pool that has them started before they are needed."""

import asyncio
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

INSIDE = Path(__file__).with_name("inside")
WARM = {"solution": 4, "judge": 1}  # started ahead of need; other roles: 1
PAUSE = 0.01  # seconds, the shortest time between two looks at the CPU time
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


class IsolationError(RuntimeError):
    """This machine cannot isolate a program, or a sandbox could not be started: never the program's doing."""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    memory_bytes: int = 1 << 30  # address space
    tmp_bytes: int = 64 << 20  # files in /tmp, all together
    processes: int = 64  # threads; the program may start no other process
    open_files: int = 128
    output_bytes: int = 8 << 20  # printed on stdout and stderr together


class Sandbox:
    """A process tree for one program, never used for another. Made by `Pool.acquire`.

    Frames go both ways: 4 bytes of length, big-endian, then the payload. Inside, they come on fd 3 and leave on fd 4.
    """

    def __init__(self, process: "Process", limits: Limits):
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
        self._on_close = []
        for fd, reader in ((process.read_fd, self._read_frames), (process.output_fd, self._read_output)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, reader)
        os.set_blocking(process.write_fd, False)
        self._loop.add_reader(process.pidfd, self._process_ended)

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
            for action in self._on_close:
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
        if not part:
            self._ended = time.monotonic()
        if not part or len(self._received) >= max(self._wanted, 1 << 16):  # nobody asked for more: let the program wait
            self._loop.remove_reader(self.process.read_fd)
        if not part or len(self._received) >= self._wanted:
            self._news.set()

    def _read_output(self) -> None:
        try:
            part = os.read(self.process.output_fd, 1 << 16)
        except BlockingIOError:
            return
        self.output += part
        if len(self.output) > self.limits.output_bytes:
            del self.output[self.limits.output_bytes :]
            self._overflow = True
            self._news.set()
        if not part or self._overflow:
            self._loop.remove_reader(self.process.output_fd)

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
        self._ended, self._exited = time.monotonic(), True
        self._news.set()


class Process:
    """A started program at level "none": its pid, its ends of the pipes."""

    def __init__(self, role: str, inside: Path, limits: Limits):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        output, theirs_print = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        theirs = [_high(fd) for fd in (null, theirs_print, theirs_print, theirs_in, theirs_out)]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(inside / f"{role}.py")],
                {"PYTHONUTF8": "1"},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)],
                setsid=True,
            )
        finally:
            for fd in (*theirs, null, theirs_print, theirs_in, theirs_out):
                os.close(fd)
        self.read_fd, self.write_fd, self.output_fd = ours_in, ours_out, output
        self.pidfd = os.pidfd_open(self.pid)
        self._cpu = 0.0
        self._status = None

    def cpu_seconds(self) -> float:
        """CPU seconds of the process, threads included (its clock, see clock_getcpuclockid(3))."""
        with suppress(OSError):
            self._cpu = time.clock_gettime(~self.pid << 3 | 2)
        return self._cpu

    def cause(self) -> str:
        """How it ended, in words; empty while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return ""
            self._status = os.waitstatus_to_exitcode(status)
        return f"exit status {self._status}" if self._status >= 0 else signal.Signals(-self._status).name

    def kill(self) -> None:
        """Kill all of it."""
        if self._status is None:
            self.cpu_seconds()
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Take note of its end and close the pipes."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for fd in (self.read_fd, self.write_fd, self.output_fd, self.pidfd):
            os.close(fd)


def _high(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


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
        self.slots, self.level, self.limits, self.inside = slots, level or "none", limits or Limits(), inside
        if self.level == "none" and not allow_unsafe:
            raise IsolationError(
                "no isolation: pass allow_unsafe to run programs that can do all that this process can"
            )
        self._alive: dict[str, int] = {}
        self._warm: dict[str, deque[Sandbox]] = {}
        self._waiting: dict[str, deque[asyncio.Future]] = {}
        self._used: set[Sandbox] = set()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_) -> None:
        warm = [sandbox for sandboxes in self._warm.values() for sandbox in sandboxes]
        self._warm = {}
        await asyncio.gather(*(sandbox.close() for sandbox in (*warm, *self._used)))

    async def acquire(self, role: str) -> Sandbox:
        """A fresh sandbox whose program is inside/<role>.py. Close it after use: its slot is free then."""
        waiting = self._waiting.setdefault(role, deque())
        while not (warm := self._warm.setdefault(role, deque())) and self._alive.get(role, 0) >= self.slots:
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            await turn
        sandbox = warm.popleft() if warm else self._start(role)
        self._used.add(sandbox)
        self._fill(role)
        return sandbox

    def _start(self, role: str) -> Sandbox:
        self._alive[role] = self._alive.get(role, 0) + 1
        sandbox = Sandbox(Process(role, self.inside, self.limits), self.limits)
        sandbox._on_close.append(lambda: self._freed(role, sandbox))
        return sandbox

    def _fill(self, role: str) -> None:
        warm = self._warm.setdefault(role, deque())
        while len(warm) < WARM.get(role, 1) and self._alive[role] < self.slots:
            warm.append(self._start(role))

    def _freed(self, role: str, sandbox: Sandbox) -> None:
        self._alive[role] -= 1
        self._used.discard(sandbox)
        waiting = self._waiting.get(role, ())
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
