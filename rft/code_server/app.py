"""The code server's endpoints (docs/code_rewards.md)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

import rft
from rft.code import judge, tool
from rft.code.sandbox import IsolationError, Pool
from rft.code_server import PROGRAM_CHARACTERS, limits
from rft.code_server.guard import Guard, refusal
from rft.code_server.metrics import Metrics
from rft.code_server.queue import Full, Queue, Stopping

log = logging.getLogger("rft.code_server")

SHOWN = 300  # characters of an error's text in an answer
HTTP_CAUSES = {400: "body", 408: "slow_body"}
TOO_LONG = "compile_error"  # the cause of a program that no compiler is asked about


def make_app(pool: Pool, queue: Queue, token: str | None = None, with_tool: bool = False) -> FastAPI:
    """The application over a pool that runs.

    Args:
        pool: where sandboxes come from.
        queue: whose turn it is to use them.
        token: what every request must bear; None asks for nothing.
        with_tool: serve `POST /execute`.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, max_body_size=limits.BODY_BYTES)
    metrics, started = Metrics(), time.monotonic()
    metrics.watch("waiting", "Requests that wait for a turn", lambda: queue.waiting)
    metrics.watch("sandbox_starts", "Sandboxes started since the start of the server", lambda: pool.starts)
    metrics.watch("running", "Requests that run", lambda: queue.running)

    async def in_turn(request: Request, work: Callable[[], Awaitable]) -> Any:
        """What `work` gives, in its turn. Its time is its own: waiting is over when it starts."""

        async def job() -> Any:
            with metrics.seconds.labels(request.url.path).time():
                async with queue.turn() as waited:
                    metrics.queue_seconds.observe(waited)
                    return await work()

        try:
            return await while_connected(request, job())
        except Gone:
            metrics.kills.labels("client_gone").inc()
            raise

    async def verdict(request: Request, asked: limits.Tests, work: Callable[[], Awaitable]) -> dict:
        if len(asked.program) > PROGRAM_CHARACTERS:
            number = len(asked.tests)
            results, runtimes, causes, level = [0] * number, [0.0] * number, [TOO_LONG] * number, pool.level
        else:
            found = await in_turn(request, work)
            results, runtimes, causes, level = found.results, found.runtimes, found.causes, found.isolation
        metrics.count(causes)
        return {"results": results, "runtimes": runtimes, "causes": causes, "isolation": level}

    @app.post("/test_program")
    async def test_program(request: Request, asked: limits.ProgramTests) -> dict:
        more = {"setup": asked.setup, "entry_point": asked.entry_point, "seconds": asked.max_execution_time}
        return await verdict(request, asked, partial(judge.verify, pool, asked.program, asked.tests, **more))

    @app.post("/test_program_stdio")
    async def test_program_stdio(request: Request, asked: limits.StdioTests) -> dict:
        tests, seconds = [test.model_dump() for test in asked.tests], asked.max_execution_time
        work = partial(judge.verify_stdio, pool, asked.program, tests, seconds=seconds)
        return await verdict(request, asked, work)

    if with_tool:

        @app.post("/execute")
        async def execute(request: Request, asked: limits.Execution) -> dict:
            return await in_turn(request, partial(tool.execute, pool, asked.code, asked.timeout))

    chosen = {} if pool.level == "namespaces" else {"namespaces": f"--isolation {pool.level} was given"}

    @app.get("/health")
    async def health() -> dict:
        return {
            "status": "stopping" if queue.stopping else "ok",
            "isolation": pool.level,
            "why_not_higher": pool.why_not or chosen,
            "waiting": queue.waiting,
            "running": queue.running,
            "slots": queue.slots,
            "tool": with_tool,
            "uptime_seconds": round(time.monotonic() - started, 3),
            "version": rft.__version__,
        }

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    _say_failures(app, metrics)
    paths = frozenset(route.path for route in app.routes)
    app.add_middleware(Guard, metrics=metrics, paths=paths, token=token)
    return app


class Gone(Exception):
    """The client has closed its connection."""


async def while_connected(request: Request, work: Awaitable) -> Any:
    """What `work` gives; cancelled when the client has gone, so that its sandbox is free for the next.

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


def _say_failures(app: FastAPI, metrics: Metrics) -> None:
    """Answers for what is no verdict. None of them holds more than a line of what was sent."""

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
        metrics.failures.labels("queue_full").inc()
        wait = str(limits.RETRY_SECONDS)
        return refusal(503, "queue_full", f"{limits.QUEUE} requests wait; try again", Retry_After=wait)

    @app.exception_handler(Stopping)
    async def stopping(_: Request, __: Stopping) -> Response:
        metrics.failures.labels("stopping").inc()
        return refusal(503, "stopping", "the server is being stopped", Connection="close")

    @app.exception_handler(IsolationError)
    @app.exception_handler(OSError)
    async def no_sandbox(_: Request, error: Exception) -> Response:
        metrics.failures.labels("sandbox").inc()
        log.error("no sandbox: %s: %s", type(error).__name__, error)
        return refusal(503, "sandbox", f"{type(error).__name__}: {error}"[:SHOWN], Retry_After="1")

    @app.exception_handler(Exception)
    async def internal(_: Request, error: Exception) -> Response:
        metrics.failures.labels("internal").inc()
        return refusal(500, "internal", type(error).__name__)  # uvicorn logs it
