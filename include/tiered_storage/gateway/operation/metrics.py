"""The gateway's metrics for Prometheus: connections, requests, and what was read remotely for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.kafka_wire.connections.error_codes import error_name
from tiered_storage.remote_log.metrics.exposition import FetchCounts
from tiered_storage.remote_log.read.chunks.remote_chunks import ChunkCounts

_PREFIX: Final = "remote_log_gateway"
_OTHER: Final = "other"
_MOST_TOPICS: Final = 500
_MOST_CLIENTS: Final = 500
_LONGEST_LABEL: Final = 100
_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class _Labels:
    """The values that a metric has series for. Clients name themselves, and Prometheus keeps each name for ever."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *values: str) -> tuple[str, ...]:
        """Return `values`, or _OTHER for each once there are too many."""
        values = tuple(each[:_LONGEST_LABEL] for each in values)
        if values not in self._known:
            if len(self._known) >= self._most:
                return (_OTHER,) * len(values)
            self._known.add(values)
        return values


class GatewayMetrics(Collector):
    """The metrics of one process; `fetched` counts what is read from the store."""

    def __init__(self) -> None:
        """Count from zero."""
        self.fetched = FetchCounts()
        self._budget: MemoryBudget | None = None
        self._chunks: ChunkCounts | None = None
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
        self._topics, self._clients, self._readers = (
            _Labels(each) for each in (_MOST_TOPICS, _MOST_CLIENTS, _MOST_CLIENTS)
        )
        self._client_bytes = Counter(
            f"{_PREFIX}_client_remote_bytes",
            "Bytes of remote records served: who reads old data of which topic",
            ["user", "client_id", "topic"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_remote_fetch_seconds",
            "How long a Fetch waited for the remote records of a partition",
            ["topic"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._client_seconds = Histogram(
            f"{_PREFIX}_client_remote_fetch_seconds",
            "How long a Fetch of a client waited for the remote records of a partition",
            ["user", "client_id"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._throttled = Counter(
            f"{_PREFIX}_throttled_seconds",
            "For how long clients were muted for their remote records",
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
        self._deletions = Counter(
            f"{_PREFIX}_remote_deletions",
            "What clients deleted at the brokers: done remotely too, or left",
            ["api", "outcome"],
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

    def show_chunks(self, counts: ChunkCounts) -> None:
        """Show what the reader found in its cache, and what it fetched ahead in vain."""
        self._chunks = counts

    def asked(self, api: str) -> None:
        """Count a request."""
        self._requests.labels(api).inc()

    def served(self, topic: str, client: ClientName, size: int) -> None:
        """Count remote records of a topic."""
        self._served.labels(topic).inc()
        self._served_bytes.labels(topic).inc(size)
        self._client_bytes.labels(*self._readers.of(*client, topic)).inc(size)

    def waited(self, topic: str, client: ClientName, seconds: float) -> None:
        """Count how long a partition's remote records took."""
        self._seconds.labels(*self._topics.of(topic)).observe(seconds)
        self._client_seconds.labels(*self._clients.of(*client)).observe(seconds)

    def throttled(self, milliseconds: int) -> None:
        """Count for how long a client is muted."""
        self._throttled.inc(milliseconds / 1000)

    def failed(self, topic: str, code: int) -> None:
        """Count a partition whose remote records could not be read."""
        self._failed.labels(topic, error_name(code)).inc()

    def skipped(self, topic: str, count: int) -> None:
        """Count offsets that a consumer skips."""
        self._skipped.labels(topic).inc(count)

    def deletes_remotely(self, api: str, outcome: Literal["done", "left"]) -> None:
        """Count a partition whose records, or a topic that a client deleted."""
        self._deletions.labels(api, outcome).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self.registry.collect()
        yield from self.fetched.registry.collect()
        if self._budget is not None:
            text = "Requests and answers that waited for memory"
            yield CounterMetricFamily(f"{_PREFIX}_memory_waits", text, self._budget.waits)
        if self._chunks is not None:
            shown = {
                "chunk_cache_hits": ("Chunks of remote segments that were in memory when they were read", "hits"),
                "chunk_cache_misses": ("Chunks of remote segments that a read had to wait for", "misses"),
                "read_ahead_wasted_bytes": ("Bytes fetched ahead for reads that ended before them", "wasted_bytes"),
            }
            for name, (text, field) in shown.items():
                yield CounterMetricFamily(f"{_PREFIX}_{name}", text, getattr(self._chunks, field))
