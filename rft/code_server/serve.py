"""The code server's process: its socket, its signals, its end."""

import asyncio
import logging
import signal
import socket

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from rft.code import judge
from rft.code.sandbox import IsolationError, Pool
from rft.code_server import limits
from rft.code_server.app import make_app
from rft.code_server.queue import Queue

log = logging.getLogger("rft.code_server")

# One test that is compared here, and one that needs a judge.
PROBE = "def probe(x):\n    return x + 1\n"
PROBE_TESTS = ["assert probe(1) == 2", "found = probe(2)\nassert found == 3"]


class Impatient(H11Protocol):
    """uvicorn's protocol, and a time within which the headers must be there: uvicorn itself waits for ever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(limits.HEADER_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """uvicorn's server, which at its end turns away those who wait, and cancels those that run too long."""

    def __init__(self, config: uvicorn.Config, queue: Queue):
        super().__init__(config)
        self.queue = queue

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stops: %d run, %d wait", self.queue.running, self.queue.waiting)
        self.queue.stop()
        asyncio.get_running_loop().call_later(limits.STOP_SECONDS, self.queue.cancel)
        await super().shutdown(sockets)


def configured(app: FastAPI) -> uvicorn.Config:
    """uvicorn's settings."""
    return uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.CONNECTIONS,
        timeout_keep_alive=limits.KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=limits.STOP_SECONDS + limits.CLOSE_SECONDS,
    )


async def serve(
    listener: socket.socket, slots: int, *, level: str | None, allow_unsafe: bool, token: str | None, with_tool: bool
) -> None:
    """Serves until SIGTERM or SIGINT; no process of a sandbox is left then.

    Args:
        listener: a bound socket.
        slots: programs that run at once.
        level: of isolation; None takes the best there is.
        allow_unsafe: serve without isolation too, where there is none.
        token: what requests must bear.
        with_tool: serve `POST /execute`.

    Raises:
        IsolationError: no sandbox can be started here, or only unsafe ones.
    """
    async with Pool(slots=slots, level=level, allow_unsafe=allow_unsafe) as pool:
        await _probe(pool)
        queue = Queue(slots, limits.QUEUE)
        config = configured(make_app(pool, queue, token, with_tool))
        host, port = listener.getsockname()[:2]
        at = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        log.info("serves at %s: isolation %s, %d programs at once", at, pool.level, slots)
        if pool.level == "none":
            log.warning("isolation none: programs of the model can do all that this user can")
        # uvicorn raises the signal again after its own end, by which the process would die before its sandboxes do.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        await Server(config, queue).serve(sockets=[listener])
    log.info("stopped")


async def _probe(pool: Pool) -> None:
    """Raise IsolationError if an honest program does not pass: a server that cannot judge must not come up."""
    found = await judge.verify(pool, PROBE, PROBE_TESTS, seconds=10.0)
    if list(found.results) != [1, 1]:
        raise IsolationError(
            f"found {found.causes} for a program that is right; wanted it to pass (isolation {pool.level})"
        )
