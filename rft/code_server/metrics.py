"""The numbers of `GET /metrics`, in Prometheus's text format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
KILLS = ("timeout", "killed", "client_gone")


class Metrics:
    """One server's numbers; `process_start_time_seconds` among them tells a restart."""

    def __init__(self):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        of_ours = {"namespace": "code_server", "registry": self.registry}
        self.requests = Counter("requests", "Answers by path and status", ("path", "status"), **of_ours)
        self.tests = Counter("tests", "Verdicts of single tests by cause", ("cause",), **of_ours)
        self.kills = Counter("kills", "Tests ended from outside, and clients gone", ("cause",), **of_ours)
        self.failures = Counter("failures", "Requests without a verdict, by cause", ("cause",), **of_ours)
        self.seconds = Histogram(
            "request_seconds", "From the whole body to the answer", ("path",), buckets=SECONDS, **of_ours
        )
        self.queue_seconds = Histogram("queue_seconds", "Waiting for a turn", buckets=SECONDS, **of_ours)
        for cause in KILLS:
            self.kills.labels(cause)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A gauge whose value is read when it is asked for."""
        Gauge(name, what, namespace="code_server", registry=self.registry).set_function(value)

    def count(self, causes: list[str]) -> None:
        """The verdicts of one request."""
        for cause in causes:
            self.tests.labels(cause).inc()
            if cause in KILLS:
                self.kills.labels(cause).inc()

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)
