"""The numbers of `GET /metrics` that every server has, in Prometheus's text format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)


class ServerMetrics:
    """One server's numbers; `process_start_time_seconds` among them tells a restart.

    Args:
        namespace: what their names begin with.
    """

    def __init__(self, namespace: str):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.of_ours = {"namespace": namespace, "registry": self.registry}
        self.requests = Counter("requests", "Answers by path and status", ("path", "status"), **self.of_ours)
        self.failures = Counter("failures", "Requests that got no result, by cause", ("cause",), **self.of_ours)
        self.seconds = Histogram(
            "request_seconds", "From the whole body to the answer", ("path",), buckets=SECONDS, **self.of_ours
        )

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A gauge whose value is read when it is asked for."""
        Gauge(name, what, **self.of_ours).set_function(value)

    def answered(self, path: str, status: int) -> None:
        """One answer."""
        self.requests.labels(path, status).inc()

    def failed(self, cause: str) -> None:
        """A request that got no result."""
        self.failures.labels(cause).inc()

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)
