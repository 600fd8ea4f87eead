"""The settings by which a log is written, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.batch_header import BATCH_OVERHEAD, INT32_MAX
from tiered_storage.kafka_log.index_builder import INDEX_INTERVAL_BYTES
from tiered_storage.kafka_log.time_index import ENTRY as TIME_ENTRY


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a log is cut into segments and indexed; each field is Kafka's topic setting of the same words.

    `segment_bytes`, `segment_index_bytes`, `max_message_bytes` (of one whole batch) and `index_interval_bytes` are
    bytes, `segment_ms` is ms of record time. Raises ConfigurationError for what no segment can satisfy.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    max_message_bytes: int = 1_048_588

    def __post_init__(self) -> None:
        _check("segment_bytes", self.segment_bytes, BATCH_OVERHEAD)
        _check("segment_ms", self.segment_ms, 1, most=(1 << 63) - 1)
        _check("segment_index_bytes", self.segment_index_bytes, 2 * TIME_ENTRY.itemsize)
        _check("index_interval_bytes", self.index_interval_bytes, 0)
        _check("max_message_bytes", self.max_message_bytes, BATCH_OVERHEAD)


def _check(name: str, value: int, least: int, most: int = INT32_MAX) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{name} is {value}: it must be between {least} and {most}")
