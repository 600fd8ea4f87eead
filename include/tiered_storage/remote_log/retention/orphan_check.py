"""Check whether a copy that the metadata show as unfinished may be the last copy of its offsets.

Metadata can be wrong about that. If a backup was made during a copy, it shows the copy as started, though the copy was
committed later and the local segment trimmed. Rebuilt metadata show a segment without a commit marker as unfinished.

So a copy that is complete in the store is deleted only if exactly its batches exist elsewhere or have expired:
other segments with its offsets may be a fork, with other records. Otherwise a repair commits the copy
(repair/uncommitted_segments.py). A `.log` without indexes also stays, for a person to repair, if the metadata did not
record where the copy starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tiered_storage.errors import (
    CorruptLogError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.sent_records import is_held_elsewhere, last_sound_offset
from tiered_storage.remote_log.coverage import Coverage, CoveredRange, finished
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

_HIGHEST_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OrphanCheck:
    """Checks store, metadata and `local`, which returns the local log of a partition (None: the source has none)."""

    metadata: RemoteLogMetadataManager
    storage: ListableStorage
    local: Callable[[TopicIdPartition], PartitionLog | None]

    def why_kept(
        self,
        partition: TopicIdPartition,
        leftovers: Sequence[RemoteLogSegmentMetadata],
        listed: Sequence[ListedObject],
        *,
        to_finish: bool = False,
    ) -> dict[str, str]:
        """Return, by segment id, why some of `leftovers` must stay; `listed` is the content of the partition's folder.

        With `to_finish`, a complete copy stays unfinished if other remote segments hold its offsets, so that readers
        never mix two logs. Raises what the store raises.
        """
        sizes = {found.name: found.size for found in listed}
        located = located_by(listed, leftovers)
        kept = self._written_by_later_releases(located, sizes)
        known = [one for one in located if one.segment_id.id not in kept]
        whole = [found for one in known if (found := self._look_for(one, sizes)) is not None]
        if not whole:
            return kept
        state = self.metadata.partition_state(partition)
        there = listed_segments(partition, self.metadata, self.storage, sizes)
        coverage = Coverage.of(there, state.lineage)
        local, lineage = self._look(partition, state.lineage)
        for found in whole:
            start_offset = max(found.leftover.start_offset, state.log_start_offset or 0)
            missing_until = _missing_until(found.end_offset, local)
            held = [] if missing_until < start_offset else coverage.holding(start_offset, missing_until)
            if held is None:
                kept[found.leftover.segment_id.id] = _message(found, start_offset)
            elif start_offset <= found.end_offset:
                remote = coverage.holding(start_offset, found.end_offset)
                if to_finish and found.is_whole and remote is not None:
                    continue
                why = self._why_other(found, start_offset, held if remote is None else remote, local, lineage)
                if why is not None:
                    kept[found.leftover.segment_id.id] = _message_of_fork(found, start_offset, why)
        return kept

    def _why_other(
        self,
        whole: _Whole,
        start_offset: int,
        held_by: Sequence[CoveredRange],
        local: PartitionLog | None,
        lineage: Sequence[EpochEntry],
    ) -> str | None:
        """Return why `held_by` and `local` may lack batches of `whole`; None: they have them all."""
        try:
            copy = whole.copy or whole.leftover
            if is_held_elsewhere(copy, whole.data_crc32c, start_offset, held_by, local, lineage, self.storage):
                return None
        except (CorruptLogError, RemoteObjectCorruptError, RemoteObjectNotFoundError, OSError) as error:
            return f"what holds them is damaged ({error})"
        return "another log may be a fork of it, or damaged"

    def _written_by_later_releases(
        self, leftovers: Sequence[RemoteLogSegmentMetadata], sizes: dict[str, int]
    ) -> dict[str, str]:
        """Return, by segment id, those that a later release wrote: they may or may not be complete."""
        kept: dict[str, str] = {}
        for leftover in leftovers:
            names = segment_object_names(leftover.segment_id, leftover.start_offset)
            if not {names.commit_marker, names.indexes} & sizes.keys():
                continue
            if (later := self.storage.later_version(leftover)) is not None:
                kept[leftover.segment_id.id] = str(later)
        return kept

    def _look_for(self, leftover: RemoteLogSegmentMetadata, sizes: dict[str, int]) -> _Whole | None:
        """Return the copy if it is complete in the store, or once was; None otherwise."""
        names = segment_object_names(leftover.segment_id, leftover.start_offset)
        if names.commit_marker not in sizes and names.data not in sizes:
            return None
        stored = self.storage.find_copy(leftover)
        if stored is not None:
            # Without the indexes: those of a thousand copies need too much memory.
            manifest = Manifest.parse(stored.contents[IndexKind.MANIFEST], str(leftover.segment_id))
            end_offset = stored.finished.end_offset
            if not leftover.is_bounded_only:
                end_offset = max(end_offset, leftover.end_offset)
            return _Whole(leftover, end_offset, stored.finished, manifest.data_crc32c)
        if names.commit_marker in sizes:
            return _Whole(leftover, leftover.end_offset)
        # A copy that began here and left no indexes was never committed: its local log stayed.
        return None if leftover.leader_epochs else self._data_of(leftover, sizes[names.data])

    def _data_of(self, leftover: RemoteLogSegmentMetadata, size: int) -> _Whole | None:
        """Return what a `.log` of `size` bytes holds on its own; None if no batch of it is sound."""
        with suppress(RemoteObjectNotFoundError, RemoteObjectCorruptError):
            size = self.storage.readable_size(leftover)
        end_offset = last_sound_offset(replace(leftover, size=size, end_offset=_HIGHEST_OFFSET), self.storage)
        if end_offset is None:
            return None
        copy = replace(leftover, size=size, end_offset=end_offset)
        return _Whole(leftover, end_offset, copy, is_data_alone=True)

    def _look(
        self, partition: TopicIdPartition, known: tuple[EpochEntry, ...]
    ) -> tuple[PartitionLog | None, tuple[EpochEntry, ...]]:
        """Return the local log, and the leaders from it and the metadata.

        None if it may be of another incarnation or an outdated replica, or is unreadable: then it proves nothing.
        """
        try:
            log = self.local(partition)
            if log is None or log.topic_id_is_derived:
                return None, known
            return log, trusted_lineage(known, log)
        except (TieredStorageError, OSError):
            return None, known


def located_by(
    listed: Sequence[ListedObject], segments: Sequence[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    """Return `segments`; those with bounds only begin where their objects do, if any are `listed`."""
    bounded = {segment.segment_id for segment in segments if segment.is_bounded_only}
    starts = {
        found.segment.segment_id: found.segment.base_offset
        for found in listed
        if found.segment is not None and found.segment.segment_id in bounded
    }
    return [
        replace(segment, start_offset=starts[segment.segment_id]) if segment.segment_id in starts else segment
        for segment in segments
    ]


def listed_segments(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, storage: ListableStorage, sizes: Mapping[str, int]
) -> list[RemoteLogSegmentMetadata]:
    """Return the finished segments whose objects the store lists with the right sizes."""
    return [
        segment
        for segment in finished(metadata.list_remote_log_segments(partition))
        if all(sizes.get(name) == size for name, size in storage.expected_objects(segment).items())
    ]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A copy that is complete in the store, to `end_offset` (inclusive), or of which only the commit marker exists.

    Or only the data: then `copy` ends with their last sound batch.
    """

    leftover: RemoteLogSegmentMetadata
    end_offset: int
    copy: RemoteLogSegmentMetadata | None = None
    data_crc32c: int | None = None
    is_data_alone: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether data and indexes exist, so that a repair can commit it."""
        return self.copy is not None and not self.is_data_alone

    @property
    def seen(self) -> str:
        """The objects that the store has of the copy, in words."""
        if self.is_data_alone:
            return "its .log"
        return "its commit marker" if self.copy is None else "all of it"

    @property
    def how_to_finish(self) -> str:
        """How to make it visible."""
        repair = "'tiered-storage repair' commits it"
        if self.is_whole:
            return repair
        names = segment_object_names(self.leftover.segment_id, self.leftover.start_offset)
        return f"restore what is missing or corrupt of {names.stem}.* from a backup, then {repair}"


def _missing_until(end_offset: int, local: PartitionLog | None) -> int:
    """Return the last offset (inclusive) up to `end_offset` that only the remote tier can have."""
    if local is None or not local.segments or end_offset >= local.last_stable_offset:
        return end_offset
    local_start = max(local.log_start_offset, local.segments[0].base_offset)
    return min(end_offset, local_start - 1)


def _message(whole: _Whole, start_offset: int) -> str:
    return (
        f"the metadata have it as an unfinished copy, but the store has {whole.seen} and nothing else holds "
        f"offsets {start_offset} to {whole.end_offset}: it stays; {whole.how_to_finish}, if every byte proves to be "
        "what was sent; to delete it, move its objects out of the store"
    )


def _message_of_fork(whole: _Whole, start_offset: int, why: str) -> str:
    return (
        f"the metadata have it as an unfinished copy, but the store has {whole.seen}, and no other copy of "
        f"offsets {start_offset} to {whole.end_offset} was found with the same batches: {why}; it stays. "
        f"'tiered-storage audit --deep' and 'repair' check for damage. If the local log is the fork, "
        f"{whole.how_to_finish}; to delete it, move its objects out of the store"
    )
