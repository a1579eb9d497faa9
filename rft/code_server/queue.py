"""Whose turn it is: so many programs at once, the others in the order in which they came."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rft.service.answers import Full, Stopping


class Queue:
    """First come, first served.

    Args:
        slots: requests that run at once.
        longest: requests that may wait.
    """

    def __init__(self, slots: int, longest: int):
        self.slots, self.longest = slots, longest
        self.waiting = 0
        self.stopping = False
        self._semaphore = asyncio.Semaphore(slots)
        self._tasks: set[asyncio.Task] = set()

    @property
    def running(self) -> int:
        """Requests that have their turn."""
        return len(self._tasks)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Waits for a turn, and holds it; the value is the seconds waited. Cancelled at any time, it leaves no trace.

        Raises:
            Full: too many wait.
            Stopping: the server is told to stop, before or while this waits.
        """
        if self.stopping:
            raise Stopping
        if self.waiting >= self.longest:
            raise Full
        since = time.monotonic()
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        try:
            if self.stopping:
                raise Stopping
            task = asyncio.current_task()
            self._tasks.add(task)
            try:
                yield time.monotonic() - since
            finally:
                self._tasks.discard(task)
        finally:
            self._semaphore.release()

    def stop(self) -> None:
        """Turns away all who wait and come; whoever runs goes on."""
        if not self.stopping:
            self.stopping = True
            for _ in range(self.waiting):
                self._semaphore.release()  # nobody starts any more, so turns need no counting

    def cancel(self) -> None:
        """Cancels the tasks that have their turn."""
        for task in self._tasks:
            task.cancel()
