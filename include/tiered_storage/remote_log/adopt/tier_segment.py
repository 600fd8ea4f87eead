"""A segment of Kafka's own remote tier, opened as a copy opens one of a local log.

Its bytes come straight from the tier's store, window by window: no file is written. A segment that a later leader
truncated ends where it is still valid: then the copy builds its offset index, time index and producer snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from tiered_storage.errors import CorruptIndexError, CorruptRecordError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, parse_producer_snapshot
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.read_only_storage import NativeRemoteStorage
from tiered_storage.remote_log.native.segment_files import PIECE_BYTES
from tiered_storage.remote_log.source.partition_log import LocalSegment
from tiered_storage.remote_log.source.segment_source import Beside, Content
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """A segment of the tier and the part of it that is valid, which `shown` describes as a local segment."""

    metadata: RemoteLogSegmentMetadata
    shown: LocalSegment

    @property
    def is_whole(self) -> bool:
        """Whether no later leader truncated it."""
        return self.shown.end_offset == self.metadata.end_offset


@dataclass(frozen=True, slots=True)
class TieredLog:
    """The segments of one partition, by offset; `name` is the log's for messages.

    `before` has the segment that ends before an offset, where no later leader truncated it. `remembered` keeps the
    producers at the last offset for which a reader of the whole segment before it found them.
    """

    name: str
    segments: Sequence[TieredSegment]
    before: Mapping[int, TieredSegment]
    storage: NativeRemoteStorage
    remembered: MutableMapping[int, KnownProducers]


class TierSegment:
    """The OpenSegment of a segment in Kafka's own remote tier.

    Reading raises what the tier's store raises, in place of FileNotFoundError and OSError.
    """

    def __init__(self, segment: TieredSegment, log: TieredLog) -> None:
        """Read nothing yet."""
        self._segment, self._log = segment, log
        self._metadata, self._files = segment.metadata, log.storage.files

    @property
    def name(self) -> str:
        return f"{self._files.root}/{self._files.log_name(self._metadata)}"

    @property
    def log_name(self) -> str:
        return self._log.name

    @property
    def base_offset(self) -> int:
        return self._metadata.start_offset

    @property
    def offset_index(self) -> Beside[OffsetIndex]:
        return self._beside(IndexKind.OFFSET, lambda raw, name: OffsetIndex.parse(raw, name, self.base_offset))

    @property
    def time_index(self) -> Beside[TimeIndex]:
        return self._beside(IndexKind.TIMESTAMP, lambda raw, name: TimeIndex.parse(raw, name, self.base_offset))

    @property
    def transaction_index(self) -> Beside[TransactionIndex]:
        base, end = self.base_offset, self._segment.shown.end_offset or 0

        def parse(raw: bytes, name: str) -> TransactionIndex:
            entries = TransactionIndex.parse(raw, name, base).transactions
            return TransactionIndex(base, tuple(each for each in entries if each.last_offset <= end))

        return _index(self._metadata, IndexKind.TRANSACTION, self._log.storage, parse)

    @property
    def index_remedy(self) -> str:
        return "leave Kafka's tier as it is: nothing else needs to be done"

    @property
    def producers(self) -> TierProducers:
        return TierProducers(self._segment, self._log)

    def producer_snapshot(self, offset: int) -> Beside[tuple[ProducerSnapshotEntry, ...]]:
        return snapshot_at(offset, self._log)

    def _beside(self, kind: IndexKind, parse: Callable[[bytes, str], Content]) -> Beside[Content]:
        if not self._segment.is_whole:
            return Beside(f"{self.name}: {kind.name} up to offset {self._segment.shown.end_offset}", lambda: None)
        return _index(self._metadata, kind, self._log.storage, parse)

    def exists(self) -> bool:
        try:
            self._files.object_size(self._files.log_name(self._metadata))
        except RemoteObjectNotFoundError:
            return False
        return True

    def state(self) -> Hashable:
        return self._metadata.segment_id, self.size()

    def size(self) -> int:
        return self._segment.shown.size

    def crc32c(self) -> int:
        checksum = 0
        for piece in self._files.read_log(self._metadata, 0, self.size()):
            checksum = crc32c(piece, checksum)
        return checksum

    def head(self) -> bytes:
        return b"".join(self._files.read_log(self._metadata, 0, min(BATCH_OVERHEAD, self.size())))

    def windows(
        self, start_position: int = 0, *, window_bytes: int | None = None, verify_crc: bool = True
    ) -> Iterator[tuple[memoryview, BatchTable]]:
        where = self._metadata, self._log.storage, start_position, self.size()
        yield from batches_of(*where, window_bytes=window_bytes or PIECE_BYTES, verify_crc=verify_crc)

    def position_before(self, offset: int) -> int:
        try:
            index = self.offset_index.read()
        except CorruptIndexError:
            return 0
        return 0 if index is None else index.lookup(offset).position

    def read(self, offset: int) -> tuple[bytes, int] | None:
        found = self._batches_from(offset, verify_crc=False)
        return None if found is None else (found[0], found[2])

    def scan(self, offset: int) -> tuple[bytes, BatchTable, int] | None:
        return self._batches_from(offset, verify_crc=True)

    def siblings(self) -> Sequence[LocalSegment]:
        return [segment.shown for segment in self._log.segments]

    def _batches_from(self, offset: int, *, verify_crc: bool) -> tuple[bytes, BatchTable, int] | None:
        """Return the batches of the window that has `offset`, from its batch on; None if it is after all of them."""
        position = self.position_before(offset)
        try:
            return self._found(offset, position, verify_crc=verify_crc)
        except CorruptRecordError:
            if not position:
                raise
            return self._found(offset, 0, verify_crc=verify_crc)  # the index may be false

    def _found(self, offset: int, position: int, *, verify_crc: bool) -> tuple[bytes, BatchTable, int] | None:
        for window, table in self.windows(position, verify_crc=verify_crc):
            row = int(table.last_offset.searchsorted(offset))
            if row < len(table):
                begin = int(table.position[row] - table.position[0])
                return bytes(window[begin:]), table.rows(row, len(table)), int(table.position[row])
        return None


@dataclass(frozen=True, slots=True)
class TierProducers:
    """The SegmentProducers of a segment in Kafka's own remote tier: by the snapshot of the segment before it."""

    segment: TieredSegment
    log: TieredLog

    @property
    def _base_offset(self) -> int:
        return self.segment.metadata.start_offset

    def before(self) -> KnownProducers:
        return self._at(self._base_offset) or self.by_log()

    def by_log(self) -> KnownProducers:
        end = self._base_offset
        known, begin = KnownProducers(end, (), end or None), 0
        earlier = [each for each in self.log.segments if each.metadata.start_offset < end]
        for begin in reversed(range(len(earlier))):
            start = earlier[begin].metadata.start_offset
            known = KnownProducers(start, (), start or None)
            if (found := self._at(start)) is not None:
                known = found
                break
        for each in earlier[begin:]:
            known = _followed(known, each, end, self.log.storage)
        return known

    def remember(self, known: KnownProducers) -> None:
        self.log.remembered.clear()
        self.log.remembered[known.end_offset] = known

    def _at(self, offset: int) -> KnownProducers | None:
        """Return the producers at `offset` if they are known without reading batches."""
        if offset == 0:
            return KnownProducers(0)
        try:
            producers = snapshot_at(offset, self.log).read()
        except CorruptIndexError:
            producers = None
        return self.log.remembered.get(offset) if producers is None else KnownProducers(offset, producers)


def _followed(known: KnownProducers, segment: TieredSegment, end: int, storage: NativeRemoteStorage) -> KnownProducers:
    """Advance `known` through the batches of `segment` that it lacks, up to offset `end` (exclusive).

    After a gap, batches are known only from there on. Segments may overlap: Kafka's next leader has others.
    """
    start = segment.metadata.start_offset
    if start > known.end_offset:
        known = KnownProducers(start, (), start)
    state = known.state()
    for window, table in batches_of(segment.metadata, storage, 0, segment.shown.size):
        first, last = int(table.base_offset.searchsorted(state.end_offset)), int(table.base_offset.searchsorted(end))
        if first < last:
            rows, begin = table.rows(first, last), int(table.position[0])
            until = int(rows.position[-1] + rows.size[-1])
            follow(state, str(segment.metadata.segment_id), window[int(rows.position[0]) - begin : until - begin], rows)
    return KnownProducers(state.end_offset, state.snapshot(), known.seen_from)


def batches_of(
    segment: RemoteLogSegmentMetadata,
    storage: NativeRemoteStorage,
    start_position: int,
    end_position: int,
    *,
    window_bytes: int = PIECE_BYTES,
    verify_crc: bool = True,
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches in the bytes from `start_position`, where one begins, to `end_position` (exclusive).

    A window has `window_bytes` at most, or one larger batch. Raises CorruptRecordError for the first broken batch, and
    what the store raises.
    """
    name = f"{storage.files.root}/{storage.files.log_name(segment)}"
    stream = BatchStream(
        name, segment.start_offset, end_position - start_position, start_position=start_position, verify_crc=verify_crc
    )
    for piece in storage.files.read_log(segment, start_position, end_position):
        for at in range(0, len(piece), window_bytes):
            yield from stream.windows(piece[at : at + window_bytes])
    stream.finish()


def snapshot_at(offset: int, log: TieredLog) -> Beside[tuple[ProducerSnapshotEntry, ...]]:
    """Return the producers of `log` up to `offset` (exclusive): the snapshot of the segment that ends there."""
    if (segment := log.before.get(offset)) is not None:
        return _index(segment.metadata, IndexKind.PRODUCER_SNAPSHOT, log.storage, parse_producer_snapshot)
    return Beside(f"{log.name}: the producer snapshot at offset {offset}", lambda: None)


def _index(
    segment: RemoteLogSegmentMetadata,
    kind: IndexKind,
    storage: NativeRemoteStorage,
    parse: Callable[[bytes, str], Content],
) -> Beside[Content]:
    name = f"{storage.files.root}/{storage.files.log_name(segment)}: {kind.name}"

    def read() -> Content | None:
        try:
            raw = storage.fetch_index(segment, kind)
        except RemoteObjectNotFoundError:
            return None
        return parse(raw, name)

    return Beside(name, read)
