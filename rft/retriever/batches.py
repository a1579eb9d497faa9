"""Requests that wait while a batch is searched are searched together in the next one."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rft.retriever.engine import Hit
from rft.service.answers import Full, Stopping


class Asked(NamedTuple):
    """A request that waits."""

    queries: list[str]
    topk: int
    answer: asyncio.Future


class Batches:
    """One batch at a time, in a thread.

    Args:
        search: queries and k to the passages of each.
        most: queries of a batch; a request with more is one of its own.
        longest: queries that may wait.
        observe: is told the size of every batch.
    """

    def __init__(
        self,
        search: Callable[[list[str], int], list[list[Hit]]],
        most: int,
        longest: int,
        observe: Callable[[int], None],
    ):
        self._search, self._most, self._longest, self._observe = search, most, longest, observe
        self._waiting: deque[Asked] = deque()
        self._thread = ThreadPoolExecutor(1, "search")
        self._worker: asyncio.Task | None = None
        self.stopping = False

    @property
    def waiting(self) -> int:
        """Queries that wait."""
        return sum(len(each.queries) for each in self._waiting)

    async def ask(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """The passages of each query, in their order. Cancelled while it waits, it is not searched.

        Raises:
            Full: too many wait.
            Stopping: the server is told to stop.
        """
        if self.stopping:
            raise Stopping
        if self._waiting and self.waiting + len(queries) > self._longest:
            raise Full
        asked = Asked(queries, topk, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await asked.answer

    def stop(self) -> None:
        """Turns away all who wait and come; the batch that is searched goes on."""
        self.stopping = True
        while self._waiting:
            if not (answer := self._waiting.popleft().answer).done():
                answer.set_exception(Stopping())
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        try:
            while batch := self._next():
                try:
                    await self._answer(batch)
                except Exception:
                    # One of them cannot be searched: each by itself, so that the others are.
                    for each in batch:
                        await self._alone(each)
        finally:
            self._worker = None

    def _next(self) -> list[Asked]:
        """Those that wait, as many as a batch holds; whoever has gone is left out."""
        batch, size = [], 0
        while self._waiting and (not batch or size + len(self._waiting[0].queries) <= self._most):
            asked = self._waiting.popleft()
            if not asked.answer.done():
                batch.append(asked)
                size += len(asked.queries)
        return batch

    async def _answer(self, batch: list[Asked]) -> None:
        queries = [query for asked in batch for query in asked.queries]
        self._observe(len(queries))
        topk = max(asked.topk for asked in batch)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, topk)
        for asked in batch:
            own, found = found[: len(asked.queries)], found[len(asked.queries) :]
            if not asked.answer.done():
                asked.answer.set_result([each[: asked.topk] for each in own])

    async def _alone(self, asked: Asked) -> None:
        if not asked.answer.done():
            try:
                await self._answer([asked])
            except Exception as error:
                asked.answer.set_exception(error)
