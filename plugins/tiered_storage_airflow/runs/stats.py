"""Emit metrics by topic through Airflow: StatsD, Datadog or OpenTelemetry, whichever [metrics] has on.

A metric is `remote_log.copy_lag_bytes` with the tag `topic`. Plain StatsD drops tags, so as for Airflow's own metrics
there is also one with the name at its end, `remote_log.copy_lag_bytes.orders`, while [metrics] legacy_names_on is true.
Metrics of every cluster but the first have the tag `cluster`, and the cluster's name before the topic's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered_storage.remote_log.metrics.partition_metrics import TopicMetrics

PREFIX = "remote_log"
MOST_LETTERS = 100
"""Airflow refuses names of more than 250 letters, and a topic may have as many."""


def emit_metrics(topics: Iterable[TopicMetrics], cluster: str | None) -> None:
    """Set the gauges of each topic of a cluster. A lag that is not known is not emitted."""

    def gauge(name: str, value: float, topic: str) -> None:
        _gauge(name, value, topic, cluster)

    for each in topics:
        lag, segments = each.lag, each.segments
        if lag is not None:
            gauge("copy_lag_segments", lag.segments, each.topic)
            gauge("copy_lag_bytes", lag.size, each.topic)
            if lag.ms is not None:
                gauge("copy_lag_seconds", lag.ms / 1000, each.topic)
        if each.is_copied:
            if each.tail_size is not None:
                gauge("untiered_tail_bytes", each.tail_size, each.topic)
            gauge("untiered_tail_offsets", each.tail, each.topic)
            gauge("missing_offsets", each.missing, each.topic)
            gauge("short_retention_margins", each.short_margins, each.topic)
            gauge("lowered_limits", each.lowered, each.topic)
            if each.margin_ms is not None:
                gauge("retention_margin_seconds", each.margin_ms / 1000, each.topic)
        gauge("remote_bytes", segments.remote_size, each.topic)
        gauge("unfinished_copies", segments.unfinished, each.topic)
        gauge("stuck_copies", segments.stuck, each.topic)
        gauge("failed_deletions", segments.failed_deletions, each.topic)
        gauge("delete_lag_segments", segments.deleting, each.topic)
        gauge("delete_lag_bytes", segments.deleting_size, each.topic)
        gauge("unreadable_partitions", each.unreadable, each.topic)
        gauge("offset_violations", sum(each.violating.values()), each.topic)


def count(cluster: str | None, **by_topic: Counter[str]) -> None:
    """Add to counters, such as copy_bytes, what a run did of each topic of a cluster."""
    from airflow.sdk.observability import stats  # noqa: PLC0415 - a DAG file is parsed every few seconds

    for name, counts in by_topic.items():
        for topic, number in counts.items():
            stats.incr(f"{PREFIX}.{name}", number, tags=_tags(topic, cluster))
            if _has_legacy_names():
                stats.incr(_legacy_name(name, topic, cluster), number)


def _gauge(name: str, value: float, topic: str, cluster: str | None) -> None:
    from airflow.sdk.observability import stats  # noqa: PLC0415 - as above

    stats.gauge(f"{PREFIX}.{name}", value, tags=_tags(topic, cluster))
    if _has_legacy_names():
        stats.gauge(_legacy_name(name, topic, cluster), value)


def _tags(topic: str, cluster: str | None) -> dict[str, str]:
    return {"topic": topic} if cluster is None else {"topic": topic, "cluster": cluster}


def _legacy_name(name: str, topic: str, cluster: str | None) -> str:
    # As Airflow does: a dot would begin another level of the name.
    names = [each.replace(".", "__")[:MOST_LETTERS] for each in (cluster, topic) if each is not None]
    return ".".join((PREFIX, name, *names))


def _has_legacy_names() -> bool:
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - as above

    return bool(conf.getboolean("metrics", "legacy_names_on", fallback=True))
