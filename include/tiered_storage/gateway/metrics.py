"""The gateway's metrics for Prometheus: connections, requests, and what was read remotely for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.kafka_wire.connections.error_codes import error_name
from tiered_storage.remote_log.metrics.fetch_counts import FetchCounts

_PREFIX: Final = "remote_log_gateway"


class GatewayMetrics(Collector):
    """The metrics of one process; `fetched` counts what is read from the store."""

    def __init__(self) -> None:
        """Count from zero."""
        self.fetched = FetchCounts()
        self._budget: MemoryBudget | None = None
        self.registry = CollectorRegistry()
        self.connections = Gauge(f"{_PREFIX}_connections", "Open connections of clients", registry=self.registry)
        self.refused = Counter(
            f"{_PREFIX}_refused_connections",
            "Connections refused or ended, by reason",
            ["reason"],
            registry=self.registry,
        )
        self._requests = Counter(f"{_PREFIX}_requests", "Requests of clients", ["api"], registry=self.registry)
        self._served_bytes = Counter(
            f"{_PREFIX}_remote_bytes", "Bytes of remote records served", ["topic"], registry=self.registry
        )
        self._served = Counter(
            f"{_PREFIX}_remote_fetches",
            "Answers for a partition with remote records",
            ["topic"],
            registry=self.registry,
        )
        self._failed = Counter(
            f"{_PREFIX}_remote_errors",
            "Answers for a partition whose remote records could not be read, by Kafka's error",
            ["topic", "error"],
            registry=self.registry,
        )
        self._skipped = Counter(
            f"{_PREFIX}_skipped_offsets",
            "Offsets that consumers skipped, as neither tier has them",
            ["topic"],
            registry=self.registry,
        )

    def show_memory(self, budget: MemoryBudget) -> None:
        """Show the memory of all connections."""
        shown: dict[str, tuple[str, Callable[[], float]]] = {
            "memory_used_bytes": ("Memory that connections hold", lambda: budget.used),
            "memory_most_used_bytes": ("The most memory that connections held", lambda: budget.most_used),
            "memory_limit_bytes": ("gateway.memory.max.bytes", lambda: budget.limit),
        }
        for name, (text, value) in shown.items():
            Gauge(f"{_PREFIX}_{name}", text, registry=self.registry).set_function(value)
        self._budget = budget

    def asked(self, api: str) -> None:
        """Count a request."""
        self._requests.labels(api).inc()

    def served(self, topic: str, size: int) -> None:
        """Count remote records of a topic."""
        self._served.labels(topic).inc()
        self._served_bytes.labels(topic).inc(size)

    def failed(self, topic: str, code: int) -> None:
        """Count a partition whose remote records could not be read."""
        self._failed.labels(topic, error_name(code)).inc()

    def skipped(self, topic: str, count: int) -> None:
        """Count offsets that a consumer skips."""
        self._skipped.labels(topic).inc(count)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self.registry.collect()
        yield from self.fetched.registry.collect()
        if self._budget is not None:
            text = "Requests and answers that waited for memory"
            yield CounterMetricFamily(f"{_PREFIX}_memory_waits", text, self._budget.waits)
