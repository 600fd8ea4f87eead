"""The oracle of reads: a partition through both tiers, local segments where they are, remote chunks below them.

Plain, blocking and without a cache, so that it can be checked by eye; the product reads through RemoteLogReader.

A remote read goes from the offset to a finished segment on the lineage, through the remote index trio to one chunk, and
fetches just that. What comes out are whole batches, so that a reader sees each offset once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tiered_storage.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH, read_batch_header
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.indexes.batch_epochs import WrongEpoch
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.lineage import agreed_end, epoch_at, merged
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.read.read_values import Tier
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches as Kafka wrote them; the first one may begin below the offset asked for.

    Records from `end_offset` on, if it is not None, are not to be read from here: a later leader wrote its own.
    """

    content: bytes
    tier: Tier
    source: str
    source_position: int
    end_offset: int | None = None


def below(content: bytes, end_offset: int, source: str, source_position: int) -> bytes:
    """Return the batches of `content`, from `source_position` of `source` on, that begin below `end_offset`."""
    position = 0
    while position < len(content):
        header = read_batch_header(content, position, source=source, source_position=source_position)
        if header.base_offset >= end_offset:
            return content[:position]
        position += header.size
    return content


@dataclass(frozen=True, slots=True)
class PlainReader:
    """Reads partitions of `remote_log`, whose parts belong to the caller."""

    remote_log: RemoteLogManager

    def open(self, partition: TopicIdPartition) -> PartitionReader:
        """Look at `partition` now; what is copied, trimmed or expired later is not seen by what this returns."""
        context = self.remote_log.context
        local = context.source.partition(partition)
        state = context.segments.partition_state(partition)
        observed = local.leader_epochs if local else ()
        if local is not None:
            local = _up_to_what_a_later_leader_cut(local, state.lineage)
        lineage = merged(state.lineage, observed)
        # Of a topic that a person deleted nothing remote is read, also before the next expiry ends it.
        segments = () if state.delete_state is not None else context.segments.list_remote_log_segments(partition)
        coverage = Coverage.of(segments, lineage)
        return PartitionReader(partition, local, coverage, state.log_start_offset or 0, context.storage)

    def log_start_offset(self, partition: TopicIdPartition) -> int:
        """Return the first offset that can be read."""
        return self.open(partition).log_start_offset

    def records(self, partition: TopicIdPartition, offset: int) -> Iterator[Record]:
        """Yield all records from `offset` to the end that is stable now; see PartitionReader.records."""
        return self.open(partition).records(offset)


@dataclass(slots=True)
class PartitionReader:
    """One partition as it was when it was looked at. Raises OffsetOutOfRangeError outside of what it has."""

    partition: TopicIdPartition
    local: PartitionLog | None
    coverage: Coverage
    global_log_start: int
    storage: RemoteStorageManager
    _remote_indexes: tuple[str, RemoteIndexes] | None = field(default=None, repr=False)

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, in either tier."""
        starts = [covered.start_offset for covered in self.coverage.ranges[:1]]
        if self.local is not None:
            starts.append(self.local.log_start_offset)
        return max(self.global_log_start, min(starts, default=0))

    @property
    def log_end_offset(self) -> int:
        """The offset after the last one that is stable; what is remote is, though a restored local log may lag."""
        remote_end = 0 if self.coverage.end_offset is None else self.coverage.end_offset + 1
        local_end = 0 if self.local is None else self.local.last_stable_offset
        return max(self.global_log_start, remote_end, local_end)

    def fetch(self, offset: int) -> FetchedBatches:
        """Return some batches, beginning with the one that holds `offset`; none at the end or after it.

        About 1 MiB; a batch is never cut. Raises RemoteObjectNotFoundError where the offset should be in the remote
        tier and no segment has it, CorruptRecordError where a local segment should have it and does not.
        """
        self._check_range(offset)
        if offset == self.log_end_offset:
            return FetchedBatches(b"", Tier.REMOTE if self.local is None else Tier.LOCAL, str(self.partition), 0)
        segment = self._local_segment(offset)
        return self._fetch_remote_chunk(offset) if segment is None else self._fetch_local(segment, offset)

    def records(self, offset: int) -> Iterator[Record]:
        """Yield the records from `offset` up to the end that is stable, each once, their checksums verified.

        Control records (the markers of transactions) are left out; aborted records are not.
        """
        self._check_range(offset)
        while offset < self.log_end_offset:
            fetched = self.fetch(offset)
            if not fetched.content:
                return  # all up to the end was compacted away
            end_offset = self.log_end_offset if fetched.end_offset is None else fetched.end_offset
            position = 0
            while position < len(fetched.content):
                source, begin = fetched.source, fetched.source_position
                header = read_batch_header(fetched.content, position, source=source, source_position=begin)
                batch = fetched.content[position : position + header.size]
                if not header.is_control:
                    for record in read_records(batch, source=source, source_position=begin + position):
                        if offset <= record.offset < end_offset:
                            yield record
                position += header.size
                offset = max(offset, min(header.next_offset, end_offset))

    def fetch_remote(self, offset: int) -> Iterator[bytes]:
        """Stream the remote bytes from the batch that holds `offset` to the end of its segment, chunk by chunk.

        The end is where a later leader cut the segment off, if one did.
        """
        self._check_range(offset)
        covered = self._remote_range(offset)
        while offset <= covered.end_offset:
            fetched, offset = self._fetch_chunk(covered, offset)
            yield fetched.content

    def _check_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(str(self.partition), offset, self.log_start_offset, self.log_end_offset)

    def _local_segment(self, offset: int) -> LocalSegment | None:
        if self.local is None or not self.local.log_start_offset <= offset < self.local.last_stable_offset:
            return None
        at_or_below = [segment for segment in self.local.segments if segment.base_offset <= offset]
        return at_or_below[-1] if at_or_below else None

    def _fetch_local(self, segment: LocalSegment, offset: int) -> FetchedBatches:
        try:
            found = open_segment(segment.location).read(offset)
        except FileNotFoundError:
            # Trimmed since the partition was opened: then the remote tier has it.
            return self._fetch_remote_chunk(offset)
        if found is None:
            return self._fetch_after(segment, offset)
        content, position = found
        if self.local is not None and (
            segment.end_offset is None or segment.end_offset >= self.local.last_stable_offset
        ):
            content = below(content, self.local.last_stable_offset, segment.location, position)
        return FetchedBatches(content, Tier.LOCAL, segment.location, position)

    def _fetch_after(self, segment: LocalSegment, offset: int) -> FetchedBatches:
        """Continue after `segment`, which has nothing from `offset` on: only the log cleaner leaves such a gap."""
        following = None if segment.end_offset is None else self._local_segment(segment.end_offset + 1)
        if following is None or self.local is None or not self.local.is_compacted:
            reason = f"the segment ends before offset {offset}, which it should hold: its end is missing"
            raise CorruptRecordError(segment.location, open_segment(segment.location).size(), reason)
        return self._fetch_local(following, following.base_offset)

    def _fetch_remote_chunk(self, offset: int) -> FetchedBatches:
        return self._fetch_chunk(self._remote_range(offset), offset)[0]

    def _fetch_chunk(self, covered: CoveredRange, offset: int) -> tuple[FetchedBatches, int]:
        """Return the batches of a chunk from the one that holds `offset` on, and the offset after them."""
        segment = covered.segment
        chunk = self._indexes(segment).chunk_for_offset(offset)
        if chunk is None:
            raise self._missing(offset)
        end = chunk.position + chunk.length
        content = b"".join(self.storage.fetch_log_segment(segment, chunk.position, end - 1))
        _check_chunk(content, chunk, segment)
        begin = _batch_holding(content, offset, chunk.object_name, chunk.position)
        content, end_offset = content[begin:], None
        if covered.end_offset < chunk.last_offset:
            end_offset = covered.end_offset + 1
            content = below(content, end_offset, chunk.object_name, chunk.position + begin)
        fetched = FetchedBatches(content, Tier.REMOTE, chunk.object_name, chunk.position + begin, end_offset)
        return fetched, chunk.last_offset + 1 if end_offset is None else end_offset

    def _remote_range(self, offset: int) -> CoveredRange:
        found = self.coverage.holding(offset, offset)
        if not found:
            raise self._missing(offset)
        return found[0]

    def _indexes(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexes:
        if self._remote_indexes is None or self._remote_indexes[0] != segment.segment_id.id:
            parsed = RemoteIndexes.parse(
                str(segment.segment_id),
                segment.start_offset,
                self.storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX),
                self.storage.fetch_index(segment, IndexKind.REMOTE_OFFSET_INDEX),
                self.storage.fetch_index(segment, IndexKind.REMOTE_TIME_INDEX),
            )
            self._remote_indexes = (segment.segment_id.id, parsed)
        return self._remote_indexes[1]

    def _missing(self, offset: int) -> RemoteObjectNotFoundError:
        return RemoteObjectNotFoundError(
            f"{self.partition}: no finished remote segment on the lineage holds offset {offset}, and it is not local; "
            "'tiered-storage audit' and 'tiered-storage plan' report gaps"
        )


def _up_to_what_a_later_leader_cut(log: PartitionLog, known: Sequence[EpochEntry]) -> PartitionLog:
    """Return an older replica's log without what a leader that it never heard of has cut off."""
    agreed = agreed_end(known, log.leader_epochs, log.last_stable_offset)
    return (
        log if agreed == log.last_stable_offset else replace(log, last_stable_offset=max(agreed, log.log_start_offset))
    )


def _check_chunk(content: bytes, chunk: RemoteLogIndexEntry, segment: RemoteLogSegmentMetadata) -> None:
    """Compare what no checksum of a batch covers: its offsets with the chunk's index, its epoch with the segment's."""
    position, next_offset = 0, chunk.first_offset
    while position < len(content):
        header = read_batch_header(content, position, source=chunk.object_name, source_position=chunk.position)
        if header.base_offset < next_offset or (position == 0 and header.base_offset != chunk.first_offset):
            break
        epoch, expected = header.partition_leader_epoch, epoch_at(segment.leader_epochs, header.base_offset)
        if expected is None:
            expected = NO_LEADER_EPOCH
        if epoch < NO_LEADER_EPOCH or expected not in {NO_LEADER_EPOCH, epoch}:
            wrong = WrongEpoch(chunk.position + position, header.base_offset, epoch, expected)
            raise RemoteObjectCorruptError(
                f"{segment.topic_id_partition}: {chunk.object_name}: at byte {wrong.position}: {wrong}"
            )
        position += header.size
        next_offset = header.next_offset
    if position != len(content) or next_offset != chunk.last_offset + 1:
        raise RemoteObjectCorruptError(
            f"{chunk.object_name}: the batches from byte {chunk.position} on do not hold offsets {chunk.first_offset} "
            f"to {chunk.last_offset}, as their index says"
        )


def _batch_holding(content: bytes, offset: int, source: str, source_position: int) -> int:
    """Return where in `content` the first batch begins that ends at or after `offset`."""
    position = 0
    while position < len(content):
        header = read_batch_header(content, position, source=source, source_position=source_position)
        if header.last_offset >= offset:
            return position
        position += header.size
    raise RemoteObjectCorruptError(
        f"{source}: the chunk at byte {source_position} holds nothing at or after offset {offset}, against its index"
    )
