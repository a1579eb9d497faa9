"""The retriever's process: it builds or opens its index in a thread, while its port says how far it is."""

import asyncio
import logging
import signal
import socket
import threading

import uvicorn

from rft.retriever import limits
from rft.retriever.app import make_app
from rft.retriever.batches import Batches
from rft.retriever.engine import Options, open_engine
from rft.retriever.state import State, Stopped
from rft.service.listen import address_of
from rft.service.process import configured

log = logging.getLogger("rft.retriever")


class Server(uvicorn.Server):
    """uvicorn's server, which at its end stops the build and turns away those who wait."""

    def __init__(self, config: uvicorn.Config, state: State, batches: Batches):
        super().__init__(config)
        self.state, self.batches = state, batches

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stops: %d queries wait", self.batches.waiting)
        self.state.stopping = True
        self.batches.stop()
        await super().shutdown(sockets)


def build(options: Options, state: State) -> None:
    """Give the state an engine, or the error that it failed with."""
    try:
        engine = open_engine(options, state.progress, state.opened)
        engine.search(["probe"], 1)  # what is made at the first search is made before somebody waits for it
        state.engine = engine
    except Stopped:
        log.info("stopped while it built; the next start goes on")
    except Exception as error:
        state.failure = error
    except SystemExit as error:
        state.failure = RuntimeError(f"a library ended the build: {error}")


async def serve(listener: socket.socket, options: Options, token: str | None) -> tuple[Exception | None, bool]:
    """Serves until SIGTERM or SIGINT, or until the build fails.

    Args:
        listener: a bound socket.
        options: what is searched.
        token: what requests must bear.

    Returns:
        what the build failed with, and whether its thread has ended.
    """
    state = State(options.corpus.name)
    app = make_app(state, token)
    server = Server(configured(app, limits.CONNECTIONS, limits.STOP_SECONDS), state, app.state.batches)
    loop, at = asyncio.get_running_loop(), address_of(listener)

    def stop(*_: object) -> None:
        state.stopping = server.should_exit = True

    # For a signal before uvicorn listens; it raises them again after its end, by which the process would die.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info("listens at %s: builds", at)

    def built() -> None:
        if state.failure is not None:
            server.should_exit = True
        elif state.engine is not None and not state.stopping:
            engine = state.engine
            log.info("serves at %s: %s, %s passages", at, engine.index, f"{len(engine.corpus):,}")

    def in_thread() -> None:
        build(options, state)
        if not loop.is_closed():
            loop.call_soon_threadsafe(built)

    thread = threading.Thread(target=in_thread, name="build", daemon=True)
    thread.start()
    await server.serve(sockets=[listener])
    await asyncio.to_thread(thread.join, limits.STOP_SECONDS)
    log.info("stopped")
    return state.failure, not thread.is_alive()
