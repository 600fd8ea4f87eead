"""Metrics made up for tests, of as many partitions as wanted."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from support.scraping import Scrape
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_wire.connections.error_codes import KAFKA_STORAGE_ERROR
from tiered_storage.remote_log.metrics.exporter import MetricsExporter
from tiered_storage.remote_log.metrics.exposition import FetchCounts
from tiered_storage.remote_log.metrics.partition_metrics import (
    BrokerRetention,
    CopyLag,
    PartitionMetrics,
    RemoteLogMetrics,
    SegmentMetrics,
    TierOffsets,
)
from tiered_storage.remote_log.model import TopicIdPartition

TAKEN_AT = 1_700_000_000_000
DAY_MS = 86_400_000


def partition_metrics(topic: str, number: int, lag: CopyLag | None = None, **others: int) -> PartitionMetrics:
    """Return those of one partition; `others` are of its segments."""
    offsets = TierOffsets(local_start=0, stable_end=100, local_end=100, remote_start=0, remote_end=60, log_start=0)
    tail = 0 if lag is None else 2 * lag.size
    partition = TopicIdPartition("cluster", f"{topic}-id", number, topic)
    return PartitionMetrics(
        partition, offsets, SegmentMetrics(**others), lag, tail, offsets.violated, used_percent=0, local_used_percent=0
    )


def many(count: int, topics: int = 10) -> RemoteLogMetrics:
    """Return the metrics of `count` partitions, in `topics` topics; each has a lag of its own.

    Its figures grow in other orders: of 10,000 partitions another one is first in each, and last in each.
    """

    def scattered(at: int, step: int) -> int:
        return (at + step) * step % count

    found = [
        replace(
            partition_metrics(
                f"topic-{at % topics}",
                at // topics,
                CopyLag(at, scattered(at, 7) * 1000, scattered(at, 11) * 60_000),
                remote=1,
                remote_size=scattered(at, 13) * 10,
            ),
            tail_size=scattered(at, 17) * 2000,
            retention=BrokerRetention(DAY_MS),
        )
        for at in range(count)
    ]
    in_order = sorted(found, key=lambda each: (each.partition.topic, each.partition))
    return RemoteLogMetrics(TAKEN_AT, 1500, tuple(in_order))


def served_labels() -> dict[str, set[str]]:
    """Return the names of all series of an endpoint that has metrics, and has fetched something, with their labels."""
    exporter, counts = MetricsExporter(lambda: many(3), 60, print), FetchCounts()
    exporter.refresh()
    for name in ("requests", "bytes", "errors"):
        counts.add(name, "topic-0")
    counts.registry.register(exporter)
    return _labels(counts.registry)


def gateway_labels() -> dict[str, set[str]]:
    """Return the same of a gateway that has met every trouble."""
    gateway = GatewayMetrics()
    gateway.failed("topic-0", KAFKA_STORAGE_ERROR)
    gateway.skipped("topic-0", 1)
    gateway.deletes_remotely("DeleteTopics", "left")
    return _labels(gateway.registry)


def _labels(registry: CollectorRegistry) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, labels in Scrape.of(generate_latest(registry).decode()).samples:
        found.setdefault(name, set()).update(label for label, _ in labels)
    # prometheus_client adds when a counter began.
    return {name: labels for name, labels in found.items() if not name.endswith("_created")}
