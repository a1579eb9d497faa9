"""How far a server is: it builds, it can answer, it stops."""

import logging
import time

from rft.retriever.engine import Engine
from rft.retriever.places import Corpus

log = logging.getLogger("rft.retriever")
LOG_SECONDS = 10.0


class Stopped(Exception):
    """The server is being stopped; what is built goes on with the next start."""


class State:
    """Shared by the thread that builds and the event loop."""

    def __init__(self, corpus_name: str):
        self.started, self.corpus_name = time.monotonic(), corpus_name
        self.what, self.done, self.of = "starting", 0, 1
        self.corpus: Corpus | None = None
        self.engine: Engine | None = None
        self.failure: Exception | None = None
        self.stopping = False
        self._logged = ("", 0.0)

    def progress(self, what: str, done: int, of: int) -> None:
        """Say how far the build is. Raises Stopped, in the thread that builds, where the server stops."""
        if self.stopping:
            raise Stopped
        self.what, self.done, self.of = what, done, of
        if what != self._logged[0] or time.monotonic() > self._logged[1] + LOG_SECONDS:
            self._logged = what, time.monotonic()
            log.info("%s: %s of %s", what, f"{done:,}", f"{of:,}")

    def opened(self, corpus: Corpus) -> None:
        """The corpus is known; of its index nothing yet."""
        self.corpus = corpus

    def identity(self) -> dict:
        """What decides which passages a query finds; what is not known yet is not there."""
        found = {} if self.corpus is None else {"corpus": self.corpus.sha256}
        return found | ({} if self.engine is None else {"index": self.engine.index, "encoder": self.engine.encoder})

    def health(self) -> dict:
        """What `GET /health` answers: the status is ok, building, or stopping; what is not known yet is not there."""
        found = {"status": "stopping" if self.stopping else "ok" if self.engine else "building"}
        if self.engine is None:
            found["progress"] = {"what": self.what, "done": self.done, "of": self.of}
        if self.corpus is not None:
            found["passages"] = len(self.corpus)
        found |= self.identity() | {"corpus_name": self.corpus_name}
        return found | {"uptime": round(time.monotonic() - self.started, 3)}
