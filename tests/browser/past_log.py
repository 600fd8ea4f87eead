"""A log directory whose records were written on the day before, for backfills of copy_segments to look back on.

orders-0      a segment every five minutes from 09:00 on: each ends exactly with a window of the DAG's schedule
orders-1      the same a second later: its successors begin just after a window's end, and wait for the next one
payments-0    a segment every ten minutes from 09:00 on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import yaml

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record

WINDOW = timedelta(minutes=5)
_BATCH_EVERY = timedelta(minutes=1)
_WRITTEN_FOR = timedelta(minutes=45)
_RECORDS = 40
_VALUE_BYTES = 20_000


@dataclass(frozen=True, slots=True)
class PastPartition:
    """A partition of the log: how long after the start it begins, and how much record time a segment spans."""

    topic: str
    partition: int
    begins_after: timedelta
    segment_span: timedelta

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def segment_records(self) -> int:
        """How many records, and so offsets, a closed segment holds."""
        return self.segment_span // _BATCH_EVERY * _RECORDS


PARTITIONS = (
    PastPartition("orders", 0, timedelta(), WINDOW),
    PastPartition("orders", 1, timedelta(seconds=1), WINDOW),
    PastPartition("payments", 0, timedelta(), 2 * WINDOW),
)
TOPICS = frozenset(partition.topic for partition in PARTITIONS)


def start_of_the_day_before(clock: Clock) -> datetime:
    """Return 09:00 UTC of the day before `clock`: a boundary of the schedule's windows."""
    today = datetime.fromtimestamp(clock() / 1000, UTC).date()
    return datetime.combine(today - timedelta(days=1), time(9), UTC)


def write_past_log(root: Path, start: datetime) -> None:
    """Write the log directory `root`, as a cleanly stopped broker would leave it; its records begin at `start`."""
    topic_ids = {topic: random_uuid() for topic in TOPICS}
    with LogDirectoryWriter.create(root, random_uuid()) as writer:
        for partition in PARTITIONS:
            # A batch a minute: the one that is a whole span later than a segment's first begins the next segment.
            config = LogConfig(segment_ms=_ms(partition.segment_span - _BATCH_EVERY / 2))
            log = writer.create_log(partition.topic, partition.partition, topic_ids[partition.topic], config)
            for number in range(_WRITTEN_FOR // _BATCH_EVERY):
                moment = start + partition.begins_after + number * _BATCH_EVERY
                log.append([_record(partition, moment, position) for position in range(_RECORDS)])


def write_settings(path: Path, log_directory: Path, topics: Mapping[str, Mapping[str, object]]) -> None:
    """Write a settings file at `path` with a store of its own, in which `topics` start as they say.

    Administrators may read all of them.
    """
    rights = path.with_name("read_rights.yaml")
    everything = {"read": ["*"]}
    rights.write_text(
        yaml.safe_dump({"roles": {"ADMIN": everything}, "users": {"admin": everything}, "admins": ["admin"]}),
        encoding="utf-8",
    )
    settings = {
        "log.dirs": [str(log_directory)],
        "log.retention.ms": -1,
        # A task for each partition, so that each shows under its name.
        "commit.batch.partitions": 1,
        "state.directory": str(path.parent),
        "read.service.rights.file": str(rights),
        "topics": dict(topics),
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def closed_by(partition: PastPartition, start: datetime, window_end: datetime) -> int:
    """Return how many segments of `partition` have a successor whose first record is at or before `window_end`."""
    begun = window_end - (start + partition.begins_after)
    last_batch = _WRITTEN_FOR - _BATCH_EVERY
    return max(0, min(begun, last_batch) // partition.segment_span)


def _record(partition: PastPartition, moment: datetime, position: int) -> Record:
    key = f"{partition}-{position}".encode()
    return Record(0, int(moment.timestamp() * 1000), key, bytes([position % 251]) * _VALUE_BYTES)


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
