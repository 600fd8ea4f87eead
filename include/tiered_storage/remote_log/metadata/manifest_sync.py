"""Keep the store's partition manifests consistent with the metadata.

A partition manifest gives a rebuild of the metadata what no segment contains. A store that cannot be listed keeps no
documents and lists nothing.

Every deletion also compares the partition with its document. Like the generation (generation.py), that finds metadata
of another time than the store, and each finds what the other misses:

- The generation covers decisions, and is renewed once a run. It misses old pages of a database file that bring back
  marks or a log start: all decisions and the generation itself may be on new pages.
- A document covers one partition's marks, log start and deletion. It misses decisions, such as a right that was revoked
  or a stop, and a backup that lacks copies only: a copy that changes no lineage writes no document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from tiered_storage.errors import (
    LaterVersionError,
    LeaseLostError,
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    TieredStorageError,
)
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.metadata.outdated_metadata import ensure_documented, ensure_granted
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.documents.object_names import PartitionManifestName, partition_folder
from tiered_storage.remote_log.storage.documents.partition_manifest import (
    MAX_MARKED,
    PartitionManifest,
    PartitionManifests,
)
from tiered_storage.remote_log.storage.listable_storage import ListedObject, as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

Refusal: TypeAlias = RemoteStorageError | OutdatedMetadataError | LeaseLostError
Refusals: TypeAlias = Mapping[TopicIdPartition, Refusal]
"""Why something could not be done, by partition."""


def manifests_of(storage: RemoteStorageManager) -> PartitionManifests | None:
    """Return the store's partition manifests; None for a store that cannot be listed."""
    listable = as_listable(storage)
    return None if listable is None else listable.partition_manifests


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the store must record of a partition: its state, and the ids of single marked segments."""

    state: PartitionState
    marked: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        state: PartitionState,
        segments: Iterable[RemoteLogSegmentMetadata],
        to_mark: Iterable[RemoteLogSegmentMetadata] = (),
    ) -> Self:
        """Return that of a partition in `state` with `segments`, of which `to_mark` are about to be marked.

        Does not list segments that the global log start or the deletion of the partition covers. Nor does it list
        unfinished ones: the store itself shows that they have no reader, or they may be the last copy of their offsets
        (OrphanCheck).
        """
        if state.is_wholly_deleted:
            return cls(state)
        log_start = state.log_start_offset or 0
        marked = [one for one in segments if _was_marked(one)]
        named = sorted({one.segment_id.id for one in (*marked, *to_mark) if one.end_offset >= log_start})
        return cls(state, tuple(named[:MAX_MARKED]))

    def room_for(self, to_mark: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Return those of `to_mark` that may be marked now: a document lists at most MAX_MARKED segments."""
        room = MAX_MARKED - len(self.marked)
        below = [one for one in to_mark if one.end_offset < (self.state.log_start_offset or 0)]
        named = [one for one in to_mark if one.end_offset >= (self.state.log_start_offset or 0)]
        return [*below, *named[:room]]


def _was_marked(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is SegmentState.DELETE_SEGMENT_STARTED and segment.custom_metadata is not None


def write_partition_state(
    storage: RemoteStorageManager, leases: Leases, lease: Lease, stored: StoredState, now: int
) -> None:
    """Record `stored` in the store for the lease's partition, at `now` (ms), unless it is there already.

    Call it before the metadata's log start, marks or deletion state change accordingly. A corrupt document is written
    again: the metadata have its whole content. Raises what the store raises, and if a later lease wrote,
    LeaseLostError, or OutdatedMetadataError if `leases` never granted that one.
    """
    manifests = manifests_of(storage)
    if manifests is None:
        return
    partition = lease.topic_id_partition
    number = manifests.newest_number(partition)
    if number is not None:
        ensure_granted(number, lease, leases)
    known = None if number is None else _understood(partition, number, manifests)
    if known is None or (known.state, known.marked) != (stored.state, stored.marked):
        manifests.write(PartitionManifest(partition, lease.fencing_number, stored.state, now, stored.marked))


def _understood(partition: TopicIdPartition, number: int, manifests: PartitionManifests) -> PartitionManifest | None:
    try:
        return manifests.read_numbered(partition, number)
    except RemoteObjectCorruptError:
        return None


def write_partition_states(
    storage: RemoteStorageManager,
    leases: Leases,
    states: Sequence[tuple[Lease, StoredState]],
    now: int,
    *,
    is_copied: bool = False,
) -> Refusals:
    """Do the same for many partitions, some at once; return the errors by partition.

    If the only change is that something `is_copied`, a document of a later release stays as it is, and copies continue:
    a copy takes nothing away from it.
    """

    def write(item: tuple[Lease, StoredState]) -> Refusal | None:
        try:
            write_partition_state(storage, leases, *item, now)
        except LaterVersionError as error:
            return None if is_copied else error
        except (RemoteStorageError, OutdatedMetadataError, LeaseLostError) as error:
            return error
        return None

    errors = concurrent_map(write, states)
    return {
        lease.topic_id_partition: error for (lease, _), error in zip(states, errors, strict=True) if error is not None
    }


def raise_first(refusals: Mapping[TopicIdPartition, TieredStorageError]) -> None:
    """Raise one of `refusals`, if there are any."""
    for error in refusals.values():
        raise error


def listed_partition(
    partition: TopicIdPartition, storage: RemoteStorageManager, metadata: RemoteLogMetadataManager | None = None
) -> list[ListedObject]:
    """List the partition's folder once and return its content; nothing for a store that cannot be listed.

    With `metadata`, compare them with the partition manifest: see ensure_documented. Raises LaterVersionError or
    RemoteObjectCorruptError if the document cannot be read, OutdatedMetadataError, and what the store raises. Call
    it before every deletion.
    """
    listable = as_listable(storage)
    if listable is None:
        return []
    listed = list(listable.list_objects(partition_folder(partition)))
    manifests = [found.document for found in listed if found.document is not None]
    manifest = ensure_understood(partition, manifests, listable.partition_manifests)
    if metadata is not None and manifest is not None:
        ensure_documented(manifest, metadata)
    return listed


def ensure_all_listed(
    partition: TopicIdPartition,
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    listed: Iterable[ListedObject],
) -> None:
    """Raise RemoteObjectNotFoundError if an object of a finished segment of `partition` is not `listed`.

    A store that was emptied must not lead to deletions: the local data may be all that is left. Call it under
    the partition's lease, with a listing made under it.
    """
    listable = as_listable(storage)
    if listable is None:
        return
    names = {found.name for found in listed}
    missing = [
        name
        for segment in finished(metadata.list_remote_log_segments(partition))
        for name in listable.expected_objects(segment)
        if name not in names
    ]
    if missing:
        raise RemoteObjectNotFoundError(
            f"{partition}: the store lacks {len(missing)} objects of finished segments, such as {missing[0]}, so "
            "nothing of the partition is deleted: 'tiered-storage audit' names what is missing, and 'tiered-storage "
            "repair' copies again what is still local; to give up what is lost, run 'tiered-storage delete-records' "
            "with --give-up"
        )


def ensure_understood(
    partition: TopicIdPartition, listed: Sequence[PartitionManifestName], manifests: PartitionManifests
) -> PartitionManifest | None:
    """Return the newest document. Raises LaterVersionError or RemoteObjectCorruptError if it cannot be read."""
    number = max((name.fencing_number for name in listed if not name.temporary), default=None)
    if number is None:
        return None
    try:
        return manifests.read_numbered(partition, number)
    except RemoteObjectNotFoundError:
        # A later holder has written its own meanwhile.
        return manifests.read(partition)
    except RemoteObjectCorruptError as error:
        raise RemoteObjectCorruptError(f"{error}; 'tiered-storage repair' writes it again from the metadata") from error


def incomplete_partitions(
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    partitions: Sequence[TopicIdPartition],
    whole: Collection[TopicIdPartition] = frozenset(),
) -> Mapping[TopicIdPartition, RemoteStorageError | OutdatedMetadataError]:
    """Do `listed_partition` for many, and `ensure_all_listed` for those in `whole`, some at once.

    Returns the errors by partition.
    """

    def look(partition: TopicIdPartition) -> RemoteStorageError | OutdatedMetadataError | None:
        try:
            listed = listed_partition(partition, storage, metadata)
            if partition in whole:
                ensure_all_listed(partition, storage, metadata, listed)
        except (RemoteStorageError, OutdatedMetadataError) as error:
            return error
        return None

    found = concurrent_map(look, partitions)
    return {partition: error for partition, error in zip(partitions, found, strict=True) if error is not None}
