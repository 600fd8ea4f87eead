"""How long copies may stop before a topic's brokers delete records that are not copied yet: the margin.

A record may wait for its copy until its tail is old enough to roll (RollRules.tail_ms) and the topic's lag is over. The
margin is what then remains of the brokers' retention: by age, and by size at the rate at which the partition is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tiered_storage.settings.topics import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.kafka_wire.topic_configs import TopicConfigs
    from tiered_storage.remote_log.source.partition_log import PartitionLog, UnsegmentedLog

_HOUR: Final = 3_600_000
_DAY: Final = 24 * _HOUR


def why_margin_is_short(configs: TopicConfigs, topic: TopicSettings, least_ms: int, bytes_a_ms: float) -> str | None:
    """Return why an outage of `least_ms` would lose records of a topic; None if it would lose none.

    `bytes_a_ms` is the rate at which one of its partitions is written; 0 if it is unknown, or nothing is written.
    """
    by_age, by_size = margin_by_age(configs, topic), margin_by_size(configs, topic, bytes_a_ms)
    ask = f"or lower enable.min.retention.margin.ms ({least_ms})"
    if by_age is not None and by_age < least_ms:
        needed = least_ms + max(min(_segment_ms(configs, topic), least_ms), topic.remote_copy_lag_ms)
        remedy = f"set its retention.ms at the brokers to {needed} or more, {ask}"
        if topic.remote_copy_lag_ms < 0:
            remedy = "set remote.copy.lag.ms: without it, records wait for remote.copy.lag.bytes more, perhaps for ever"
        return (
            f"its brokers delete records that are not copied yet, if copies stop for longer than {_in_hours(by_age)} "
            f"(retention.ms={configs.retention_ms}): {remedy}"
        )
    if by_size is not None and by_size < least_ms:
        needed = int(configs.retention_bytes + (least_ms - by_size) * bytes_a_ms)
        return (
            f"its brokers delete records that are not copied yet, if copies stop for longer than {_in_hours(by_size)} "
            f"(retention.bytes={configs.retention_bytes}, written at {bytes_a_ms * 1000:.0f} bytes a second and "
            f"partition): set its retention.bytes at the brokers to {needed} or more, {ask}"
        )
    return None


def margin_by_age(configs: TopicConfigs, topic: TopicSettings) -> int | None:
    """Return the margin (ms) that the brokers' retention.ms leaves; None if it has no limit."""
    if configs.retention_ms < 0:
        return None
    lag = configs.retention_ms if topic.remote_copy_lag_ms < 0 else topic.remote_copy_lag_ms
    waits = max(min(_segment_ms(configs, topic), configs.retention_ms // 2), lag)
    return max(0, configs.retention_ms - waits)


def margin_by_size(configs: TopicConfigs, topic: TopicSettings, bytes_a_ms: float) -> int | None:
    """Return the margin (ms) that the brokers' retention.bytes leaves at a rate; None if it has no limit."""
    if configs.retention_bytes < 0 or bytes_a_ms <= 0:
        return None
    segment_bytes = topic.segment_bytes if topic.segment_bytes >= 0 else configs.segment_bytes
    lagging = 0.0 if topic.remote_copy_lag_ms == 0 else _lagging(topic, bytes_a_ms)
    return max(0, int((configs.retention_bytes - segment_bytes - lagging) / bytes_a_ms))


def write_rate(
    log: PartitionLog, unsegmented: UnsegmentedLog, now: int, windows: Sequence[int] = (_HOUR, _DAY)
) -> float:
    """Return the bytes a ms at which a partition is written: the largest of that in the last `windows` (ms).

    Raises SourceClusterError.
    """
    rates = [0.0]
    for window in windows:
        first = max(unsegmented.offset_at(now - window), log.log_start_offset)
        if first < log.readable_end:
            rates.append((log.readable_end - first) * unsegmented.bytes_an_offset(first) / window)
    return max(rates)


def _segment_ms(configs: TopicConfigs, topic: TopicSettings) -> int:
    return topic.segment_ms if topic.segment_ms >= 0 else configs.segment_ms


def _lagging(topic: TopicSettings, bytes_a_ms: float) -> float:
    """Return how many bytes wait for the topic's lag: one of the two limits ends the wait."""
    by_age = topic.remote_copy_lag_ms * bytes_a_ms
    limits = [limit for limit in (by_age, topic.remote_copy_lag_bytes) if limit >= 0]
    return min(limits, default=0.0)


def _in_hours(ms: int) -> str:
    return f"{ms / _HOUR:.1f} h"
