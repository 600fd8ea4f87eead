"""Small logs for tests, written by LocalLog: their contents, whole or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.transactions import split
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.record import Record

TOPIC_ID = "cxfmXdFdRF2-6WITmvYjdA"
NOW = 1_700_000_000_000


def records(count: int = 1, timestamp: int = NOW, size: int = 50) -> list[Record]:
    return [Record(i, timestamp, b"key", bytes(size), (("source", b"test"),)) for i in range(count)]


def create(
    directory: Path, clock: Callable[[], int] = lambda: NOW, base_offset: int = 0, config: LogConfig | None = None
) -> LocalLog:
    return LocalLog.create(directory, "orders", 3, TOPIC_ID, config, clock=clock, base_offset=base_offset)


def read_all(log: LocalLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while batches := log.read(offset, 1000):
        found += [record for _, records in split(batches) for record in records]
        offset = found[-1].offset + 1
    return found
