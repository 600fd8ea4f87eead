"""Keeps what the store knows of partitions in step with the metadata, and notices metadata that are older than it.

COPY_SEGMENT_STARTED is written before any object of a segment, and every document of a partition under a lease; so the
metadata that belong to a store know every segment id in it, and a lease as high as every document's. Where they do not,
they were restored from an old backup: what they say of that partition is not believed. A user's own
RemoteStorageManager keeps no such documents; then there is nothing to hold the metadata against.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeAlias, TypeVar

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
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_names import ObjectKind, PartitionDocumentName, partition_folder
from tiered_storage.remote_log.storage.partition_document import MAX_MARKED, PartitionDocument, PartitionDocuments
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager

REQUESTS_AT_ONCE = 8
OBJECTS_AT_ONCE = 3_000
"""So many objects of a listing are held against the metadata together."""

Refusal: TypeAlias = RemoteStorageError | OutdatedMetadataError | LeaseLostError
Refusals: TypeAlias = Mapping[TopicIdPartition, Refusal]
"""Why something could not be done, by partition."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def documents_of(storage: RemoteStorageManager) -> PartitionDocuments | None:
    """Return the documents of the store; None for a user's own RemoteStorageManager."""
    return storage.partition_documents if isinstance(storage, ObjectRemoteStorageManager) else None


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the store is to know of a partition: its state, and the ids of segments that are marked, one by one."""

    state: PartitionState
    marked: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        state: PartitionState,
        segments: Iterable[RemoteLogSegmentMetadata],
        going: Iterable[RemoteLogSegmentMetadata] = (),
    ) -> Self:
        """Return that of a partition in `state` with `segments`, of which those `going` are about to be marked.

        What our log start or the deletion of the whole partition tells is not named. Nor is what never was finished:
        that it has no reader the store tells by itself, or else it may be the last copy of its offsets (LeftoverCheck).
        """
        if goes_as_a_whole(state):
            return cls(state)
        log_start = state.log_start_offset or 0
        marked = [one for one in segments if _was_marked(one)]
        named = sorted({one.segment_id.id for one in (*marked, *going) if one.end_offset >= log_start})
        return cls(state, tuple(named[:MAX_MARKED]))

    def room_for(self, going: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Return those of `going` that may be marked now: a document names MAX_MARKED segments and no more."""
        room = MAX_MARKED - len(self.marked)
        below = [one for one in going if one.end_offset < (self.state.log_start_offset or 0)]
        named = [one for one in going if one.end_offset >= (self.state.log_start_offset or 0)]
        return [*below, *named[:room]]


def goes_as_a_whole(state: PartitionState) -> bool:
    """Whether the deletion of the whole partition has begun, so that every segment of it is marked."""
    return state.delete_state is not None and state.delete_state >= PartitionDeleteState.STARTED


def _was_marked(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is SegmentState.DELETE_SEGMENT_STARTED and segment.custom_metadata is not None


def write_partition_state(
    storage: RemoteStorageManager, leases: Leases, lease: Lease, stored: StoredState, now: int
) -> None:
    """Let the store know `stored` of the lease's partition, at `now` (ms), unless it does already.

    To be called before the metadata's log start, marks or deletion move to what it says. A broken document is written
    anew: the metadata have all of it. Raises what the store raises, and where a later lease wrote, LeaseLostError,
    or OutdatedMetadataError where `leases` never gave that one.
    """
    documents = documents_of(storage)
    if documents is None:
        return
    partition = lease.topic_id_partition
    number = documents.newest_number(partition)
    if number is not None and number > lease.fencing_number:
        leases.check(lease)
        raise outdated(partition, number, lease.fencing_number)
    known = None if number is None else _understood(partition, number, documents)
    if known is None or (known.state, known.marked) != (stored.state, stored.marked):
        documents.write(PartitionDocument(partition, lease.fencing_number, stored.state, now, stored.marked))


def _understood(partition: TopicIdPartition, number: int, documents: PartitionDocuments) -> PartitionDocument | None:
    try:
        return documents.read_numbered(partition, number)
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
    """Do the same for many, some at once; return what went wrong, by partition.

    Where no more happens than that something `is_copied`, a document of a later release stays as it is, and copying
    goes on: a copy takes away nothing of what it tells.
    """

    def write(item: tuple[Lease, StoredState]) -> Refusal | None:
        try:
            write_partition_state(storage, leases, *item, now)
        except LaterVersionError as error:
            return None if is_copied else error
        except (RemoteStorageError, OutdatedMetadataError, LeaseLostError) as error:
            return error
        return None

    errors = _at_once(write, states)
    return {
        lease.topic_id_partition: error for (lease, _), error in zip(states, errors, strict=True) if error is not None
    }


def outdated_leases(storage: RemoteStorageManager, leases: Leases, partitions: Iterable[TopicIdPartition]) -> Refusals:
    """Return those of `partitions` of which the store knows a later lease than was ever given, or cannot be asked.

    To be asked before a lease is taken: what is refused after it has raised the number, until that reaches the store's
    and nothing tells old metadata any more. One short listing a partition.
    """
    documents = documents_of(storage)
    if documents is None:
        return {}

    def look(partition: TopicIdPartition) -> Refusal | None:
        try:
            # The store first: whoever wrote there had been given the lease before.
            number = documents.newest_number(partition)
        except RemoteStorageError as error:
            return error
        if number is None:
            return None
        given = leases.fencing_number(partition)
        return outdated(partition, number, given) if number > given else None

    return _refusals(look, list(partitions))


def outdated_from(
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    first_offsets: Mapping[TopicIdPartition, int],
) -> Refusals:
    """Return those partitions of which the store knows more than the metadata from an offset on, or cannot be asked.

    To be asked, as `outdated_leases` is, before anything is copied from that offset on: what is remote already, though
    the metadata do not know it, must not be copied again. One listing a partition, of what lies behind that offset.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return {}

    def look(partition: TopicIdPartition) -> Refusal | None:
        folder = partition_folder(partition)
        try:
            before = max(0, first_offsets[partition] - 1)
            holder = metadata.remote_log_segment_metadata(partition, before)
            # The document's folder comes after every segment's name.
            after = f"{folder}/{before if holder is None else holder.start_offset:020}"
            # What has no marker nobody can have finished, so nothing is copied twice because of it.
            whole = (found for found in storage.list_objects(folder, after) if not _is_unmarked(found))
            _ensure_known(partition, whole, metadata, leases)
        except (RemoteStorageError, OutdatedMetadataError) as error:
            return error
        return None

    return _refusals(look, list(first_offsets))


def ensure_may_be_leased(partition: TopicIdPartition, storage: RemoteStorageManager, leases: Leases) -> None:
    """Raise what `outdated_leases` finds of one partition."""
    raise_first(outdated_leases(storage, leases, [partition]))


def raise_first(refusals: Mapping[TopicIdPartition, TieredStorageError]) -> None:
    """Raise one of `refusals`, if there are any."""
    for error in refusals.values():
        raise error


def ensure_not_outdated(
    partition: TopicIdPartition, storage: RemoteStorageManager, metadata: RemoteLogMetadataManager, leases: Leases
) -> list[ListedObject]:
    """List the partition's folder once, and return what is there; nothing for a user's own RemoteStorageManager.

    Raises OutdatedMetadataError where an object is of a segment that the metadata never knew, or a document of a lease
    that they never gave; LaterVersionError or RemoteObjectCorruptError for a document that cannot be understood; and
    what the store raises. For whatever removes something.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return []
    listed = list(storage.list_objects(partition_folder(partition)))
    _ensure_known(partition, listed, metadata, leases)
    documents = [found.document for found in listed if found.document is not None]
    ensure_understood(partition, documents, storage.partition_documents)
    return listed


def ensure_none_outdated(
    partitions: Iterable[TopicIdPartition],
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    *,
    only_whole: bool = False,
) -> None:
    """Raise OutdatedMetadataError where the store knows more than the metadata of any of `partitions`.

    For a run that removes something, before it removes anything: what is older in one partition is an old backup, and
    nobody knows what else was decided or copied since. One listing a partition. Where the store cannot be asked of
    one, that one fails at its turn. With `only_whole` what has no commit marker proves nothing.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return

    def look(partition: TopicIdPartition) -> OutdatedMetadataError | None:
        try:
            listed = storage.list_objects(partition_folder(partition))
            proving = (found for found in listed if not (only_whole and _is_unmarked(found)))
            _ensure_known(partition, proving, metadata, leases)
        except OutdatedMetadataError as error:
            return error
        except RemoteStorageError:
            pass
        return None

    for error in _at_once(look, sorted(set(partitions))):
        if error is not None:
            raise error


def _is_unmarked(found: ListedObject) -> bool:
    name = found.segment
    return name is not None and (name.temporary or name.kind is not ObjectKind.COMMIT_MARKER)


def _ensure_known(
    partition: TopicIdPartition, listed: Iterable[ListedObject], metadata: RemoteLogMetadataManager, leases: Leases
) -> None:
    """Raise OutdatedMetadataError for what is `listed` in the partition's folder, if the metadata never knew it.

    The store is asked first: whatever is seen there had its metadata written before it.
    """
    objects = iter(listed)
    number = 0
    while some := list(islice(objects, OBJECTS_AT_ONCE)):
        ids = {found.segment.segment_id.id for found in some if found.segment is not None}
        unknown = ids - metadata.known_segment_ids(partition, ids)
        if unknown:
            raise OutdatedMetadataError(
                f"{partition}: the store has objects of segments that the metadata never knew, such as {min(unknown)}: "
                f"{_WHAT_TO_DO}"
            )
        number = max([number, *(found.document.fencing_number for found in some if found.document is not None)])
    given = leases.fencing_number(partition) if number else 0
    if number > given:
        raise outdated(partition, number, given)


def ensure_all_listed(
    partition: TopicIdPartition,
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    listed: Iterable[ListedObject],
) -> None:
    """Raise RemoteObjectNotFoundError where an object of a finished segment of `partition` is not `listed`.

    A store that was emptied behind our back must end nothing: what is local may be all that is left. To be called under
    the partition's lease, with a listing that was made under it.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return
    names = {found.name for found in listed}
    missing = [
        name
        for segment in finished(metadata.list_remote_log_segments(partition))
        for name in storage.expected_objects(segment)
        if name not in names
    ]
    if missing:
        raise RemoteObjectNotFoundError(
            f"{partition}: the store lacks {len(missing)} objects of finished segments, such as {missing[0]}, so "
            "nothing of the partition ends and our log start stays: 'tiered-storage audit' names what is missing, and "
            "'tiered-storage repair' copies anew what is still local; who gives up what is lost says "
            "'tiered-storage delete-records' with --give-up"
        )


def ensure_understood(
    partition: TopicIdPartition, listed: Sequence[PartitionDocumentName], documents: PartitionDocuments
) -> None:
    """Raise LaterVersionError or RemoteObjectCorruptError where the newest document cannot be understood."""
    number = max((name.fencing_number for name in listed if not name.temporary), default=None)
    if number is None:
        return
    try:
        documents.read_numbered(partition, number)
    except RemoteObjectNotFoundError:
        # A holder after that one has written its own since.
        documents.read(partition)
    except RemoteObjectCorruptError as error:
        raise RemoteObjectCorruptError(f"{error}; 'tiered-storage repair' writes it anew from the metadata") from error


def outdated_partitions(
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    partitions: Sequence[TopicIdPartition],
    whole: Collection[TopicIdPartition] = frozenset(),
) -> Refusals:
    """Do `ensure_not_outdated` for many, and `ensure_all_listed` for those in `whole`, some at once.

    Returns what went wrong, by partition.
    """

    def look(partition: TopicIdPartition) -> Refusal | None:
        try:
            listed = ensure_not_outdated(partition, storage, metadata, leases)
            if partition in whole:
                ensure_all_listed(partition, storage, metadata, listed)
        except (RemoteStorageError, OutdatedMetadataError) as error:
            return error
        return None

    return _refusals(look, partitions)


def outdated(partition: TopicIdPartition, number: int, given: int) -> OutdatedMetadataError:
    """Return the error for a partition of which the store knows lease `number`, and the metadata only `given`."""
    return OutdatedMetadataError(
        f"{partition}: lease {number} has written to the store, and the metadata gave none after {given}: {_WHAT_TO_DO}"
    )


_WHAT_TO_DO = (
    "they are older than the store, so nothing of it is copied, and nothing of anything is trimmed or deleted; restore "
    "a newer backup of the metadata, or make them again with 'tiered-storage rebuild-metadata'"
)


def _refusals(look: Callable[[TopicIdPartition], Refusal | None], partitions: Sequence[TopicIdPartition]) -> Refusals:
    """Look at `partitions`, some at once; return what was found wrong, by partition."""
    found = _at_once(look, partitions)
    return {partition: error for partition, error in zip(partitions, found, strict=True) if error is not None}


def _at_once(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(REQUESTS_AT_ONCE, len(items))) as pool:
        return list(pool.map(work, items))
