"""A partition written by any sequence of appends, and beside it the plainest thing that says what a reader is to get.

Producers 1 to 3 write transactions, which begin, go on over segments, and are committed, aborted or left open; other
batches belong to none. Timestamps are as they come: they fall as often as they rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hypothesis import strategies as st

from support.remote_logs import CLUSTER_ID, ENABLED, NOW, RemoteLogFiles, topic_id, unsynced
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)


class Fate(Enum):
    """What becomes of a record."""

    VISIBLE = "visible"
    ABORTED = "aborted"
    OPEN = "open"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Append:
    """A step: a batch of `producer` (0: of none) with these timestamps (ms behind NOW)."""

    producer: int
    timestamps: tuple[int, ...]
    codec: Compression = Compression.NONE


@dataclass(frozen=True, slots=True)
class End:
    """A step: the end of a producer's transaction."""

    producer: int
    kind: ControlRecordType


Step = Append | End
_TIMES = st.integers(0, 60)
_ENDS = st.sampled_from([ControlRecordType.ABORT, ControlRecordType.COMMIT])
_CODECS = st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD])
_APPENDS = st.builds(Append, st.integers(0, 3), st.lists(_TIMES, min_size=1, max_size=4).map(tuple), _CODECS)
_STEP: st.SearchStrategy[Step] = st.one_of(_APPENDS, _APPENDS, st.builds(End, st.integers(1, 3), _ENDS))
_LAST = st.permutations([1, 2, 3]).flatmap(lambda who: st.lists(_ENDS, max_size=3).map(lambda ends: _ended(who, ends)))
STEPS = st.tuples(st.lists(_STEP, min_size=1, max_size=40), _LAST).map(lambda both: [*both[0], *both[1]])
"""Appends and ends as they come; then some or all of what is still open ends."""


def _ended(producers: Sequence[int], kinds: Sequence[ControlRecordType]) -> list[Step]:
    return [End(producer, kind) for producer, kind in zip(producers, kinds, strict=False)]


@dataclass
class ModelledLog:
    """What was appended: the timestamp (ms) and the fate of each offset, and at which offset that was decided."""

    timestamps: list[int] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    decided_at: list[int | None] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.fates)

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return next((at for at, fate in enumerate(self.fates) if fate is Fate.OPEN), self.end)

    def value(self, offset: int) -> bytes:
        return b"value %d" % offset

    def visible(self, start: int, end: int) -> list[int]:
        """The offsets that a reader of all records gets of [`start`, `end`)."""
        return [at for at in range(start, min(end, self.end)) if self.fates[at] is not Fate.MARKER]

    def committed(self, start: int, end: int) -> list[int]:
        """The offsets that a read_committed reader gets."""
        return [at for at in range(start, min(end, self.stable_end)) if self.fates[at] is Fate.VISIBLE]

    def decided_end(self, end: int) -> int:
        """The offset below which all is decided by what lies below `end`."""
        decided = (self.decided_at[at] for at in range(end))
        return next((at for at, marker in enumerate(decided) if marker is None or marker >= end), end)

    def first_at_or_after(self, timestamp: int, end: int) -> int | None:
        """The first offset below `end` with a timestamp (ms) of at least that."""
        return next((at for at in range(self.start, end) if self.timestamps[at] >= timestamp), None)

    def latest(self, end: int) -> int | None:
        """The first offset below `end` with the largest timestamp."""
        largest = max(self.timestamps[self.start : end], default=None)
        return None if largest is None else self.timestamps.index(largest, self.start, end)


@dataclass
class _Writing:
    log: LocalLog
    model: ModelledLog
    sequences: dict[int, int] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    owners: list[int] = field(default_factory=list)

    def take(self, step: Step) -> None:
        if isinstance(step, End):
            if step.producer in self.opened:
                self._end(step)
            return
        start = self.log.log_end_offset
        times = [NOW + 1000 * each for each in step.timestamps]
        records = [Record(start + i, time, b"key", self.model.value(start + i)) for i, time in enumerate(times)]
        if not step.producer:
            self.log.append(records, step.codec)
            self._count(times, Fate.VISIBLE)
            return
        sequence = self.sequences.get(step.producer, 0)
        self.log.append(
            records, step.codec, producer_id=step.producer, producer_epoch=0, base_sequence=sequence,
            is_transactional=True,
        )  # fmt: skip
        self.sequences[step.producer] = sequence + len(times)
        self.opened.add(step.producer)
        self._count(times, Fate.OPEN, step.producer)

    def _end(self, step: End) -> None:
        self.log.append_end_marker(step.producer, 0, step.kind)
        self.opened.discard(step.producer)
        marker = self.model.end
        fate = Fate.ABORTED if step.kind is ControlRecordType.ABORT else Fate.VISIBLE
        for at, owner in enumerate(self.owners):
            if owner == step.producer and self.model.fates[at] is Fate.OPEN:
                self.model.fates[at] = fate
                self.model.decided_at[at] = marker
        self._count([NOW], Fate.MARKER)

    def _count(self, times: Sequence[int], fate: Fate, owner: int = 0) -> None:
        is_open = fate is Fate.OPEN
        self.model.decided_at += [None if is_open else self.model.end + i for i in range(len(times))]
        self.model.timestamps += times
        self.model.fates += [fate] * len(times)
        self.owners += [owner] * len(times)


def write_modelled_log(root: Path, steps: Sequence[Step]) -> tuple[RemoteLogFiles, ModelledLog]:
    """Write orders-0 by `steps` into a log directory below `root`, with the settings of its remote log."""
    files = RemoteLogFiles(root, properties={"topics": {"orders": dict(ENABLED)}})
    model = ModelledLog()
    with unsynced(), LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        writing = _Writing(writer.create_log("orders", 0, topic_id("orders"), CONFIG), model)
        for step in steps:
            writing.take(step)
    return files, model
