"""Execute a repair plan besides its copies: mark damaged segments, delete orphans.

All of it happens under the partition's lease, and only as far as the plan still holds then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby

from tiered_storage.errors import RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.lineage import whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, listed_partition, write_partition_state
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionState,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.repair.plan import Leftovers
from tiered_storage.remote_log.repair.redundancy import WholeChecks, why_needed
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_known_versions
from tiered_storage.remote_log.storage.documents.object_names import ObjectKind, partition_folder
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject

_MARKER = f".{ObjectKind.COMMIT_MARKER}"
_NO_ROOM = (
    "as many segments are marked as the document of a partition names; once those are deleted, the next repair takes it"
)


@dataclass(frozen=True, slots=True)
class Repair:
    """Marks damaged segments and deletes orphans as `owner`; what was changed after `young_from` (ms) stays.

    `permissions` say whether leftovers of a partition may be removed, and whether anything may end now. Whole reads
    spend their bytes of `limit`.
    """

    context: RemoteLogContext
    storage: ListableStorage
    permissions: DeletionPermissions
    owner: str
    young_from: int
    limit: RateLimit

    def retire(
        self, damaged: Sequence[RemoteLogSegmentMetadata], all_damaged: frozenset[str] = frozenset()
    ) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
        """Mark those of `damaged` for deletion that sound segments replace; report the others.

        Sound segments replace one if they hold all its offsets and each of its readable batches. They are read back
        completely right before; segments in `all_damaged` are not even tried.
        """
        retired: list[RemoteLogSegmentMetadata] = []
        failures: list[Finding] = []
        ordered = sorted(damaged, key=lambda each: (each.topic_id_partition, each.start_offset))
        for partition, of_partition in groupby(ordered, lambda each: each.topic_id_partition):
            try:
                with (
                    self._lease(partition) as lease,
                    kept_alive(self.context.leases, [lease], self.context.settings.lease_duration_ms),
                ):
                    done, held_back = self._retire_in(list(of_partition), all_damaged, lease)
            except TieredStorageError as error:
                failures.append(Finding(str(partition), str(error)))
                continue
            retired.extend(done)
            failures.extend(held_back)
        return retired, failures

    def write_documents(self, partitions: Iterable[TopicIdPartition]) -> tuple[list[TopicIdPartition], list[Finding]]:
        """Write the documents of `partitions` from the metadata; return the partitions done, and the failures."""
        written: list[TopicIdPartition] = []
        failures: list[Finding] = []
        for partition in partitions:
            try:
                with self._lease(partition) as lease:
                    state = self.context.segments.partition_state(partition)
                    stored = StoredState.of(state, self.context.segments.list_remote_log_segments(partition))
                    write_partition_state(self.storage, self.context.leases, lease, stored, self.context.clock())
            except TieredStorageError as error:
                failures.append(Finding(str(partition), str(error)))
                continue
            written.append(partition)
        return written, failures

    def remove(self, leftovers: Iterable[Leftovers]) -> tuple[list[str], list[Finding]]:
        """Delete what is still an orphan, markers first; return the deleted names, and the failures."""
        removed: list[str] = []
        failures: list[Finding] = []
        for of_partition in leftovers:
            partition = of_partition.topic_id_partition
            try:
                self.permissions.ensure(partition, DeletionKind.LEFTOVER)
                with self._lease(partition):
                    gone, errors = self._delete(self._still_left_over(of_partition))
                removed.extend(gone)
                failures.extend(Finding(str(partition), str(error)) for error in errors)
            except TieredStorageError as error:
                failures.append(Finding(str(partition), str(error)))
        return removed, failures

    def _retire_in(
        self, damaged: Sequence[RemoteLogSegmentMetadata], all_damaged: frozenset[str], lease: Lease
    ) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
        partition = lease.topic_id_partition
        listed_partition(partition, self.storage)
        ids = {segment.segment_id.id for segment in damaged}
        segments = list(self.context.segments.list_remote_log_segments(partition))
        state = self.context.segments.partition_state(partition)
        sound = [segment for segment in segments if segment.segment_id.id not in ids | all_damaged]
        lineage, log_start = whole_lineage(sound, state.lineage), state.log_start_offset or 0
        coverage = Coverage.of(sound, lineage)
        checks = WholeChecks(self.storage, lambda: self.context.leases.check(lease), self.limit.spend)
        to_mark: list[RemoteLogSegmentMetadata] = []
        held_back: list[Finding] = []
        for segment in segments:
            if segment.segment_id.id not in ids or segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                continue
            try:
                ensure_known_versions([segment], self.storage)
                why_not = self.permissions.why_stopped() or why_needed(segment, coverage, log_start, lineage, checks)
            except RemoteStorageError as error:
                why_not = f"the store cannot be reached or understood: {error}"
            if why_not is not None:
                held_back.append(Finding(str(partition), f"{segment.segment_id.id} stays as it is: {why_not}"))
                continue
            to_mark.append(segment)
        if to_mark and (stopped := self.permissions.why_stopped()):
            held_back += [Finding(str(partition), f"{one.segment_id.id} stays as it is: {stopped}") for one in to_mark]
            to_mark = []
        room = StoredState.of(state, segments).room_for(to_mark)
        without = {one.segment_id.id for one in to_mark} - {one.segment_id.id for one in room}
        held_back += [Finding(str(partition), f"{one} stays as it is: {_NO_ROOM}") for one in sorted(without)]
        return self._mark(room, segments, state, lease), held_back

    def _mark(
        self,
        to_mark: Sequence[RemoteLogSegmentMetadata],
        segments: Sequence[RemoteLogSegmentMetadata],
        state: PartitionState,
        lease: Lease,
    ) -> list[RemoteLogSegmentMetadata]:
        """Mark `to_mark`, of all `segments` of a partition, after recording it in the store."""
        if not to_mark:
            return []
        now = self.context.clock()
        write_partition_state(self.storage, self.context.leases, lease, StoredState.of(state, segments, to_mark), now)
        marking = SegmentState.DELETE_SEGMENT_STARTED
        steps = [(RemoteLogSegmentMetadataUpdate(segment.segment_id, marking, now), lease) for segment in to_mark]
        marked: list[RemoteLogSegmentMetadata] = []
        for outcome in self.context.segments.update_remote_log_segments(steps):
            if not isinstance(outcome, RemoteLogSegmentMetadata):
                raise outcome
            marked.append(outcome)
        return marked

    def _delete(self, leftovers: Sequence[ListedObject]) -> tuple[list[str], list[RemoteStorageError]]:
        """Delete markers, and then all other objects unless a marker stayed: it must not outlive its objects."""
        removed: list[str] = []
        errors: list[RemoteStorageError] = []
        for are_markers in (True, False):
            names = [found.name for found in leftovers if found.name.endswith(_MARKER) is are_markers]
            failed = self.storage.delete_objects(names)
            removed += [name for name in names if name not in failed]
            errors += failed.values()
            if failed:
                break
        return removed, errors

    def _still_left_over(self, leftovers: Leftovers) -> list[ListedObject]:
        partition = leftovers.topic_id_partition
        names = set(leftovers.names)
        found = [each for each in self.storage.list_objects(partition_folder(partition)) if each.name in names]
        live = {segment.segment_id.id for segment in self.context.segments.list_remote_log_segments(partition)}
        ids = [each.segment.segment_id.id for each in found if each.segment is not None]
        known = self.context.segments.known_segment_ids(partition, ids)
        return [each for each in found if each.last_modified < self.young_from and _is_leftover(each, live, known)]

    def _kept_alive(self, lease: Lease) -> AbstractContextManager[None]:
        return kept_alive(self.context.leases, [lease], self.context.settings.lease_duration_ms)

    @contextmanager
    def _lease(self, partition: TopicIdPartition) -> Iterator[Lease]:
        lease = self.context.leases.acquire(partition, self.owner, self.context.settings.lease_duration_ms)
        try:
            yield lease
        finally:
            self.context.leases.release(lease)


def _is_leftover(found: ListedObject, live: set[str], known: frozenset[str]) -> bool:
    if found.document is not None:
        return found.document.temporary
    if found.segment is None or found.segment.segment_id.id not in known:
        return False
    return found.segment.temporary or found.segment.segment_id.id not in live
