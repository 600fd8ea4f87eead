"""What the service counts of itself, in Prometheus' text form. Each process of an API server counts for itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of one process. No label has a topic's name: figures are for all who may log in."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "remote_log_requests", "Requests that were answered", ["route", "status"], registry=self._registry
        )
        self._bytes = Counter("remote_log_sent_bytes", "Bytes of answers' bodies", ["route"], registry=self._registry)
        self._seconds = Histogram(
            "remote_log_request_seconds",
            "From a request to the end of its answer",
            ["route"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
            registry=self._registry,
        )
        self.streams = Gauge("remote_log_streams", "Answers with bytes or records going on", registry=self._registry)
        self.refused = Counter("remote_log_refused", "Requests that found no room", ["what"], registry=self._registry)
        self.given_up = Counter(
            "remote_log_given_up", "Answers that ended before they were whole", ["why"], registry=self._registry
        )

    def answered(self, route: str, status: int, size: int, seconds: float) -> None:
        """Count an answer; `status` 0 is none."""
        self._requests.labels(route, str(status)).inc()
        self._bytes.labels(route).inc(size)
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all of them."""
        return generate_latest(self._registry)
