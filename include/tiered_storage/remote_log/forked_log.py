"""Refuse a forked log: one whose local batches differ from the remote ones at the same offsets and leader epoch.

A log directory that was copied and then written on in both places has two logs under one name. Offsets and epochs do
not tell them apart, the checksums of batches do. Trimming compares every batch before it removes a segment, expiry
every batch that is in both tiers and falls below our log start. Copying compares one: logs that have the same batch at
an offset have the same log below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import (
    CorruptLogError,
    ForkedLogError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.batch_header import BATCH_OVERHEAD, RecordBatch, check_crc, read_batch_header
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.checksum import crc32c
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log_segment import list_segments
from tiered_storage.kafka_log.offset_index import OffsetIndex
from tiered_storage.kafka_log.segment_scan import claimed_checksums, iterate_segment
from tiered_storage.remote_log.batch_stream import BatchStream
from tiered_storage.remote_log.copy_plan import PlannedSegment
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import trusted_lineage, valid_end, whole_lineage
from tiered_storage.remote_log.local_read import LocalSegmentReader
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.segment_source import LocalSegment, PartitionLog, of_same_offsets, share_offsets
from tiered_storage.remote_log.storage import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.storage.manifest import Manifest

_READ_BYTES = 64 << 10
_FILE_READ_BYTES = 1 << 20
_AT_ONCE = 8

ReadSegment = Callable[[RemoteLogSegmentMetadata], Iterator[bytes]]
"""Streams all bytes of a remote segment."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches by rising offset: first and last offset (inclusive), and the CRC that the header has."""

    base: NDArray[np.int64]
    last: NDArray[np.int64]
    crc: NDArray[np.uint32]

    @classmethod
    def of(cls, window: memoryview, table: BatchTable) -> Self:
        return cls(table.base_offset, table.last_offset, claimed_checksums(window, table))

    def __len__(self) -> int:
        return self.base.size

    def between(self, start: int, end: int | None = None) -> Self:
        """Return those that begin at or above `start` and end at or below `end`; no view of larger arrays is kept."""
        first = int(np.searchsorted(self.base, start))
        stop = len(self) if end is None else int(np.searchsorted(self.last, end, side="right"))
        return type(self)(self.base[first:stop].copy(), self.last[first:stop].copy(), self.crc[first:stop].copy())

    def touching(self, start: int, end: int | None = None) -> Self:
        """Return those that have an offset from `start` to `end` (inclusive; None: no end)."""
        first = int(np.searchsorted(self.last, start))
        stop = len(self) if end is None else int(np.searchsorted(self.base, end, side="right"))
        return type(self)(self.base[first:stop], self.last[first:stop], self.crc[first:stop])

    def followed_by(self, other: Self) -> Self:
        return type(self)(
            np.concatenate((self.base, other.base)),
            np.concatenate((self.last, other.last)),
            np.concatenate((self.crc, other.crc)),
        )

    def first_not_in(self, other: Self) -> int | None:
        """Return the row of the first batch that `other` does not have just so; None where it has them all."""
        if not len(other):
            return 0 if len(self) else None
        at = np.minimum(np.searchsorted(other.base, self.base), len(other) - 1)
        same = (other.base[at] == self.base) & (other.last[at] == self.last) & (other.crc[at] == self.crc)
        return None if same.all() else int(np.argmin(same))

    def shown(self, row: int) -> str:
        return _shown(int(self.base[row]), int(self.last[row]), int(self.crc[row]))


def ensure_same_batches(
    partition: TopicIdPartition,
    local: Iterable[LocalSegment],
    held_by: Sequence[RemoteLogSegmentMetadata],
    lineage: Sequence[EpochEntry],
    read: ReadSegment,
    end_offset: int | None = None,
) -> None:
    """Compare each batch of `local` with the one that readers get of the remote segments `held_by`.

    Both by rising offset. Segments may have any boundaries. What lies below all of `held_by` is not compared, nor what
    begins above `end_offset`, where that is given. Reads `local` once, and everything of `held_by`; holds a few windows
    of headers. A local segment that is gone is left out.

    Raises ForkedLogError for the first batch that differs, and what reading raises.
    """
    segments = list(local)
    if not held_by or not segments:
        return
    held_from = min(segment.start_offset for segment in held_by)
    windows = (window.touching(held_from, end_offset) for window in _local_batches(segments))
    found = _first_difference(windows, _remote_batches(held_by, lineage, read))
    if found is not None:
        ours, row, known = found
        directory = segments[0].log_path.parent
        raise _fork(partition, directory, int(ours.base[row]), ours.shown(row), _overlapping(known, ours, row))


def ensure_same_below(
    log: PartitionLog, end_offset: int, metadata: RemoteLogMetadataManager, storage: RemoteStorageManager
) -> None:
    """Compare what `log` and the remote log both have below `end_offset` (exclusive), before it ends its life.

    What readers are given no more is compared by nobody afterwards. Segments of the same bytes are told by the checksum
    in their manifest; of others the remote one is read. Raises as ensure_same_batches, and LineageContradictedError.
    """
    partition = log.topic_id_partition
    below = [segment for segment in log.segments if segment.base_offset < end_offset]
    if not below:
        return
    lineage = trusted_lineage(metadata.partition_state(partition).lineage, log)
    runs: list[list[CoveredRange]] = []
    for covered in Coverage.of(metadata.list_remote_log_segments(partition), lineage).ranges:
        if below[0].base_offset <= covered.end_offset and covered.start_offset < end_offset:
            if runs and covered.start_offset <= runs[-1][-1].end_offset + 1:
                runs[-1].append(covered)
            else:
                runs.append([covered])
    for run in runs:
        held_by = [covered.segment for covered in run]
        local = [one for one in below if any(share_offsets(each, one) for each in held_by)]
        compared = [one for one in local if not is_same_file(one, held_by, storage)]
        holders = [each for each in held_by if any(share_offsets(each, one) for one in compared)]
        read = storage.fetch_log_segment
        ensure_same_batches(partition, compared, holders, lineage, read, run[-1].end_offset)


def is_same_file(
    local: LocalSegment, held_by: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> bool:
    """Whether a remote segment of the very offsets of `local` was made from its bytes, or `local` is gone by now.

    Reads the local segment once, in pieces, and of the remote one its manifest.
    """
    for holder in held_by:
        if of_same_offsets(holder, local):
            manifest = Manifest.parse(storage.fetch_index(holder, IndexKind.MANIFEST), str(holder.segment_id))
            with suppress(FileNotFoundError):
                return (local.size, _file_crc32c(local.log_path)) == (manifest.size, manifest.data_crc32c)
            return True
    return False


def _file_crc32c(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_FILE_READ_BYTES):
            checksum = crc32c(piece, checksum)
    return checksum


def is_read_from(
    others: Sequence[RemoteLogSegmentMetadata],
    segment: RemoteLogSegmentMetadata,
    lineage: Sequence[EpochEntry],
    read: ReadSegment,
) -> bool:
    """Whether readers get every batch of the remote `segment` from `others`, which together hold its offsets.

    Raises what reading raises.
    """
    holders = [
        one for one in others if one.start_offset <= segment.end_offset and segment.start_offset <= one.end_offset
    ]
    windows = _remote_batches([segment], lineage, read)
    return _first_difference(windows, _remote_batches(holders, lineage, read)) is None


def is_held_elsewhere(
    copy: RemoteLogSegmentMetadata,
    data_crc32c: int | None,
    start_offset: int,
    held_by: Sequence[CoveredRange],
    log: PartitionLog | None,
    lineage: Sequence[EpochEntry],
    storage: RemoteStorageManager,
) -> bool:
    """Whether each batch of `copy`, from `start_offset` on, is in `held_by`, or else behind them in `log`.

    A local file or a remote segment of the same offsets is told by its checksum; else all is read. Raises what reading
    raises.
    """
    told = (copy.size, data_crc32c)
    for covered in held_by:
        holder = covered.segment
        if (holder.start_offset, covered.end_offset) == (copy.start_offset, copy.end_offset):
            other = Manifest.parse(storage.fetch_index(holder, IndexKind.MANIFEST), str(holder.segment_id))
            if (other.size, other.data_crc32c) == told:
                return True
    local = [one for one in (() if log is None else log.segments) if share_offsets(copy, one)]
    for one in local:
        if of_same_offsets(copy, one) and (one.size, _file_crc32c(one.log_path)) == told:
            return True
    reached = max((covered.end_offset for covered in held_by), default=-1)
    read = storage.fetch_log_segment
    windows = (window.touching(start_offset) for window in _remote_batches([copy], lineage, read))
    remote = _remote_batches([covered.segment for covered in held_by], lineage, read)
    known = chain(remote, (window.between(reached + 1) for window in _local_batches(local)))
    return _first_difference(windows, known) is None


def _first_difference(windows: Iterable[_Batches], remote: Iterator[_Batches]) -> tuple[_Batches, int, _Batches] | None:
    """Return the window and the row of the first batch that `remote` does not have just so, and what it has there.

    Both by rising offset. Reads `remote` to its end where there is none.
    """
    known = _none()
    for ours in windows:
        if not len(ours):
            continue
        known = known.between(int(ours.base[0]))
        while not len(known) or known.last[-1] < ours.last[-1]:
            more = next(remote, None)
            if more is None:
                break
            known = known.followed_by(more.between(int(ours.base[0])))
        row = ours.first_not_in(known)
        if row is not None:
            return ours, row, known
    for _ in remote:
        pass
    return None


def forked_copies(
    planned: Mapping[TopicIdPartition, Sequence[PlannedSegment]],
    metadata: RemoteLogMetadataManager,
    storage: RemoteStorageManager,
    replacing: frozenset[str] = frozenset(),
) -> dict[TopicIdPartition, ForkedLogError | RemoteStorageError]:
    """Return the partitions whose local log is not the one that the remote log was copied from, and why.

    Compares the last remote batch that the closed segments beside `planned` hold too: a few small requests for each
    partition, some at once. Segments `replacing` do not count. Where that remote batch is damaged nothing is compared;
    where the store cannot be asked, that is the error.
    """

    def look(item: tuple[TopicIdPartition, Sequence[PlannedSegment]]) -> ForkedLogError | RemoteStorageError | None:
        partition, due = item
        segments = metadata.list_remote_log_segments(partition)
        counting = [each for each in segments if each.segment_id.id not in replacing]
        try:
            _ensure_joined(partition, due, Coverage.of(counting, due[-1].lineage), storage)
        except (ForkedLogError, RemoteStorageError) as error:
            return error
        return None

    items = [item for item in planned.items() if item[1]]
    if len(items) <= 1:
        found = [look(item) for item in items]
    else:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(look, items))
    return {partition: error for (partition, _), error in zip(items, found, strict=True) if error is not None}


def _ensure_joined(
    partition: TopicIdPartition, due: Sequence[PlannedSegment], coverage: Coverage, storage: RemoteStorageManager
) -> None:
    directory = due[0].log_path.parent
    try:
        local = list_segments(directory)
        end = max(due[-1].end_offset, *(segment.base_offset - 1 for segment in local))
        covered = [each for each in coverage.ranges if each.start_offset <= end]
        if not covered or not local:
            return
        offset = min(end, covered[-1].end_offset)
        holding = [segment for segment in local if segment.base_offset <= offset]
        found = LocalSegmentReader().read(holding[-1], offset) if holding else None
        if found is None:
            return
        ours = read_batch_header(found[0])
        theirs = _remote_batch(covered[-1].segment, offset, storage)
    except (CorruptLogError, RemoteObjectNotFoundError, RemoteObjectCorruptError, LaterVersionError, OSError):
        # Damage is for the copy and the audit to name.
        return
    same = (ours.base_offset, ours.last_offset, ours.crc) == (theirs.base_offset, theirs.last_offset, theirs.crc)
    if not same and ours.partition_leader_epoch == theirs.partition_leader_epoch:
        raise _fork(
            partition,
            directory,
            offset,
            _shown(ours.base_offset, ours.last_offset, ours.crc),
            _shown(theirs.base_offset, theirs.last_offset, theirs.crc),
        )


def _remote_batch(segment: RemoteLogSegmentMetadata, offset: int, storage: RemoteStorageManager) -> RecordBatch:
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


def _local_batches(local: Iterable[LocalSegment]) -> Iterator[_Batches]:
    for segment in local:
        try:
            for window, table in iterate_segment(segment.log_path, segment.base_offset):
                yield _Batches.of(window, table)
        except FileNotFoundError:
            # Another run removed it meanwhile; under the lock it is left out.
            continue


def _remote_batches(
    held_by: Sequence[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry], read: ReadSegment
) -> Iterator[_Batches]:
    """Yield what readers get of `held_by`, each offset once; see Coverage."""
    whole = whole_lineage(held_by, lineage)
    reached = 0
    for segment in sorted(held_by, key=lambda each: each.start_offset):
        end = valid_end(segment, whole)
        stream = BatchStream(str(segment.segment_id), segment.start_offset, segment.size)
        for piece in read(segment):
            for window, table in stream.windows(piece):
                yield _Batches.of(window, table).between(reached, end)
        stream.finish()
        reached = max(reached, end + 1)


def _none() -> _Batches:
    return _Batches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


def _overlapping(known: _Batches, ours: _Batches, row: int) -> str:
    """Show the first batch of `known` that shares an offset with row `row` of `ours`."""
    at = int(np.searchsorted(known.last, ours.base[row]))
    shared = at < len(known) and known.base[at] <= ours.last[row]
    return known.shown(at) if shared else "no batch"


def _shown(base: int, last: int, crc: int) -> str:
    return f"a batch of offsets {base} to {last} with CRC {crc:08x}"


def _fork(partition: TopicIdPartition, directory: Path, offset: int, ours: str, theirs: str) -> ForkedLogError:
    return ForkedLogError(
        f"{partition}: {directory} is a fork of the log that was copied: at offset {offset} it has {ours}, and the "
        f"remote log {theirs}. Two copies of one log were written on separately, or the topic was created again under "
        "its old id. Nothing of the partition is copied, trimmed or expired. Find out which log is the true one. If it "
        f"is the remote one, save the records that only {directory} has, then take it out of log.dirs. If it is the "
        "local one, end the remote one with 'tiered-storage delete-topic' and copy it under a new topic id"
    )
