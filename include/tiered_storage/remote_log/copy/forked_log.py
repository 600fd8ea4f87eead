"""Refuse a forked log: one whose local batches differ from the remote ones at the same offsets and leader epoch.

If a log directory is copied and then written to in both places, two logs have one name. Offsets and epochs do not
distinguish them; the checksums of batches do. Each operation compares as much as it needs:

- Trimming compares every batch before it removes a segment.
- Expiry compares every batch that is in both tiers and falls below the global log start. It also compares the last
  remote segment that the local log shares.
- A repair replaces a damaged segment by local batches only if they have the checksum that was sent. If it
  cannot compare that checksum, it compares every remote batch that can still be read, which must include the last one.
- The plan of a copy compares the last remote batch. The run compares the whole remote segment that it continues, as far
  as closed local segments hold it.
- A copy from a cluster compares the last remote batch if its brokers give the topic no id.

A copy does not compare earlier segments, nor one that is damaged or no longer local. If a producer wrote the same bytes
to two forks, both may therefore be copied, one after the other. Trimming compares everything, so it then removes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from tiered_storage.errors import (
    CorruptLogError,
    EncryptionKeyError,
    ForkedLogError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import BatchHeader, check_crc, read_batch_header
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.copy.batch_comparison import (
    Batches,
    ReadSegment,
    first_difference,
    is_same_batch,
    local_batches,
    overlapping,
    remote_batches,
    shown_batch,
)
from tiered_storage.remote_log.copy.sent_records import are_sent_bytes, is_same_file, readable_batches, sent_crc32c
from tiered_storage.remote_log.copy.tasks import PlannedSegment
from tiered_storage.remote_log.coverage import Coverage, CoveredRange, finished
from tiered_storage.remote_log.lineage import valid_end, whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, share_offsets
from tiered_storage.remote_log.source.segment_source import OpenSegment
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

_READ_BYTES = 64 << 10


def ensure_same_batches(
    partition: TopicIdPartition,
    local: Iterable[LocalSegment],
    held_by: Sequence[RemoteLogSegmentMetadata],
    lineage: Sequence[EpochEntry],
    read: ReadSegment,
    end_offset: int | None = None,
) -> None:
    """Compare each batch of `local` with the one that readers get of the remote segments `held_by`.

    Both by rising offset. Segments may have any boundaries. Skips batches below all of `held_by`, those that begin
    above `end_offset` if it is given, and local segments that are gone. Reads `local` once, and all of `held_by`; holds
    a few windows of headers.

    Raises ForkedLogError for the first batch that differs, and what reading raises.
    """
    segments = list(local)
    if not held_by or not segments:
        return
    held_from = min(segment.start_offset for segment in held_by)
    windows = (window.touching(held_from, end_offset) for window in local_batches(segments))
    found = first_difference(windows, remote_batches(held_by, lineage, read))
    if found is not None:
        ours, row, known = found
        place = open_segment(segments[0].location).log_name
        raise _fork(partition, place, int(ours.base[row]), ours.shown(row), overlapping(known, ours, row))


def ensure_same_below(
    log: PartitionLog,
    end_offset: int,
    coverage: Coverage,
    lineage: Sequence[EpochEntry],
    storage: RemoteStorageManager,
) -> None:
    """Compare what `log` and the remote log both have below `end_offset` (exclusive), before it expires.

    After expiry no comparison is possible. A remote segment with the same checksum is not read. Raises as
    ensure_same_batches.
    """
    below = [segment for segment in log.segments if segment.base_offset < end_offset]
    if not below:
        return
    for run in coverage.runs(below[0].base_offset, end_offset - 1):
        held_by = [covered.segment for covered in run]
        local = [one for one in below if any(share_offsets(each, one) for each in held_by)]
        compared = [one for one in local if not is_same_file(one, held_by, storage)]
        holders = [each for each in held_by if any(share_offsets(each, one) for one in compared)]
        read = storage.fetch_log_segment
        ensure_same_batches(log.topic_id_partition, compared, holders, lineage, read, run[-1].end_offset)


def ensure_joined(
    log: PartitionLog, coverage: Coverage, lineage: Sequence[EpochEntry], storage: RemoteStorageManager
) -> None:
    """Compare the last remote segment that shares offsets with `log`, before anything remote of the partition expires.

    The records of a fork count towards total retention, but must never expire records of the copied log. Raises as
    ensure_same_batches.
    """
    if not log.segments:
        return
    local, active_from = open_segment(log.segments[0].location), log.segments[-1].base_offset
    for covered in reversed(list(coverage.ranges_from(log.log_start_offset))):
        is_compared = ensure_same_segment(local, covered.segment, lineage, storage)
        if covered.end_offset >= active_from:
            ends = (covered.end_offset, max(covered.start_offset, active_from))
            is_compared |= any(_ensure_same_batch(local.siblings(), end, covered, storage) for end in ends)
        if is_compared:
            return


def ensure_same_segment(
    local: OpenSegment,
    segment: RemoteLogSegmentMetadata,
    lineage: Sequence[EpochEntry],
    storage: RemoteStorageManager,
) -> bool:
    """Compare a remote `segment` with the closed segments of `local`'s log that share offsets; return if any do.

    Reads those once. If one has the bytes that were sent, the remote segment is not read. Raises as
    ensure_same_batches.
    """
    shared = [one for one in local.siblings() if not one.is_active and share_offsets(segment, one)]
    compared = [one for one in shared if not is_same_file(one, [segment], storage)]
    end = valid_end(segment, whole_lineage([segment], lineage))
    ensure_same_batches(segment.topic_id_partition, compared, [segment], lineage, storage.fetch_log_segment, end)
    return bool(shared)


def forked_copies(
    planned: Mapping[TopicIdPartition, Sequence[PlannedSegment]],
    metadata: RemoteLogMetadataManager,
    storage: RemoteStorageManager,
    replacing: frozenset[str] = frozenset(),
) -> dict[TopicIdPartition, ForkedLogError | RemoteStorageError]:
    """Return the partitions whose local log is not the one that the remote log was copied from, and why.

    Compares the last remote batch that the closed segments beside `planned` hold too: a few small requests for each
    partition, some at once. The segments `replacing` do not count for that: if they share offsets with `planned`, each
    of their readable batches is compared. A damaged remote batch at the join is not compared. If the store does not
    answer, that is the partition's error.
    """

    def look(item: tuple[TopicIdPartition, Sequence[PlannedSegment]]) -> ForkedLogError | RemoteStorageError | None:
        partition, due = item
        if all(each.roll is not None for each in due):
            return None
        segments = list(metadata.list_remote_log_segments(partition))
        try:
            ensure_continued(due, segments, storage, replacing)
        except (ForkedLogError, RemoteStorageError) as error:
            return error
        return None

    return {
        partition: error
        for partition, error in zip(planned, concurrent_map(look, planned.items()), strict=True)
        if error is not None
    }


def ensure_continued(
    planned: Sequence[PlannedSegment],
    segments: Sequence[RemoteLogSegmentMetadata],
    storage: RemoteStorageManager,
    replacing: Collection[str],
) -> None:
    """Raise ForkedLogError if one partition's `planned` segments are not of the log of its remote `segments`.

    As forked_copies, which also says what counts. Raises RemoteStorageError if the store does not answer.
    """
    # The lineage decides for the others: only a cluster's leader has what would be compared.
    due = [each for each in planned if each.roll is None]
    if not due:
        return
    counting = [each for each in segments if each.segment_id.id not in replacing]
    _ensure_joined(due, Coverage.of(counting, due[-1].lineage), storage)
    for segment in finished(segments):
        if segment.segment_id.id in replacing:
            _ensure_replaceable(segment, due, storage)


def _ensure_joined(due: Sequence[PlannedSegment], coverage: Coverage, storage: RemoteStorageManager) -> None:
    try:
        local = open_segment(due[0].location).siblings()
        end = max(due[-1].end_offset, *(segment.base_offset - 1 for segment in local))
        covered = [each for each in coverage.ranges if each.start_offset <= end]
        if not covered or not local:
            return
        _ensure_same_batch(local, min(end, covered[-1].end_offset), covered[-1], storage)
    except (
        CorruptLogError,
        EncryptionKeyError,
        RemoteObjectNotFoundError,
        RemoteObjectCorruptError,
        LaterVersionError,
        OSError,
    ):
        # The copy and the audit report damage.
        return


def _ensure_same_batch(
    local: Sequence[LocalSegment], offset: int, covered: CoveredRange, storage: RemoteStorageManager
) -> bool:
    """Compare the batch that holds `offset`; return whether the log with the segments `local` has one.

    Raises what reading raises.
    """
    holding = [segment for segment in local if segment.base_offset <= offset]
    if not holding:
        return False
    segment = open_segment(holding[-1].location)
    found = segment.read(offset)
    if found is None:
        return False
    ours = read_batch_header(found[0])
    theirs = remote_batch(covered.segment, offset, storage)
    if not is_same_batch(ours, theirs) and ours.partition_leader_epoch == theirs.partition_leader_epoch:
        raise _fork(
            covered.segment.topic_id_partition,
            segment.log_name,
            offset,
            shown_batch(ours.base_offset, ours.last_offset, ours.crc),
            shown_batch(theirs.base_offset, theirs.last_offset, theirs.crc),
        )
    return True


def _ensure_replaceable(
    segment: RemoteLogSegmentMetadata, due: Sequence[PlannedSegment], storage: RemoteStorageManager
) -> None:
    """Ensure that the segments of `due` that replace the damaged `segment` for readers have its records.

    The checksum that was sent proves it, whatever the boundaries. If it is not known, or `due` have only a part of the
    segment, every batch that can still be read, including the last one, must be the same. Raises ForkedLogError, and
    RemoteObjectCorruptError if nothing proves it.
    """
    local = [one for one in due if one.base_offset <= segment.end_offset and segment.start_offset <= one.end_offset]
    if not local:
        return
    end, sent = valid_end(segment, due[-1].lineage), None
    with suppress(RemoteObjectNotFoundError, RemoteObjectCorruptError, LaterVersionError):
        sent = sent_crc32c(segment, storage)
    last_shared = min(end, local[-1].end_offset)
    try:
        if are_sent_bytes(segment, sent, _local_windows(local)):
            return
        readable = [window.touching(local[0].base_offset, last_shared) for window in readable_batches(segment, storage)]
        found = first_difference(readable, local_batches(local))
    except (CorruptLogError, OSError) as error:
        raise RemoteObjectCorruptError(
            f"{segment.segment_id} is damaged, and what would replace it cannot be compared with it: {error}"
        ) from error
    if found is not None:
        theirs, row, known = found
        place = open_segment(due[0].location).log_name
        raise _fork(
            segment.topic_id_partition, place, int(theirs.base[row]), overlapping(known, theirs, row), theirs.shown(row)
        )
    is_whole = local[0].base_offset <= segment.start_offset and end == segment.end_offset <= local[-1].end_offset
    if (sent is not None and is_whole) or not _reach(readable, last_shared):
        place = open_segment(due[0].location).log_name
        raise RemoteObjectCorruptError(
            f"{segment.segment_id} is damaged, and nothing proves that {place} has its records: their "
            "checksum is not the one that was sent, or only a part of them is there, and too little of the damaged "
            "object can be read to compare it. The log may be a fork: name the log directory of the log that was "
            "copied in log.dirs, or put the object back from a backup"
        )


def _reach(windows: Iterable[Batches], offset: int) -> bool:
    """Return whether the last batch of `windows` holds `offset` or more: a fork differs in its last batch."""
    return any(len(window) and window.last[-1] >= offset for window in windows)


def _local_windows(local: Iterable[PlannedSegment]) -> Iterator[tuple[memoryview, BatchTable]]:
    for one in local:
        yield from open_segment(one.location).windows()


def remote_batch(segment: RemoteLogSegmentMetadata, offset: int, storage: RemoteStorageManager) -> BatchHeader:
    """Return the header of the remote batch that holds `offset`, its checksum compared."""
    source = str(segment.segment_id)
    raw = storage.fetch_index(segment, IndexKind.OFFSET)
    position = OffsetIndex.parse(raw, source, segment.start_offset).lookup(offset).position

    def read(start: int, size: int) -> bytes:
        return b"".join(storage.fetch_log_segment(segment, start, min(start + size, segment.size) - 1))

    start, content = position, b""
    while position < segment.size:
        if position - start + BATCH_OVERHEAD > len(content):
            start, content = position, read(position, _READ_BYTES)
        header = read_batch_header(content, position - start, source=source, source_position=start)
        if header.last_offset >= offset:
            batch = content[position - start : position - start + header.size]
            whole = batch if len(batch) == header.size else read(position, header.size)
            check_crc(whole, source=source, source_position=position)
            return header
        position += header.size
    raise RemoteObjectCorruptError(f"{source}: the segment ends before offset {offset}")


def _fork(partition: TopicIdPartition, place: str, offset: int, ours: str, theirs: str) -> ForkedLogError:
    return ForkedLogError(
        f"{partition}: {place} is a fork of the log that was copied: at offset {offset} it has {ours}, and the "
        f"remote log {theirs}. Two copies of one log were written on separately, or the topic was created again under "
        "its old id. Nothing of the partition is copied, trimmed or expired. Find out which log is the true one. If it "
        f"is the remote one, save the records that only {place} has, then take it out of log.dirs. If it is the "
        "local one, end the remote one with 'tiered-storage delete-topic' and copy it under a new topic id"
    )
