"""A partition written by any sequence of steps, and the plainest model of what a reader is to get of it.

Producers from 1 on write transactions, which begin, continue over segments, and are committed, aborted or left open.
Producer 0 writes outside of any. Timestamps fall as often as they rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_remote_log,
    copy,
    topic_id,
    unsynced,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


class Fate(Enum):
    """What becomes of a record."""

    VISIBLE = "visible"
    ABORTED = "aborted"
    OPEN = "open"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Sent:
    """A step: a batch of `producer` with these timestamps (ms after NOW)."""

    times: Sequence[int]
    codec: Compression = Compression.NONE
    producer: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A step: the end of a producer's transaction, if it has one."""

    producer: int
    kind: ControlRecordType


ROLL = "roll"
Step = Sent | Ended | str

_ENDS = st.sampled_from([ABORT, COMMIT])
_CODECS = st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD])
LAST_ENDS = st.permutations([1, 2, 3]).flatmap(
    lambda who: st.lists(_ENDS, max_size=3).map(lambda kinds: list(map(Ended, who, kinds)))
)
"""The ends of some or all of what is still open."""


def steps(times: st.SearchStrategy[int], min_size: int = 1) -> st.SearchStrategy[list[Step]]:
    """Return batches with `times` (ms after NOW), ends and rolls in any order."""
    sent = st.builds(Sent, st.lists(times, min_size=1, max_size=4), _CODECS, st.integers(0, 3))
    step: st.SearchStrategy[Step] = st.one_of(sent, sent, st.builds(Ended, st.integers(1, 3), _ENDS), st.just(ROLL))
    return st.lists(step, min_size=min_size, max_size=40)


@dataclass(slots=True)
class Row:
    """What is at an offset; the marker at `decided_at` commits or aborts it."""

    record: Record
    batch_begins: int
    """The first timestamp of its batch (ms)."""
    fate: Fate
    decided_at: int | None
    producer: int = 0

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def committed(self) -> bool:
        return self.fate is Fate.VISIBLE


@dataclass
class ModelledLog:
    """Appends steps to `log`, and keeps the row of each offset that it wrote. Readers begin at `start`."""

    log: LocalLog
    rows: list[Row] = field(default_factory=list)
    start: int = 0
    _sequences: dict[int, int] = field(default_factory=dict)

    def write(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Sent):
                self._send(step)
            elif isinstance(step, Ended):
                self._end(step)
            else:
                self.log.roll()

    def end_all(self) -> None:
        """End what is open, and close the last segment."""
        for producer in {row.producer: None for row in self.rows if row.fate is Fate.OPEN}:
            self._end(Ended(producer, ABORT if producer == 2 else COMMIT))
        self.log.roll()

    def _send(self, sent: Sent) -> None:
        first, producer = self.log.log_end_offset, sent.producer
        records = [
            Record(first + i, NOW + time, b"key %d" % i, self.value(first + i), (("trace", b"1"),) * (i % 3))
            for i, time in enumerate(sent.times)
        ]
        options: dict[str, Any] = {}
        if producer:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(records)
            options = {
                "producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True,
            }  # fmt: skip
        self.log.append(records, sent.codec, **options)
        for each in records:
            fate, decided_at = (Fate.OPEN, None) if producer else (Fate.VISIBLE, each.offset)
            self.rows.append(Row(each, records[0].timestamp, fate, decided_at, producer))

    def _end(self, ended: Ended) -> None:
        of_transaction = [row for row in self.rows if row.producer == ended.producer and row.fate is Fate.OPEN]
        if not of_transaction:
            return
        marker = self.log.log_end_offset
        self.log.append_end_marker(ended.producer, 0, ended.kind)
        for row in of_transaction:
            row.fate, row.decided_at = Fate.VISIBLE if ended.kind is COMMIT else Fate.ABORTED, marker
        self.rows.append(Row(Record(marker, NOW, None, None), NOW, Fate.MARKER, marker))

    @property
    def end(self) -> int:
        return len(self.rows)

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return next((row.offset for row in self.rows if row.fate is Fate.OPEN), self.end)

    @property
    def timestamps(self) -> list[int]:
        return [row.record.timestamp for row in self.rows]

    def value(self, offset: int) -> bytes:
        return b"value %d" % offset

    def visible(self, start: int, end: int) -> list[int]:
        """The offsets that a reader of all records gets of [`start`, `end`)."""
        return [row.offset for row in self.rows[start:end] if row.fate is not Fate.MARKER]

    def committed(self, start: int, end: int) -> list[int]:
        """The offsets that a read_committed reader gets."""
        return [row.offset for row in self.rows[start : min(end, self.stable_end)] if row.committed]

    def decided_end(self, end: int) -> int:
        """The offset below which all is decided by what lies below `end`."""
        return next((row.offset for row in self.rows[:end] if row.decided_at is None or row.decided_at >= end), end)

    def first_at_or_after(self, timestamp: int, end: int) -> int | None:
        """The first offset below `end` with a timestamp (ms) of at least that."""
        return next((at for at in range(self.start, end) if self.timestamps[at] >= timestamp), None)

    def latest(self, end: int) -> int | None:
        """The first offset below `end` with the largest timestamp."""
        largest = max(self.timestamps[self.start : end], default=None)
        return None if largest is None else self.timestamps.index(largest, self.start, end)


def write_modelled_log(root: Path, steps: Sequence[Step]) -> tuple[RemoteLogFiles, ModelledLog]:
    """Write orders-0 by `steps` into a log directory below `root`, with the settings of its remote log."""
    files = RemoteLogFiles(root, properties={"topics": {"orders": dict(ENABLED)}})
    config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    with unsynced(), LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        model = ModelledLog(writer.create_log("orders", 0, topic_id("orders"), config))
        model.write(steps)
    return files, model


def a_copied_topic(root: Path, steps: Sequence[Step], partition: int = 0) -> tuple[RemoteLogFiles, list[Row]]:
    """Lay a remote log out below `root` with a batch of other records, then `steps`, and copy it; return its rows."""
    files = a_remote_log(root, {("orders", partition): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", partition)
        log.roll()
        model = ModelledLog(log)
        model.write(steps)
        model.end_all()
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    return files, [row for row in model.rows if row.fate is not Fate.MARKER]
