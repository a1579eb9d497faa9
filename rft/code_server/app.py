"""The code server's endpoints (docs/code_rewards.md)."""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

import rft
from rft.code import judge, tool
from rft.code.sandbox import IsolationError, Pool
from rft.code_server import PROGRAM_CHARACTERS, TOKEN_VARIABLE, limits
from rft.code_server.metrics import Metrics
from rft.code_server.queue import Queue
from rft.service.answers import SHOWN, Gone, say_failures, while_connected
from rft.service.guard import Guard, refusal

log = logging.getLogger("rft.code_server")

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

    say_failures(app, metrics.failed, limits.QUEUE)

    @app.exception_handler(IsolationError)
    @app.exception_handler(OSError)
    async def no_sandbox(_: Request, error: Exception) -> Response:
        metrics.failed("sandbox")
        log.error("no sandbox: %s: %s", type(error).__name__, error)
        return refusal(503, "sandbox", f"{type(error).__name__}: {error}"[:SHOWN], Retry_After="1")

    paths = frozenset(route.path for route in app.routes)
    app.add_middleware(Guard, count=metrics.answered, paths=paths, token=token, variable=TOKEN_VARIABLE)
    return app
