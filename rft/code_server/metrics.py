"""The numbers of `GET /metrics`, in Prometheus's text format."""

from prometheus_client import Counter, Histogram

from rft.service.metrics import SECONDS, ServerMetrics

KILLS = ("timeout", "killed", "client_gone")


class Metrics(ServerMetrics):
    """The code server's."""

    def __init__(self):
        super().__init__("code_server")
        self.tests = Counter("tests", "Verdicts of single tests by cause", ("cause",), **self.of_ours)
        self.kills = Counter("kills", "Tests ended from outside, and clients gone", ("cause",), **self.of_ours)
        self.queue_seconds = Histogram("queue_seconds", "Waiting for a turn", buckets=SECONDS, **self.of_ours)
        for cause in KILLS:
            self.kills.labels(cause)

    def count(self, causes: list[str]) -> None:
        """The verdicts of one request."""
        for cause in causes:
            self.tests.labels(cause).inc()
            if cause in KILLS:
                self.kills.labels(cause).inc()
