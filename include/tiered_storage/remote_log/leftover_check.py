"""Whether what the metadata call a copy that never finished may be the last copy of its offsets.

Metadata from a backup that was made while a copy ran know it as begun, though it was committed since, and what is
local was trimmed. Metadata made anew know a segment that lost its commit marker as never finished. So what the store
has whole goes only where its offsets are somewhere else, or ended their life; a repair finishes it
(unfinished_copies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.segment_source import PartitionLog
from tiered_storage.remote_log.storage.object_names import segment_object_names
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager


@dataclass(frozen=True, slots=True)
class LeftoverCheck:
    """Asks the store, the metadata and `local`, which returns the local log of a partition (None: not in sight)."""

    metadata: RemoteLogMetadataManager
    storage: ObjectRemoteStorageManager
    local: Callable[[TopicIdPartition], PartitionLog | None]

    def why_kept(
        self, partition: TopicIdPartition, leftovers: Sequence[RemoteLogSegmentMetadata], listed: Sequence[ListedObject]
    ) -> dict[str, str]:
        """Return, by segment id, why some of `leftovers` have to stay; `listed` is all of the partition's folder.

        Raises what the store raises.
        """
        sizes = {found.name: found.size for found in listed}
        whole = [found for one in leftovers if (found := self._look_for(one, sizes)) is not None]
        if not whole:
            return {}
        coverage = self._coverage(partition, sizes)
        log_start = self.metadata.log_start_offset(partition) or 0
        local = self._look(partition)
        kept: dict[str, str] = {}
        for found in whole:
            start_offset = max(found.leftover.start_offset, log_start)
            if not _is_held(start_offset, found.end_offset, coverage, local):
                kept[found.leftover.segment_id.id] = _message(found, start_offset)
        return kept

    def _look_for(self, leftover: RemoteLogSegmentMetadata, sizes: dict[str, int]) -> _Whole | None:
        """Return what the store has of a copy that it has whole, or once had; None of any other."""
        names = segment_object_names(leftover.segment_id, leftover.start_offset)
        if names.commit_marker not in sizes and not {names.data, names.indexes} <= sizes.keys():
            return None
        stored = self.storage.find_copy(leftover)
        if stored is not None:
            return _Whole(leftover, max(stored.finished.end_offset, leftover.end_offset), can_be_finished=True)
        if names.commit_marker in sizes:
            return _Whole(leftover, leftover.end_offset, can_be_finished=False)
        return None

    def _coverage(self, partition: TopicIdPartition, sizes: dict[str, int]) -> Coverage:
        """Return what finished segments hold whose objects the store lists, each with its size."""
        there = [
            segment
            for segment in finished(self.metadata.list_remote_log_segments(partition))
            if all(sizes.get(name) == size for name, size in self.storage.expected_objects(segment).items())
        ]
        return Coverage.of(there, self.metadata.partition_state(partition).lineage)

    def _look(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Return the local log; None where it may be another life's, or cannot be read: it proves nothing then."""
        try:
            log = self.local(partition)
        except (TieredStorageError, OSError):
            return None
        return None if log is None or log.topic_id_is_derived else log


@dataclass(frozen=True, slots=True)
class _Whole:
    """A copy that the store has whole, to `end_offset` (inclusive), or of which it has the commit marker alone."""

    leftover: RemoteLogSegmentMetadata
    end_offset: int
    can_be_finished: bool


def _is_held(start_offset: int, end_offset: int, coverage: Coverage, local: PartitionLog | None) -> bool:
    missing_until = end_offset
    if local is not None and local.segments and end_offset < local.stable_offset:
        local_start = max(local.log_start_offset, local.segments[0].base_offset)
        missing_until = min(end_offset, local_start - 1)
    return missing_until < start_offset or coverage.holding(start_offset, missing_until) is not None


def _message(whole: _Whole, start_offset: int) -> str:
    seen, mended = "all of it", "'tiered-storage repair' finishes it, if every byte proves to be what was sent"
    if not whole.can_be_finished:
        names = segment_object_names(whole.leftover.segment_id, whole.leftover.start_offset)
        seen = "its commit marker"
        mended = f"put what is missing or broken of {names.stem}.* back from a backup, then {mended}"
    return (
        f"the metadata know it as a copy that never finished, but the store has {seen} and nothing else holds "
        f"offsets {start_offset} to {whole.end_offset}: it stays; {mended}; if it is to go, move its objects out of "
        "the store"
    )
