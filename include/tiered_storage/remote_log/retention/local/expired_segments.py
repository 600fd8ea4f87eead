"""Prove that local segments below the global log start may be deleted although no remote segment is left to compare.

Offsets prove nothing: the deleted remote log may have been another one, of which this is a fork. Either deleted remote
segments were sent with the very bytes that are local, by the checksum in their metadata; or total retention expires the
local records on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, TypeAlias

from tiered_storage.clock import as_date
from tiered_storage.errors import CorruptLogError, DeletionRefusedError, ForkedLogError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.copy.sent_records import known_crc32c, segments_with_sent_bytes
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, share_offsets
from tiered_storage.remote_log.source.segment_source import is_indexed_since, is_older_than
from tiered_storage.settings.topics import TopicSettings

Offsets: TypeAlias = tuple[int, int]
"""The first and the last offset (both inclusive) of a range."""


@dataclass(frozen=True, slots=True)
class TotalRetention:
    """What total retention expires of a local log on its own.

    By size everything below the offset `start`, by time what is older than `before` (ms; None: no limit).
    """

    start: int = 0
    before: int | None = None

    @classmethod
    def of(cls, log: PartitionLog, settings: TopicSettings, now: int, offset: int) -> Self:
        """Return the limits of `log` at `now` (ms); by size per segment, or per batch for one that has `offset`."""
        before = None if settings.retention_ms < 0 else now - settings.retention_ms
        return cls(_start_by_size(log, settings.retention_bytes, offset), before)

    def expires_no_more_than(self, other: TotalRetention) -> bool:
        """Return whether `other` expires everything that this does."""
        if self.start > other.start:
            return False
        return self.before is None or (other.before is not None and self.before <= other.before)

    def may_expire(self, segment: LocalSegment, below: int) -> bool:
        """Return whether this expires what `segment` has below the offset `below`, by its time index."""
        if below <= self.start:
            return True
        return self.before is not None and not is_indexed_since(open_segment(segment.location), self.before, below)

    def expires(self, segment: LocalSegment, below: int) -> bool:
        """Return whether this expires what `segment` has below the offset `below`; read the segment if needed.

        An unreadable segment does not expire, since its age is unknown.
        """
        if below <= self.start:
            return True
        try:
            return self.before is not None and is_older_than(open_segment(segment.location), self.before, below)
        except (CorruptLogError, OSError):
            return False


def _start_by_size(log: PartitionLog, limit: int, offset: int) -> int:
    """Return the offset from which on `log` has at least `limit` bytes, 0 if it has less; negative: no limit."""
    newer_bytes = 0
    for segment in reversed(log.segments if limit >= 0 else ()):
        newer_bytes += segment.size
        if newer_bytes >= limit:
            return offset if newer_bytes - _bytes_before(segment, offset) >= limit else segment.base_offset
    return 0


def _bytes_before(segment: LocalSegment, offset: int) -> int:
    """Return how many bytes of `segment` lie before `offset`; all if the offset is not in it or cannot be found."""
    if segment.end_offset is None or not segment.base_offset < offset <= segment.end_offset:
        return segment.size
    try:
        found = open_segment(segment.location).read(offset)
    except (CorruptLogError, OSError):
        return segment.size
    return segment.size if found is None else found[1]


@dataclass(slots=True)
class ExpiredSegments:
    """Decides which closed segments of `log` may be deleted, by the metadata and the time indexes.

    Remote segments hold everything from the offset `held_from` on. Before a deletion the bytes are read as well:
    ensure_sent, and TotalRetention.expires.
    """

    log: PartitionLog
    metadata: RemoteLogMetadataManager
    held_from: int
    total: TotalRetention
    _sent: list[RemoteLogSegmentMetadata] | None = None

    def why_kept(self, segment: LocalSegment, end_offset: int) -> str | None:
        """Return why `segment`, up to `end_offset`, stays; None if it may be deleted."""
        below = min(self.held_from, end_offset + 1)
        if segment.base_offset >= below or self.total.may_expire(segment, below):
            return None
        if self._sent is None:
            partition, start = self.log.topic_id_partition, self.log.segments[0].base_offset
            self._sent = _sent_segments(self.metadata, partition, start, self.held_from - 1)
        offsets = segment.base_offset, below - 1
        return None if _are_within(self._sent, offsets) else _why_kept(offsets)

    def comparable(self, segments: Sequence[LocalSegment]) -> list[LocalSegment]:
        """Return the first of `segments`, up to the end of a remote segment that they are compared with.

        A remote segment is compared as a whole: all local segments with a part of it are deleted together.
        """
        count = len(segments)
        while count and any(one.start_offset <= _end(segments[count - 1]) < one.end_offset for one in self._sent or ()):
            count -= 1
        return list(segments[:count])


def _end(segment: LocalSegment) -> int:
    return segment.base_offset if segment.end_offset is None else segment.end_offset


def _sent_segments(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, start_offset: int, end_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Return the segments within [`start_offset`, `end_offset`] that were sent completely, by start offset.

    Includes marked and deleted ones. Only those whose metadata have the checksum of what was sent.
    """
    known = chain(
        metadata.list_remote_log_segments(partition),
        metadata.list_deleted_segments(partition, start_offset, end_offset),
    )
    found = (
        one
        for one in known
        if one.state is not SegmentState.COPY_SEGMENT_STARTED
        and start_offset <= one.start_offset
        and one.end_offset <= end_offset
        and known_crc32c(one) is not None
    )
    return sorted(found, key=lambda one: (one.start_offset, one.end_offset))


def _are_within(segments: Sequence[RemoteLogSegmentMetadata], offsets: Offsets) -> bool:
    """Return whether `segments`, by start offset, together have all `offsets`."""
    reached, end_offset = offsets
    for one in segments:
        if one.start_offset > reached:
            break
        reached = max(reached, one.end_offset + 1)
    return reached > end_offset


def ensure_sent(
    partition: TopicIdPartition,
    segments: Sequence[LocalSegment],
    needed: Sequence[Offsets],
    metadata: RemoteLogMetadataManager,
) -> None:
    """Ensure that `segments`, the oldest local ones, have the bytes that were sent at each of the offsets `needed`.

    Reads them once; does not access the store, whose objects may be gone. Raises ForkedLogError if they differ,
    DeletionRefusedError if no checksum is known, and CorruptLogError and OSError.
    """
    within = _sent_segments(metadata, partition, segments[0].base_offset, _end(segments[-1]))
    sent = [one for one in within if one.end_offset >= needed[0][0] and one.start_offset <= needed[-1][1]]
    compared = [local for local in segments if any(share_offsets(one, local) for one in sent)]
    same = segments_with_sent_bytes(sent, _windows(compared))
    for offsets in needed:
        if _are_within(same, offsets):
            continue
        if not _are_within(sent, offsets):
            raise DeletionRefusedError(f"{partition}: {_why_kept(offsets)}")
        place = open_segment(segments[0].location).log_name
        raise ForkedLogError(
            f"{partition}: {place} is a fork of the log that was copied: at offsets {offsets[0]} to "
            f"{offsets[1]}, below the global log start, its records differ from those of the deleted remote "
            "segments. Nothing of it is trimmed until total retention expires these records. Save those that you "
            "need; to delete them sooner, run kafka-delete-records on their broker"
        )


def _why_kept(offsets: Offsets) -> str:
    """Return why local `offsets` below the global log start stay if nothing proves that they may be deleted."""
    return (
        f"offsets {offsets[0]} to {offsets[1]} lie below the global log start, and nothing proves that they are what "
        "was deleted there: they may be the only copy. They stay until total retention expires them; to delete them "
        "sooner, run kafka-delete-records on their broker"
    )


def why_not_allowed(offsets: Offsets) -> str:
    """Return why local `offsets` below the global log start stay if remote deletion is not allowed."""
    return (
        f"offsets {offsets[0]} to {offsets[1]} lie below the global log start and nothing remote holds them: they are "
        "deleted only if remote deletion is allowed too"
    )


def why_waiting(offsets: Offsets, until: int) -> str:
    """Return why local `offsets` below the global log start stay until then (ms)."""
    return (
        f"offsets {offsets[0]} to {offsets[1]} lie below the global log start and may still be undeleted until "
        f"{as_date(until)} (remote.log.deletion.grace.ms): the first run after that removes them"
    )


def why_together(segments: Sequence[LocalSegment], limit: int | None) -> str:
    """Return why `segments`, which ExpiredSegments.comparable left out, stay; `limit` if it was too small."""
    shared = (
        f"offsets {segments[0].base_offset} to {_end(segments[-1])} share a deleted remote segment with the local "
        "segment after them: they are removed together"
    )
    if limit is None:
        return f"{shared}, once that one may be removed too"
    return (
        f"{shared}, and no more than {limit} were allowed here; allow more "
        "(local.retention.max.segments.per.run or --max-segments)"
    )


def _windows(local: Iterable[LocalSegment]) -> Iterator[tuple[memoryview, BatchTable]]:
    for one in local:
        yield from open_segment(one.location).windows()
