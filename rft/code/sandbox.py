"""Sandboxes for programs that nobody vouches for, and a pool that has them started before they are needed."""

import asyncio
import os
import subprocess
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rft.code.isolation.channel import Died, Sandbox, SandboxError, Stuck, TimedOut, TooLarge
from rft.code.isolation.limits import IsolationError, Limits
from rft.code.isolation.process import LEVELS, Process
from rft.code.isolation.python import Staged, stage

__all__ = ["Died", "IsolationError", "Limits", "Pool", "Sandbox", "SandboxError", "Stuck", "TimedOut", "TooLarge"]

INSIDE = Path(__file__).with_name("inside")
WARM = {"solution": 4, "judge": 1}  # started ahead of need; other roles: 1


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
        self._warm: dict[str, deque[asyncio.Task[Sandbox]]] = {}
        self.starts = 0  # of sandboxes, so far
        self._all: set[Sandbox] = set()
        self._starting: set[asyncio.Task] = set()
        self._leaving = False
        # One thread for all starts, as long as the pool lives: the kernel kills a program when the thread that started
        # it ends, and the event loop does not wait for a fork.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="sandboxes")

    async def __aenter__(self) -> "Pool":
        self._staged = await asyncio.to_thread(stage, self._inside)
        try:
            for level in (self.level,) if self.level else LEVELS[: 3 if self._allow_unsafe else 2]:
                try:
                    await (await self._start("", level)).close()
                except IsolationError as error:
                    self.why_not[level] = str(error)
                else:
                    self.level = level
                    return self
            reasons = "\n".join(f"  {level}: {reason}" for level, reason in self.why_not.items())
            raise IsolationError(f"this machine cannot isolate programs:\n{reasons}")
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_) -> None:
        self._leaving = True
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._all)))
        self._starter.shutdown()
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
        try:
            sandbox = await self._warmed(role) or await self._unless_cancelled(role, self._start(role, self.level))
        except BaseException:
            self._freed(role)
            raise
        sandbox.on_close.append(lambda: self._freed(role))
        self._fill(role)
        return sandbox

    async def _warmed(self, role: str) -> Sandbox | None:
        """One started ahead of need; None where there is none, or all of them have failed meanwhile."""
        while self._warm[role]:
            with suppress(IsolationError):  # the one started now will say it, if it still is so
                sandbox = await self._unless_cancelled(role, self._warm[role].popleft())
                if not sandbox.ended:  # killed for memory, say
                    return sandbox
                await sandbox.close()
        return None

    async def _unless_cancelled(self, role: str, task: "asyncio.Task[Sandbox]") -> Sandbox:
        """What the task starts; where we are cancelled it is the next one's, or closed if enough are warm."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if len(self._warm[role]) < WARM.get(role, 1):
                self._warm[role].appendleft(task)
            else:
                closing = asyncio.create_task(self._closed(task))
                self._starting.add(closing)  # until it is done, so that nobody leaves before
                closing.add_done_callback(self._starting.discard)
            raise

    async def _closed(self, task: "asyncio.Task[Sandbox]") -> None:
        with suppress(IsolationError):
            await (await task).close()

    def _start(self, role: str, level: str) -> "asyncio.Task[Sandbox]":
        self.starts += 1
        task = asyncio.create_task(self._started(role, level))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may ask a warm one
        return task

    async def _started(self, role: str, level: str) -> Sandbox:
        loop = asyncio.get_running_loop()
        try:
            process = await loop.run_in_executor(self._starter, Process, level, role, self.limits, self._staged)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise IsolationError(f"no sandbox of level {level}: {error}") from error
        sandbox = Sandbox(process, self.limits)
        self._all.add(sandbox)
        sandbox.on_close.append(lambda: self._all.discard(sandbox))
        try:
            await sandbox.stands()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _fill(self, role: str) -> None:
        """Start what will be asked for next, as far as slots are free."""
        warm = self._warm[role]
        while len(warm) < min(WARM.get(role, 1), self.slots - self._used[role]):
            warm.append(self._start(role, self.level))

    def _freed(self, role: str) -> None:
        self._used[role] -= 1
        self._free[role].release()
        if not self._leaving:
            self._fill(role)
