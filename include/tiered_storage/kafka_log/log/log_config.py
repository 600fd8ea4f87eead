"""The settings of a local log, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.indexes.index_builder import INDEX_INTERVAL_BYTES
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, INT32_MAX

INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a log is rolled and indexed; each field is the Kafka topic setting of the same name.

    `segment_bytes`, `segment_index_bytes`, `max_message_bytes` (of one whole batch) and `index_interval_bytes` are
    bytes, `segment_ms` is ms of record time. A record stamped by its producer may be `message_timestamp_before_max_ms`
    ms earlier than the log's clock and `message_timestamp_after_max_ms` ms later.

    The log is flushed once `flush_messages` offsets or `flush_ms` ms have passed since the last flush. It checks that
    only after an append: an idle log is not flushed by `flush_ms`.

    `retention_ms` and `retention_bytes` (-1: no limit) decide what a retention call removes from the log; the files are
    deleted `file_delete_delay_ms` later. A producer is forgotten after `producer_id_expiration_ms` of silence.

    Raises ConfigurationError for a value that no segment can satisfy.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    max_message_bytes: int = 1_048_588
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000

    def __post_init__(self) -> None:
        _check("segment_bytes", self.segment_bytes, BATCH_OVERHEAD)
        _check("segment_ms", self.segment_ms, 1, most=INT64_MAX)
        _check("segment_index_bytes", self.segment_index_bytes, 2 * TIME_ENTRY.itemsize)
        _check("index_interval_bytes", self.index_interval_bytes, 0)
        _check("max_message_bytes", self.max_message_bytes, BATCH_OVERHEAD)
        _check("message_timestamp_before_max_ms", self.message_timestamp_before_max_ms, 0, most=INT64_MAX)
        _check("message_timestamp_after_max_ms", self.message_timestamp_after_max_ms, 0, most=INT64_MAX)
        _check("flush_messages", self.flush_messages, 1, most=INT64_MAX)
        _check("flush_ms", self.flush_ms, 0, most=INT64_MAX)
        _check("retention_ms", self.retention_ms, -1, most=INT64_MAX)
        _check("retention_bytes", self.retention_bytes, -1, most=INT64_MAX)
        _check("file_delete_delay_ms", self.file_delete_delay_ms, 0, most=INT64_MAX)
        _check("producer_id_expiration_ms", self.producer_id_expiration_ms, 1)


def _check(name: str, value: int, least: int, most: int = INT32_MAX) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{name} is {value}: it must be between {least} and {most}")
