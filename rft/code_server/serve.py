"""The code server's process: its socket, its signals, its end."""

import asyncio
import logging
import signal
import socket

import uvicorn

from rft.code import judge
from rft.code.sandbox import IsolationError, Pool
from rft.code_server import limits
from rft.code_server.app import make_app
from rft.code_server.queue import Queue
from rft.service.listen import address_of
from rft.service.process import configured

log = logging.getLogger("rft.code_server")

# One test that is compared here, and one that needs a judge.
PROBE = "def probe(x):\n    return x + 1\n"
PROBE_TESTS = ["assert probe(1) == 2", "found = probe(2)\nassert found == 3"]


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
        app = make_app(pool, queue, token, with_tool)
        config = configured(app, limits.CONNECTIONS, limits.STOP_SECONDS + limits.CLOSE_SECONDS)
        log.info("serves at %s: isolation %s, %d programs at once", address_of(listener), pool.level, slots)
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
