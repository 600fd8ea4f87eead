"""Which records a remote segment was sent with, as checksums or readable batches prove it, and which copies have them.

Offsets do not prove it: a fork has other records there. The segment's metadata and its manifest have the CRC-32C of the
data that was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tiered_storage.errors import (
    CorruptLogError,
    EncryptionKeyError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.copy.batch_comparison import (
    Batches,
    first_difference,
    local_batches,
    overlapping,
    remote_batches,
    sound_batches,
)
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import valid_end, whole_lineage
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, of_same_offsets, share_offsets
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager


def sent_crc32c(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> int | None:
    """Return the checksum of the data of `segment` as it was sent: by its metadata, else by its manifest.

    None if neither has it. Raises what reading the manifest raises.
    """
    known = known_crc32c(segment)
    if known is not None:
        return known
    return Manifest.parse(storage.fetch_index(segment, IndexKind.MANIFEST), str(segment.segment_id)).data_crc32c


def known_crc32c(segment: RemoteLogSegmentMetadata) -> int | None:
    """Return the checksum of the data of `segment` as it was sent; None if its metadata do not have it."""
    if segment.custom_metadata is None:
        return None
    with suppress(RemoteObjectCorruptError, LaterVersionError):
        return CommitMarker.from_custom_metadata(segment, segment.custom_metadata).data_crc32c
    return None


def is_same_file(
    local: LocalSegment, held_by: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> bool:
    """Return whether a remote segment of the same offsets was made from the bytes of `local`, or `local` is gone.

    Reads the local segment once, in pieces. Reads the remote one's manifest unless its metadata have the checksum.
    """
    for holder in held_by:
        if of_same_offsets(holder, local):
            sent = sent_crc32c(holder, storage)
            with suppress(FileNotFoundError):
                return (local.size, open_segment(local.location).crc32c()) == (holder.size, sent)
            return True
    return False


def are_sent_bytes(
    segment: RemoteLogSegmentMetadata, sent: int | None, windows: Iterable[tuple[memoryview, BatchTable]]
) -> bool:
    """Return whether the batches of `windows` at the offsets of `segment`, each once, are the bytes that were sent."""
    if sent is None:
        return False
    found = _Found(segment)
    for window, table in windows:
        found.add(window, table)
    return found.is_what_was_sent(sent)


def segments_with_sent_bytes(
    segments: Iterable[RemoteLogSegmentMetadata], windows: Iterable[tuple[memoryview, BatchTable]]
) -> list[RemoteLogSegmentMetadata]:
    """Return those of `segments` whose very bytes, by the checksums in their metadata, `windows` have.

    Both by rising offset; reads `windows` once.
    """
    waiting = deque(_Found(segment) for segment in segments)
    begun: list[_Found] = []
    same: list[RemoteLogSegmentMetadata] = []
    for window, table in windows:
        if not len(table):
            continue
        while waiting and waiting[0].segment.start_offset <= table.last_offset[-1]:
            begun.append(waiting.popleft())
        for found in begun:
            found.add(window, table)
        ended = [found for found in begun if found.segment.end_offset <= table.last_offset[-1]]
        begun = [found for found in begun if found.segment.end_offset > table.last_offset[-1]]
        same += [found.segment for found in ended if found.is_what_was_sent(known_crc32c(found.segment))]
    return same + [found.segment for found in begun if found.is_what_was_sent(known_crc32c(found.segment))]


@dataclass(slots=True)
class _Found:
    """What was found so far of the batches at the offsets of `segment`."""

    segment: RemoteLogSegmentMetadata
    size: int = 0
    checksum: int = 0
    next_offset: int = 0

    def add(self, window: memoryview, table: BatchTable) -> None:
        """Add those of `table`, whose bytes `window` holds."""
        first = int(np.searchsorted(table.base_offset, max(self.next_offset, self.segment.start_offset)))
        stop = int(np.searchsorted(table.last_offset, self.segment.end_offset, side="right"))
        if first < stop:
            begin = int(table.position[first] - table.position[0])
            end = int(table.position[stop - 1] + table.size[stop - 1] - table.position[0])
            self.size, self.checksum = self.size + end - begin, crc32c(window[begin:end], self.checksum)
            self.next_offset = int(table.last_offset[stop - 1]) + 1

    def is_what_was_sent(self, sent: int | None) -> bool:
        return (self.size, self.checksum) == (self.segment.size, sent)


def readable_batches(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> Iterator[Batches]:
    """Yield the batches of `segment` whose CRC holds, in windows by rising offset."""
    listable = as_listable(storage)
    if listable is None:
        yield from remote_batches([segment], (), storage.fetch_log_segment)
        return
    with suppress(RemoteObjectNotFoundError, RemoteObjectCorruptError):
        # Nothing can be read if the object or the key of an encrypted segment is lost.
        size = min(segment.size, listable.readable_size(segment))
        yield from sound_batches(segment, size, lambda position, count: listable.read_damaged(segment, position, count))


def last_sound_offset(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> int | None:
    """Return the last offset of the batches of `segment` that can still be read; None if there is none."""
    return max((int(window.last[-1]) for window in readable_batches(segment, storage) if len(window)), default=None)


def why_other_records(
    segment: RemoteLogSegmentMetadata,
    others: Coverage,
    log_start: int,
    lineage: Sequence[EpochEntry],
    storage: RemoteStorageManager,
) -> str | None:
    """Return why readers get other records from `others` than from `segment`, where both hold offsets; None: the same.

    Looks from `log_start` (inclusive) on. In a damaged `segment`, only batches whose CRC holds count. Segments that
    were sent with the same checksum are not read. Raises what the store raises if it cannot be asked.
    """
    end = valid_end(segment, whole_lineage([segment, *(covered.segment for covered in others.ranges)], lineage))
    for run in others.runs(max(segment.start_offset, log_start), end):
        start, holders = max(run[0].start_offset, log_start), [covered.segment for covered in run]
        if any(_was_sent_alike(segment, holder) for holder in holders):
            continue
        windows = (
            window.touching(start, min(end, run[-1].end_offset)) for window in readable_batches(segment, storage)
        )
        known = remote_batches(holders, lineage, storage.fetch_log_segment)
        try:
            found = first_difference(windows, known)
        except (CorruptLogError, RemoteObjectCorruptError, RemoteObjectNotFoundError, EncryptionKeyError) as error:
            return f"what others hold of its offsets cannot be compared with it: {error}"
        if found is not None:
            ours, row, there = found
            return (
                f"at offset {int(ours.base[row])} it has {ours.shown(row)}, and what would be read instead "
                f"{overlapping(there, ours, row)}: one of them is of a fork of the log"
            )
    return None


def _was_sent_alike(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    if (one.start_offset, one.end_offset, one.size) != (other.start_offset, other.end_offset, other.size):
        return False
    checksum = known_crc32c(one)
    return checksum is not None and checksum == known_crc32c(other)


def is_held_elsewhere(
    copy: RemoteLogSegmentMetadata,
    data_crc32c: int | None,
    start_offset: int,
    held_by: Sequence[CoveredRange],
    log: PartitionLog | None,
    lineage: Sequence[EpochEntry],
    storage: ListableStorage,
) -> bool:
    """Return whether `held_by`, or after them `log`, have each readable batch of `copy` from `start_offset` on.

    If the leader epochs of `copy` are not known, every batch counts, up to its end. A local file of the same offsets is
    recognised by its checksum (None: not known); else every byte of `held_by` is read and verified first. Raises what
    that and the reading of the others raise.
    """
    sent = (copy.size, data_crc32c)
    local = [one for one in (() if log is None else log.segments) if share_offsets(copy, one)]
    for one in local:
        if of_same_offsets(copy, one) and (one.size, open_segment(one.location).crc32c()) == sent:
            return True
    for covered in held_by:
        storage.verify(covered.segment)
    for covered in held_by:
        holder = covered.segment
        is_of_same_offsets = (holder.start_offset, covered.end_offset) == (copy.start_offset, copy.end_offset)
        if is_of_same_offsets and data_crc32c is not None and (holder.size, sent_crc32c(holder, storage)) == sent:
            return True
    reached = max((covered.end_offset for covered in held_by), default=-1)
    read = storage.fetch_log_segment
    end = valid_end(copy, whole_lineage([copy], lineage)) if copy.leader_epochs else copy.end_offset
    windows = (window.touching(start_offset, end) for window in readable_batches(copy, storage))
    remote = remote_batches([covered.segment for covered in held_by], lineage, read)
    known = chain(remote, (window.between(reached + 1) for window in local_batches(local)))
    return first_difference(windows, known) is None
