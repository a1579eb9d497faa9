"""The retriever's endpoints (docs/retriever.md)."""

import json

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram

from rft.retriever import TOKEN_VARIABLE, limits
from rft.retriever.batches import Batches
from rft.retriever.engine import Hit
from rft.retriever.state import State
from rft.service.answers import RETRY_SECONDS, say_failures, while_connected
from rft.service.guard import Guard, refusal
from rft.service.metrics import ServerMetrics

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def make_app(state: State, token: str | None = None) -> FastAPI:
    """The application; it answers queries once the state has an engine.

    Args:
        state: of the server.
        token: what every request must bear; None asks for nothing.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, max_body_size=limits.BODY_BYTES)
    metrics = ServerMetrics("retriever")
    queries = Counter("queries", "Queries that were answered", **metrics.of_ours)
    sizes = Histogram("batch_queries", "Queries that were searched together", buckets=SIZES, **metrics.of_ours)
    batches = Batches(lambda *asked: state.engine.search(*asked), limits.BATCH, limits.QUEUE, sizes.observe)
    metrics.watch("waiting", "Queries that wait", lambda: batches.waiting)

    @app.post("/retrieve")
    async def retrieve(request: Request, asked: limits.Search) -> Response:
        if state.engine is None:
            metrics.failed("building")
            return refusal(503, "building", state.health()["progress"], Retry_After=str(RETRY_SECONDS))
        with metrics.seconds.labels(request.url.path).time():
            found = await while_connected(request, batches.ask(asked.asked, asked.topk or limits.TOPK))
        queries.inc(len(found))
        with_scores = asked.return_scores is not False
        result = [[_entry(hit, with_scores) for hit in each] for each in found]
        # Escaped: text travels as it is, lone surrogates too, for which UTF-8 has no bytes.
        return Response(json.dumps({"result": result, "from": state.identity()}), media_type="application/json")

    @app.get("/health")
    async def health() -> dict:
        return state.health()

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    say_failures(app, metrics.failed, limits.QUEUE)
    paths = frozenset(route.path for route in app.routes)
    app.add_middleware(Guard, count=metrics.answered, paths=paths, token=token, variable=TOKEN_VARIABLE)
    app.state.batches = batches
    return app


def _entry(hit: Hit, with_score: bool) -> dict:
    return {"document": hit.document} | ({"score": hit.score} if with_score else {})
