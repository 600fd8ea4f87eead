"""Rebuild the metadata from the store alone, into an empty metadata store.

Every complete segment becomes a finished copy again, with log starts, lineages and deletions from the store's
documents. These segments are marked for deletion: those that were marked before, those without a commit marker, and
damaged ones whose offsets other segments have. A partition whose documents have no log start gets none: only a
decision expires its records. Fencing numbers continue far above all earlier ones, so the leases of earlier runs are
invalid. Deletion must be allowed again. The store is bound to the new metadata at the very end: if the rebuild ends
early, the store still belongs to the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tiered_storage.clock import Clock, as_date
from tiered_storage.errors import ConfigurationError, RemoteMetadataError, RemoteObjectCorruptError
from tiered_storage.remote_log.context import open_metadata, open_storage
from tiered_storage.remote_log.metadata.generation import GenerationGuard
from tiered_storage.remote_log.metadata.manifest_sync import StoredState
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.rebuild.new_metadata import built_aside, new_metadata_place
from tiered_storage.remote_log.rebuild.stored_partitions import StoredPartition, stored_partitions
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.documents.object_names import (
    HIGHEST_NUMBER,
    STORE_IDENTITY,
    PartitionManifestName,
    SegmentObjectName,
    parse_partition_folder,
)
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, listing_storage
from tiered_storage.remote_log.tiering_policy import seed, withhold_seeded_rights
from tiered_storage.settings.settings import Settings

FENCING_JUMP = 2**32
"""More leases than anybody takes of a partition between two reads of the store."""

_OWNER = "rebuild-metadata"
_LEASE_MS = 3_600_000


def above_all(partition: TopicIdPartition, newest: int) -> int:
    """Return a fencing number far above `newest`, the highest one seen of `partition`.

    Raises RemoteObjectCorruptError if there is none: then an object in the store has an impossible number.
    """
    if newest + FENCING_JUMP <= HIGHEST_NUMBER:
        return newest + FENCING_JUMP
    raise RemoteObjectCorruptError(
        f"{partition}: fencing number {newest} is higher than any that Remote Log gives: remove "
        f"{PartitionManifestName(partition, newest).name} from the store, then run this again"
    )


SeedTopic: TypeAlias = Callable[[TopicIdPartition], Topic]
"""Returns the initial decision for the topic of a partition."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The rebuilt partitions, finished segments and bytes; the unfinished ones; and what could not be rebuilt.

    `marked` were marked before, and still are. Deleted partitions do not count. `unreadable` also lists damaged
    segments that have another copy. `notices` report what is no longer known, and maybe never was.
    """

    partitions: int
    segments: int
    size: int
    unfinished: int
    unreadable: tuple[Finding, ...]
    marked: int = 0
    notices: tuple[Finding, ...] = ()


class MetadataRebuild:
    """Fills `store` from `storage`; with None for `store`, only reads."""

    def __init__(
        self,
        storage: ListableStorage,
        store: MetadataStore | None,
        clock: Clock,
        seed_topic: SeedTopic,
    ) -> None:
        """`seed_topic` gives the initial decisions on topics; rights to delete are withheld."""
        self._storage = storage
        self._store = store
        self._clock = clock
        self._seed_topic = seed_topic
        self._documents: list[PartitionManifest] = []
        self._newest_copy = 0

    def read(self) -> RebuildReport:
        """Read the whole store, partition by partition, and record its content.

        Raises what store and metadata raise. The store is not changed.
        """
        partitions = segments = size = unfinished = marked = 0
        unreadable: list[Finding] = []
        notices: list[Finding] = []
        for stored in stored_partitions(self._storage):
            partitions += not stored.is_gone
            marked += len(stored.marked)
            segments += len(stored.finished)
            size += sum(segment.size for segment in stored.finished)
            unfinished += len(stored.unfinished)
            self._newest_copy = max(self._newest_copy, stored.newest_copy)
            unreadable.extend(stored.unreadable)
            notices.extend(stored.notices)
            if self._store is not None and (stored.newest_number or stored.is_known):
                self._documents.append(self._know_again(stored, self._store))
        return RebuildReport(partitions, segments, size, unfinished, tuple(unreadable), marked, tuple(notices))

    def take_over(self, store: MetadataStore) -> None:
        """Bind the store to the new metadata, which are complete now. Raises what the store raises.

        After an exception it is unknown to which metadata the store belongs: call this again.
        """
        self._storage.rebind(store.identity.metadata_uuid, store.identity.bind_store)
        if self._newest_copy:
            # Not the store's generation or marks: a rebuild writes both by an unchecked clock, and may be repeated.
            store.clock_readings.record(ClockReading.of_newest_time(self._newest_copy))
        GenerationGuard(store, lambda: self._storage, self._clock).claim("the metadata were made again from the store")
        # Not earlier: while the old metadata may still be used, the store must not show a lease that they never
        # granted.
        for document in self._documents:
            self._storage.partition_manifests.write(document)

    def _know_again(self, stored: StoredPartition, store: MetadataStore) -> PartitionManifest:
        """Record everything of one partition, and return its new document for the store."""
        partition = stored.topic_id_partition
        seeded = self._seed_topic(partition)
        store.topics.put(replace(seeded, local_deletion_allowed=False, remote_deletion_allowed=False))
        store.leases.begin_above({partition: above_all(partition, stored.newest_number)})
        lease = store.leases.acquire(partition, _OWNER, _LEASE_MS)
        state = _state_of(stored)
        if state.lineage:
            store.segments.put_lineage(partition, state.lineage, lease)
        moved_at = None
        for earlier in state.earlier_log_starts:
            store.segments.advance_log_start_offset(partition, earlier.offset, lease, moved_at)
            moved_at = earlier.moved_at
        if state.log_start_offset is not None:
            store.segments.advance_log_start_offset(partition, state.log_start_offset, lease, moved_at)
        to_mark = (*stored.damaged, *stored.marked)
        self._add_finished((*stored.finished, *to_mark), lease, store)
        self._mark([segment.segment_id for segment in to_mark], lease, store)
        self._add_unfinished(stored.unfinished, lease, store)
        # Not earlier: a partition under deletion takes no segments.
        self._put_deletion(partition, state.delete_state, lease, store)
        store.leases.release(lease)
        marked = StoredState.of(state, (), to_mark).marked
        return PartitionManifest(partition, lease.fencing_number, state, self._clock(), marked)

    def _add_finished(self, finished: Sequence[RemoteLogSegmentMetadata], lease: Lease, store: MetadataStore) -> None:
        _add(
            [
                replace(
                    segment,
                    state=SegmentState.COPY_SEGMENT_STARTED,
                    custom_metadata=None,
                    fencing_number=lease.fencing_number,
                )
                for segment in finished
            ],
            lease,
            store,
        )
        updates = [
            RemoteLogSegmentMetadataUpdate(
                segment.segment_id,
                SegmentState.COPY_SEGMENT_FINISHED,
                segment.event_timestamp,
                segment.custom_metadata,
                segment.max_timestamp,
            )
            for segment in finished
        ]
        _step(updates, lease, store)

    def _add_unfinished(self, unfinished: Sequence[SegmentObjectName], lease: Lease, store: MetadataStore) -> None:
        """Record unfinished segments, so that they are deleted in the ordinary way, after their grace time."""
        now = self._clock()
        _add(
            [
                RemoteLogSegmentMetadata(
                    name.segment_id,
                    name.base_offset,
                    name.base_offset,
                    max_timestamp=-1,
                    event_timestamp=now,
                    size=0,
                    leader_epochs=(),
                    fencing_number=lease.fencing_number,
                )
                for name in unfinished
            ],
            lease,
            store,
        )
        self._mark([name.segment_id for name in unfinished], lease, store)

    def _mark(self, segment_ids: Sequence[RemoteLogSegmentId], lease: Lease, store: MetadataStore) -> None:
        now = self._clock()
        marks = [RemoteLogSegmentMetadataUpdate(each, SegmentState.DELETE_SEGMENT_STARTED, now) for each in segment_ids]
        _step(marks, lease, store)

    def _put_deletion(
        self, partition: TopicIdPartition, reached: PartitionDeleteState | None, lease: Lease, store: MetadataStore
    ) -> None:
        if reached is None:
            return
        for step in PartitionDeleteState:
            if step <= reached:
                metadata = RemotePartitionDeleteMetadata(partition, step, self._clock())
                store.segments.put_remote_partition_delete_metadata(metadata, lease)


def _state_of(stored: StoredPartition) -> PartitionState:
    """Return the state of a partition: that of its document, as far as it still holds.

    If no document has the global log start, the first commit sets it from the local log. But if complete, unrecorded
    segments may lie below the finished ones, our log begins at 0, so that they do not count as expired, and audits
    report the gap. A deletion that was FINISHED begins again if any object of the partition exists.
    """
    state = PartitionState() if stored.document is None else stored.document.state
    if state.delete_state is PartitionDeleteState.FINISHED and stored.is_anything_left:
        state = replace(state, delete_state=PartitionDeleteState.STARTED)
    first = min((segment.start_offset for segment in stored.finished), default=None)
    hidden = stored.hidden_start
    if state.log_start_offset is not None or hidden is None or (first is not None and first <= hidden):
        return state
    return replace(state, log_start_offset=0)


def _add(segments: Sequence[RemoteLogSegmentMetadata], lease: Lease, store: MetadataStore) -> None:
    for outcome in store.segments.add_remote_log_segments([(segment, lease) for segment in segments]):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            raise outcome


def _step(updates: Sequence[RemoteLogSegmentMetadataUpdate], lease: Lease, store: MetadataStore) -> None:
    for outcome in store.segments.update_remote_log_segments([(update, lease) for update in updates]):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            raise outcome


def rebuild_metadata(
    settings: Settings, options: ObjectStoreOptions, clock: Clock, into: Path | None = None, *, dry_run: bool = False
) -> RebuildReport:
    """Rebuild the metadata from the store, into the file `into`, or else where the settings have them.

    If it ends early, there are no new metadata, and the rebuild may be repeated. A dry run only reads the store. Raises
    ConfigurationError if there are metadata, also at the end of the rebuild; if the store holds nothing of ours; and
    for a user's own RemoteStorageManager.
    """
    new_metadata_place(settings, into)

    def seeded(partition: TopicIdPartition) -> Topic:
        return seed(partition.cluster_id, partition.topic_id, partition.topic, settings)

    with closing(open_storage(settings, options)) as opened:
        storage = listing_storage(opened)
        _ensure_something_is_there(storage, settings, clock)
        if dry_run:
            return MetadataRebuild(storage, None, clock, seeded).read()
        with built_aside(settings, into) as built:
            url = f"sqlite:///{built}"
            with open_metadata_store(url, clock, busy_timeout_ms=settings.metadata_busy_timeout_ms) as store:
                rebuild = MetadataRebuild(storage, store, clock, seeded)
                report = rebuild.read()
                withhold_seeded_rights(store.topics, settings)
                new_metadata_place(settings, into)
                rebuild.take_over(store)
        return report


def store_holder(settings: Settings, options: ObjectStoreOptions) -> str | None:
    """Return a sentence for people: which metadata the store belongs to, and its last use; None: it is empty.

    Raises what the store raises.
    """
    with closing(open_storage(settings, options)) as opened:
        storage = listing_storage(opened)
        try:
            identity, newest = storage.read_identity(), storage.generations.newest()
        except RemoteObjectCorruptError as error:
            return f"{settings.rsm_config_url} belongs to metadata that cannot be named ({error})."
        if identity is None and newest is None:
            if any(parse_partition_folder(found.name) for found in storage.list_objects()):
                return f"{settings.rsm_config_url} holds segments, and nothing in it names its metadata."
            return None
    which = "other metadata" if identity is None else f"the metadata {identity.metadata_uuid}"
    held = f"{settings.rsm_config_url} belongs to {which}"
    if newest is None:
        return f"{held}, which never used it since they were bound to it."
    return f"{held}; {newest.holder} last used it at {as_date(newest.renewed_at)} ({newest.reason})."


def _ensure_something_is_there(storage: ListableStorage, settings: Settings, clock: Clock) -> None:
    has_identity = False
    for found in storage.list_objects():
        if parse_partition_folder(found.name) is not None:
            return
        has_identity = has_identity or found.name == STORE_IDENTITY
    # A store.json alone, even a damaged one, is from a first copy whose metadata are lost.
    if not has_identity or _is_any_copied(settings, clock):
        raise ConfigurationError(
            f"{settings.rsm_config_url} holds no partition of a remote log: is the URL right, and the disk mounted?"
        )


def _is_any_copied(settings: Settings, clock: Clock) -> bool:
    """Return whether the metadata of the settings, not the new ones, have a finished segment."""
    with suppress(RemoteMetadataError), open_metadata(settings, clock) as store:
        return any(
            segment.state is SegmentState.COPY_SEGMENT_FINISHED
            for partition in store.segments.list_partitions()
            for segment in store.segments.list_remote_log_segments(partition)
        )
    return False
