"""Metrics in Prometheus' format, under the names that Kafka's own tiering has through the JMX exporter.

Kafka's metric `kafka.server:type=BrokerTopicMetrics,name=RemoteCopyBytesPerSec,topic=T` is
`kafka_server_brokertopicmetrics_remotecopybytes_total{topic="T"}`, and a gauge keeps its whole name: the form of the
JMX exporter's usual rules for Kafka, which its dashboards expect. Those of `kafka.log.remote:type=RemoteLogManager` are
`kafka_log_remote_remotelogmanager_…`. What Kafka has no metric for is `remote_log_…`.

The answer is by topic. Partitions are named one by one only up to MOST_PARTITIONS of them. A process counts its own
fetches (FetchCounts); all else comes from a snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.metrics.partition_metrics import CopyLag, OffsetRule, RemoteLogMetrics, TopicMetrics
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.remote_storage_manager import DelegatingStorage

MOST_PARTITIONS = 1000
KAFKA = "kafka_server_brokertopicmetrics_"
KAFKA_REMOTE = "kafka_log_remote_remotelogmanager_"
_PARTITION = ("topic", "partition")


@dataclass(slots=True)
class FailureCounts:
    """Failures by topic since this process began; the metadata forget one that a later run repaired."""

    copies: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    deletions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def observe(self, topics: Sequence[TopicMetrics]) -> None:
        """Add what is new since the last call."""
        for each in topics:
            ended, attempts = self._seen.get(each.topic, (each.segments.ended, each.segments.deletion_attempts))
            self.copies[each.topic] += max(0, each.segments.ended - ended)
            self.deletions[each.topic] += max(0, each.segments.deletion_attempts - attempts)
            self._seen[each.topic] = (each.segments.ended, each.segments.deletion_attempts)


class FetchCounts:
    """RemoteFetchRequestsPerSec, RemoteFetchBytesPerSec and RemoteFetchErrorsPerSec of this process. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = {
            "requests": "Reads of a segment from the remote tier",
            "bytes": "Bytes of segments read from the remote tier",
            "errors": "Reads of a segment from the remote tier that failed",
        }
        self._counters = {
            name: Counter(f"{KAFKA}remotefetch{name}", text, ["topic"], registry=self.registry)
            for name, text in names.items()
        }

    def add(self, name: str, topic: str, count: int = 1) -> None:
        """Add to `requests`, `bytes` or `errors` of a topic."""
        self._counters[name].labels(topic).inc(count)


@dataclass(frozen=True, slots=True)
class CountedStorage(DelegatingStorage):
    """Counts what is read of segments through it. That a segment has no index of a kind is no error."""

    counts: FetchCounts

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """As RemoteStorageManager."""
        topic = metadata.topic_id_partition.topic
        self.counts.add("requests", topic)
        try:
            for piece in self.storage.fetch_log_segment(metadata, start_position, end_position):
                self.counts.add("bytes", topic, len(piece))
                yield piece
        except TieredStorageError:
            self.counts.add("errors", topic)
            raise


def _lag_seconds(topic: TopicMetrics) -> float | None:
    return None if topic.lag is None or topic.lag.ms is None else topic.lag.ms / 1000


_Value = Callable[[TopicMetrics], float | None]

_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    (
        f"{KAFKA}remotecopylagbytes",
        "Bytes of closed segments that are not remote yet",
        lambda one: None if one.lag is None else one.lag.size,
    ),
    (
        f"{KAFKA}remotecopylagsegments",
        "Closed segments that are not remote yet",
        lambda one: None if one.lag is None else one.lag.segments,
    ),
    (f"{KAFKA}remotedeletelagbytes", "Bytes that wait for their deletion", lambda one: one.segments.deleting_size),
    (f"{KAFKA}remotedeletelagsegments", "Segments that wait for their deletion", lambda one: one.segments.deleting),
    (f"{KAFKA}remotelogsizebytes", "Bytes of finished remote segments", lambda one: one.segments.remote_size),
    (
        f"{KAFKA}remotelogmetadatacount",
        "Segments in the metadata, in every state except deleted",
        lambda one: one.segments.remote + one.segments.unfinished + one.segments.deleting,
    ),
    (
        "remote_log_copy_lag_seconds",
        "Age of the oldest record in a closed segment that is not remote yet; absent while unknown",
        _lag_seconds,
    ),
    ("remote_log_untiered_tail_bytes", "Bytes of stable records that are not remote yet", lambda one: one.tail_size),
    ("remote_log_untiered_tail_offsets", "Stable offsets that are not remote yet", lambda one: one.tail),
    ("remote_log_missing_offsets", "Offsets deleted locally and never copied", lambda one: one.missing),
    ("remote_log_unfinished_copies", "Copies that began and have not finished", lambda one: one.segments.unfinished),
    ("remote_log_stuck_copies", "Unfinished copies older than copy.stuck.after.ms", lambda one: one.segments.stuck),
    (
        "remote_log_failed_deletions",
        "Segments whose objects could not be deleted",
        lambda one: one.segments.failed_deletions,
    ),
    (
        "remote_log_retention_margin_seconds",
        "How long copies may stop until brokers delete what is not remote; absent without a limit, or while unknown",
        lambda one: None if one.margin_ms is None else one.margin_ms / 1000,
    ),
    (
        "remote_log_short_retention_margins",
        "Partitions whose margin is below enable.min.retention.margin.ms",
        lambda one: one.short_margins,
    ),
    ("remote_log_lowered_limits", "Limits that brokers lowered, and that do not count yet", lambda one: one.lowered),
    ("remote_log_partitions", "Partitions that are tiered or have remote segments", lambda one: one.partitions),
    ("remote_log_unreadable_partitions", "Partitions whose local log cannot be read", lambda one: one.unreadable),
)

_COUNTERS: tuple[tuple[str, str, Callable[[TopicMetrics, FailureCounts], float]], ...] = (
    (f"{KAFKA}remotecopybytes", "Bytes of all copies that finished", lambda one, _: one.segments.copied_size),
    (
        f"{KAFKA}remotecopyrequests",
        "Copies that ended: all that finished, and those that failed since this process started",
        lambda one, failed: one.segments.copied + failed.copies.get(one.topic, 0),
    ),
    (
        f"{KAFKA}remotecopyerrors",
        "Copies that failed since this process started",
        lambda one, failed: failed.copies.get(one.topic, 0),
    ),
    (
        f"{KAFKA}remotedeleterequests",
        "Deletions of segments: all that succeeded, and attempts that failed since this process started",
        lambda one, failed: one.segments.deleted + failed.deletions.get(one.topic, 0),
    ),
    (
        f"{KAFKA}remotedeleteerrors",
        "Attempts to delete a segment that failed since this process started",
        lambda one, failed: failed.deletions.get(one.topic, 0),
    ),
)


def families_of(metrics: RemoteLogMetrics, failures: FailureCounts) -> Iterator[Metric]:
    """Yield `metrics` as Prometheus' metric families; a topic has no value where it is unknown."""
    topics = metrics.topics
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=("topic",))
        for each in topics:
            if (known := value(each)) is not None:
                gauge.add_metric((each.topic,), known)
        yield gauge
    for name, text, count in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=("topic",))
        for each in topics:
            counter.add_metric((each.topic,), count(each, failures))
        yield counter
    yield _violations(topics)
    yield from _by_partition(metrics)
    yield GaugeMetricFamily(
        f"{KAFKA}remotelogsizecomputationtime", "ms that it took to add up the remote segments", metrics.sized_ms
    )
    yield GaugeMetricFamily("remote_log_metrics_timestamp_seconds", "When these were taken", metrics.taken_at / 1000)
    yield GaugeMetricFamily("remote_log_metrics_duration_seconds", "How long that took", metrics.took_ms / 1000)
    readable = 1.0 if metrics.problem is None else 0.0
    yield GaugeMetricFamily("remote_log_local_logs_readable", "Whether the local logs could be looked at", readable)


def _violations(topics: Sequence[TopicMetrics]) -> Metric:
    """Return how many partitions violate each rule; a rule is an offset constraint of KIP-405."""
    found = GaugeMetricFamily(
        "remote_log_offset_violations",
        "Partitions that violate Lz >= Ly >= Lx or Ly >= Ry >= Rx (KIP-405)",
        labels=("topic", "rule"),
    )
    for each in topics:
        for rule in OffsetRule:
            found.add_metric((each.topic, rule.value), each.violating[rule])
    return found


def _by_partition(metrics: RemoteLogMetrics) -> Iterator[Metric]:
    lags: dict[tuple[str, str], CopyLag] = {}
    if len(metrics.partitions) <= MOST_PARTITIONS:
        for each in metrics.partitions:
            if each.lag is not None:
                # Incarnations of a topic share its name.
                key = each.partition.topic, str(each.partition.partition)
                lags[key] = lags.get(key, CopyLag()) + each.lag
    size = GaugeMetricFamily("remote_log_partition_copy_lag_bytes", "The same by partition", labels=_PARTITION)
    count = GaugeMetricFamily("remote_log_partition_copy_lag_segments", "The same by partition", labels=_PARTITION)
    for key, lag in lags.items():
        size.add_metric(key, lag.size)
        count.add_metric(key, lag.segments)
    yield from (size, count)
    yield from _used(metrics)


def _used(metrics: RemoteLogMetrics) -> Iterator[Metric]:
    """Yield how much of their limits the partitions take (KIP-1257), the most of a topic's incarnations."""
    partitions = metrics.partitions if len(metrics.partitions) <= MOST_PARTITIONS else ()
    total = ((each.partition, each.used_percent) for each in partitions)
    yield _most("retentionsizeinpercent", "Of retention.bytes", total)
    local = ((each.partition, each.local_used_percent) for each in partitions)
    yield _most("localretentionsizeinpercent", "Of local.retention.bytes", local)


def _most(name: str, text: str, shares: Iterable[tuple[TopicIdPartition, int | None]]) -> Metric:
    family = GaugeMetricFamily(f"{KAFKA_REMOTE}{name}", text, labels=_PARTITION)
    most: dict[tuple[str, str], int] = {}
    for partition, share in shares:
        if share is not None:
            key = partition.topic, str(partition.partition)
            most[key] = max(share, most.get(key, 0))
    for key, share in most.items():
        family.add_metric(key, share)
    return family
