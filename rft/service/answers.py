"""Answers for what is none: a client that has gone, a queue that is full, a request that is not sound."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rft.service.guard import refusal

SHOWN = 300  # characters of an error's text in an answer
RETRY_SECONDS = 2  # what a client is told to wait where the queue is full
HTTP_CAUSES = {400: "body", 408: "slow_body"}


class Full(Exception):
    """As many requests wait as may wait."""


class Stopping(Exception):
    """The server is being stopped."""


class Gone(Exception):
    """The client has closed its connection."""


async def while_connected(request: Request, work: Awaitable) -> Any:
    """What `work` gives; cancelled when the client has gone, so that what it holds is free for the next.

    Raises:
        Gone: nobody is there to be answered.
        Stopping: `work` was cancelled from elsewhere.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    job, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise Gone
        if job.cancelled():
            raise Stopping
        return job.result()
    finally:
        job.cancel()
        gone.cancel()
        await asyncio.gather(job, gone, return_exceptions=True)


def say_failures(app: FastAPI, failed: Callable[[str], None], queue: int) -> None:
    """Answers for failures. None of them holds more than a line of what was sent.

    Args:
        app: gets the handlers.
        failed: is told the cause of every failure that is the server's.
        queue: requests that may wait, for the answer where they do.
    """

    @app.exception_handler(RequestValidationError)
    async def unsound(_: Request, error: RequestValidationError) -> Response:
        faults = [
            {"where": ".".join(map(str, fault["loc"]))[:SHOWN], "what": fault["msg"][:SHOWN]}
            for fault in error.errors()[:8]
        ]
        return refusal(422, "request", faults)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        refused = refusal(error.status_code, HTTP_CAUSES.get(error.status_code, "http"), error.detail)
        refused.headers.update((error.headers or {}) | {"Connection": "close"})  # of a body, the rest stays unread
        return refused

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> Response:
        return refusal(499, "client_gone", "")  # for the count alone

    @app.exception_handler(Full)
    async def full(_: Request, __: Full) -> Response:
        failed("queue_full")
        return refusal(503, "queue_full", f"{queue} requests wait; try again", Retry_After=str(RETRY_SECONDS))

    @app.exception_handler(Stopping)
    async def stopping(_: Request, __: Stopping) -> Response:
        failed("stopping")
        return refusal(503, "stopping", "the server is being stopped", Connection="close")

    @app.exception_handler(Exception)
    async def internal(_: Request, error: Exception) -> Response:
        failed("internal")
        return refusal(500, "internal", type(error).__name__)  # uvicorn logs it
