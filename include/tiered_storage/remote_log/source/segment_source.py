"""The border to local logs: which segments exist, how far they are stable, and what is in them.

Only a source knows where its segments lie: all others open a segment by the location that its source gave it. The
functions at the end tell how old an open segment is, and of which format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from tiered_storage.errors import CorruptIndexError, TieredStorageError
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    PartitionReplicas,
    UnreadablePartition,
)

if TYPE_CHECKING:
    from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
    from tiered_storage.kafka_log.indexes.time_index import TimeIndex
    from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
    from tiered_storage.kafka_log.producers.producer_history import KnownProducers
    from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
    from tiered_storage.kafka_log.records.batch_table import BatchTable

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Beside(Generic[Content]):
    """What may stand beside a segment's batches, an index or a snapshot: its `name` for messages, and its content.

    `read` returns None if there is none. It raises CorruptIndexError and OSError.
    """

    name: str
    read: Callable[[], Content | None]


class SegmentProducers(Protocol):
    """The known state of a log's producers at one segment's base offset. Raises as the segment's batches do."""

    def before(self) -> KnownProducers:
        """Return it by the snapshot there if that is sound, else by the log."""
        ...

    def by_log(self) -> KnownProducers:
        """Return it from the log before the base offset, ignoring the snapshot there."""
        ...

    def remember(self, known: KnownProducers) -> None:
        """Keep the producers found by a reader of the whole segment, for the segments after it."""
        ...


class OpenSegment(Protocol):
    """A segment as it is now. Holds nothing open between two calls. Not for two threads at once.

    Whatever reads its batches raises FileNotFoundError if the segment is gone, CorruptRecordError and OSError.
    """

    @property
    def name(self) -> str:
        """The segment's name for messages."""
        ...

    @property
    def log_name(self) -> str:
        """The log's name for messages."""
        ...

    @property
    def base_offset(self) -> int:
        """The offset that it begins at."""
        ...

    @property
    def offset_index(self) -> Beside[OffsetIndex]:
        """Where some of its batches begin."""
        ...

    @property
    def time_index(self) -> Beside[TimeIndex]:
        """Offsets up to which no record is later than a timestamp."""
        ...

    @property
    def transaction_index(self) -> Beside[TransactionIndex]:
        """The transactions that were aborted in it."""
        ...

    @property
    def index_remedy(self) -> str:
        """What a person can do about a broken index of it, for messages."""
        ...

    @property
    def producers(self) -> SegmentProducers:
        """The known state of the log's producers at its start."""
        ...

    def producer_snapshot(self, offset: int) -> Beside[tuple[ProducerSnapshotEntry, ...]]:
        """The producers of its log up to `offset` (exclusive)."""
        ...

    def exists(self) -> bool:
        """Say whether it is still there."""
        ...

    def state(self) -> Hashable:
        """Return a value that differs once its batches do. Raises FileNotFoundError."""
        ...

    def size(self) -> int:
        """Return how many bytes its batches have."""
        ...

    def crc32c(self) -> int:
        """Return the checksum of all of its bytes, whatever they are."""
        ...

    def head(self) -> bytes:
        """Return the header of its first batch as it stands there, or what there is of it; see `first_timestamp`."""
        ...

    def windows(
        self, start_position: int = 0, *, window_bytes: int | None = None, verify_crc: bool = True
    ) -> Iterator[tuple[memoryview, BatchTable]]:
        """Yield its batches from `start_position` (bytes) on, where one begins: their bytes and their headers.

        The bytes are valid until the next step. A window has about `window_bytes`, and more where a batch is larger.
        """
        ...

    def position_before(self, offset: int) -> int:
        """Return where (bytes) a batch at or before `offset` begins, by the offset index; 0 if that is unusable."""
        ...

    def read(self, offset: int) -> tuple[bytes, int] | None:
        """Return whole batches, about 1 MiB, and the position (bytes) of the first, which `offset` is in or before.

        None if the segment has nothing at or after `offset`. Checksums are not compared.
        """
        ...

    def scan(self, offset: int) -> tuple[bytes, BatchTable, int] | None:
        """Return what `read` does, up to the first broken batch, checksums compared, with the batches' headers.

        A torn end after the readable end therefore does no harm. Raises as `read` if the first batch is broken.
        """
        ...

    def siblings(self) -> Sequence[LocalSegment]:
        """Return all segments of its log as they are now, in order; the last one is the active one."""
        ...


class LocalTrim(Protocol):
    """Removes segments from the start of a local log: deletes their files, or has the brokers delete their records."""

    def ensure_removable(self, segments: Sequence[LocalSegment]) -> None:
        """Raise InvalidLogDirectoryError if `segments`, of one log, are not where removing them would free room."""
        ...

    def trim(
        self,
        partition: TopicIdPartition,
        segments: Sequence[LocalSegment],
        new_local_start: int,
        still_due: Callable[[], int] | None = None,
    ) -> int:
        """Remove `segments`, the oldest of `partition`, up to `new_local_start`; return where its log begins now.

        `still_due` is called when no other process can change the log any more, or right before its brokers are asked.
        It returns where the log may begin now, at most `new_local_start`; if it raises, nothing is changed. Raises
        LogDirectoryLockedError while a broker has the directory, InvalidLogDirectoryError if its files show that
        `segments` are not (or no longer) the oldest closed ones, and SourceClusterError if brokers refuse, which know
        nothing of `segments`. A second call does nothing.
        """
        ...


class SegmentSource(Protocol):
    """Where local segments come from. Each is opened by its location: see open_segment."""

    @property
    def is_configured(self) -> bool:
        """Whether the settings name any log. If not, `partitions` raises ConfigurationError; the rest finds nothing."""
        ...

    @property
    def shows_segments(self) -> bool:
        """Whether its logs have segments to open. If not, a copy rolls its own; nothing else reads the local log."""
        ...

    @property
    def access(self) -> Mapping[str, str]:
        """What a worker elsewhere needs to read from the source, secrets too; empty if locations suffice."""
        ...

    @property
    def notices(self) -> Sequence[str]:
        """Notices about the source as a whole, such as a missing checkpoint file."""
        ...

    @property
    def local_trim(self) -> LocalTrim:
        """Removes segments of this source."""
        ...

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Look at every partition now, each directory in order of topic and number.

        Raises InvalidLogDirectoryError, also if a broker holds what it reads (LogDirectoryLockedError), and
        ConfigurationError if no log is configured.
        """
        ...

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        """Name every partition without reading a log. Raises as `partitions`."""
        ...

    def named(self, topic: str, number: int) -> Sequence[NamedPartition | UnreadablePartition]:
        """Return the partitions of that name, even if a broker holds them; what cannot be read is unreadable."""
        ...

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Look at one partition now; None if it is not there. Raises as the partition's files demand."""
        ...

    def while_trimming(self, segment: LocalSegment) -> SegmentSource:
        """Return this source for use in `still_due` of `local_trim`, which holds the log of `segment`."""
        ...

    def close(self) -> None:
        """Close its connections, if it has any; repeated calls are harmless."""
        ...


@runtime_checkable
class BulkLookup(Protocol):
    """What a SegmentSource also offers if it looks at many partitions together for hardly more than the cost of one."""

    def partitions_of(
        self, wanted: Collection[TopicIdPartition], *, seconds: float | None = None
    ) -> Mapping[TopicIdPartition, PartitionLog | UnreadablePartition]:
        """Look at those of `wanted` that are there. Raises SourceClusterError if none can be looked at.

        It waits `seconds` for the first answer; None: as long as its other calls do.
        """
        ...


@runtime_checkable
class ShowsReplicas(Protocol):
    """What a SegmentSource also offers if it knows which brokers have a partition."""

    def replicas(self) -> Mapping[TopicIdPartition, PartitionReplicas]:
        """Return the replicas of every partition now. Raises as SegmentSource.partitions."""
        ...


def configured_partitions(source: SegmentSource) -> Iterator[PartitionLog | UnreadablePartition]:
    """Look at every partition; at none if no log is configured, for work that the remote log alone suffices for."""
    if source.is_configured:
        yield from source.partitions()


def is_older_than(segment: OpenSegment, moment: int, below: int | None = None) -> bool:
    """Return whether a closed segment has timestamps, and all of them are before `moment` (ms).

    Only batches that begin below the offset `below` count, if it is given. If the time index has a later timestamp, the
    segment is not read. Raises CorruptRecordError and OSError.
    """
    return not is_indexed_since(segment, moment, below) and 0 <= largest_timestamp(segment, below) < moment


def is_indexed_since(segment: OpenSegment, moment: int, below: int | None = None) -> bool:
    """Return whether the time index has an entry of `moment` (ms) or later with an offset below `below` (None: any)."""
    indexed = _last_indexed(segment, below)
    return indexed is not None and indexed >= moment


def is_indexed_before(segment: OpenSegment, moment: int) -> bool:
    """Return whether the time index has timestamps, all before `moment` (ms): an estimate that reads no batch."""
    indexed = _last_indexed(segment)
    return indexed is not None and 0 <= indexed < moment


def largest_timestamp(segment: OpenSegment, below: int | None = None) -> int:
    """Return the largest timestamp (ms) in the headers of a segment's batches, -1 if none has one.

    Only batches that begin below the offset `below` count, where that is given. Reads all of them, in bounded memory,
    checksums verified. Raises CorruptRecordError and OSError.
    """
    largest = -1
    for _, table in segment.windows():
        count = len(table) if below is None else int(table.base_offset.searchsorted(below))
        largest = max(largest, int(table.max_timestamp[:count].max(initial=-1)))
        if count < len(table):
            break
    return largest


def first_timestamp(segment: OpenSegment) -> int | None:
    """Return the timestamp (ms) of the first record; None if there is none, or it has none or is broken.

    For compressed messages of magic 1 it is their largest timestamp, which can only hold a backfill back. A copy
    reports a broken first batch; for the window of a backfill it says nothing. Raises OSError.
    """
    # A plan alone needs none of these imports.
    from tiered_storage.kafka_log.records.batch_header import NO_TIMESTAMP, TimestampType, read_batch_header

    head = segment.head()
    if not any(head):
        return None
    try:
        batch = read_batch_header(head, source=segment.name)
    except TieredStorageError:
        return None
    by_broker = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = batch.max_timestamp if by_broker else batch.base_timestamp
    return None if timestamp == NO_TIMESTAMP else timestamp


def _last_indexed(segment: OpenSegment, below: int | None = None) -> int | None:
    try:
        index = segment.time_index.read()
    except CorruptIndexError:
        return None
    if index is None:
        return None
    count = index.timestamps.size if below is None else int(index.offsets.searchsorted(below))
    return int(index.timestamps[count - 1]) if count else None
