"""uvicorn as our servers use it."""

import asyncio

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # from the connection, or the first byte of a further request, to the end of the headers
KEEP_ALIVE_SECONDS = 75  # longer than clients keep an idle connection, so that theirs never meets our closing


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
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def configured(app: ASGIApp, connections: int, stop_seconds: float) -> uvicorn.Config:
    """uvicorn's settings: so many connections at once, and that long for answers once it is told to stop."""
    return uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=stop_seconds,
    )
