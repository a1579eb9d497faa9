"""The channel to one sandboxed program: frames, what it printed, its CPU time, its end."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress

from rft.code.isolation.boot import READY
from rft.code.isolation.limits import IsolationError, Limits
from rft.code.isolation.process import Process

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
        self._stands.add_done_callback(asyncio.Future.exception)  # of a warm one nobody may ask
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
            async with asyncio.timeout(STARTED):
                await asyncio.shield(self._stands)
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
            with suppress(TimeoutError):  # wait_for of Python 3.11 loses a cancellation that comes with the news
                async with asyncio.timeout(min(left, PAUSE if self._ended else max(PAUSE, (cpu_seconds - used) / 2))):
                    await self._news.wait()

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
        length = int.from_bytes(self._received[:4], "big")
        if length > max_bytes:
            raise TooLarge(f"a frame of {length} bytes, {max_bytes} are allowed")
        if len(self._received) < 4 + length:  # its head too, where a large frame before it ended the reading
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
