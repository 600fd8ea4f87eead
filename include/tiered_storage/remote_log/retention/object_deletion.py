"""Delete marked segments: objects are deleted in batches, and then DELETE_SEGMENT_FINISHED is written.

Between two batches permissions and the clock are checked again, and leases are renewed. Partitions with little to
delete, and nothing to find out, share a batch. A segment whose deletion fails stays in DELETE_SEGMENT_STARTED, is
listed as a failed deletion, and is retried by the next run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiered_storage.errors import (
    DeletionRefusedError,
    LeaseHeldError,
    LeaseLostError,
    OutdatedMetadataError,
    RemoteStorageError,
)
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.start import abandon_unfinished
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.lineage import on_lineage, whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import incomplete_partitions, listed_partition
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
    finding_of,
)
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.retention.orphan_check import OrphanCheck, listed_segments
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement, GraceTime
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_known_partition
from tiered_storage.remote_log.retention.segment_deleter import DeletionReport, Found, SegmentDeleter
from tiered_storage.remote_log.retention.topic_deletion import PartitionDeletion
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.listable_storage import ListedObject, as_listable

GROUP_PARTITIONS = 50
"""How many partitions at most share a batch: their leases are held together."""


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """Deletes the objects of marked segments, `deletion.batch.segments` at a time.

    Nothing of a partition is deleted if its metadata are older than the store.

    - A copy that never finished stays for `remote.log.orphan.grace.ms` after it was marked, as its worker may still be
      writing. It stays for longer if it may be the last copy of its offsets (OrphanCheck).
    - Segments that readers could see stay for `grace` after they were marked, for an undelete. They stay for longer if
      `permissions` refuse the deletion, which may have been forbidden since, or if `clocks` find a mark in the future:
      the clock that made it was ahead.
    """

    context: RemoteLogContext
    permissions: DeletionPermissions
    clocks: ClockAgreement
    owner: str
    grace: GraceTime
    whole_partitions: Collection[TopicIdPartition] = frozenset()
    """The partitions that are to be deleted as a whole."""
    on_moved: OnMoved = unreported
    """Is called for each segment whose objects were deleted."""

    @property
    def _lease_duration(self) -> int:
        return self.context.settings.lease_duration_ms

    @property
    def _most(self) -> int:
        """How many segments share a batch at most."""
        return self.context.settings.deletion_batch_segments

    def delete_marked(self, partitions: Iterable[TopicIdPartition]) -> DeletionReport:
        """Delete what is marked in `partitions`, including what earlier runs could not.

        If a partition is being deleted, delete every object that the topic's rights allow.
        Raises DeletionRefusedError if a person stopped all deletions before the first of them. After a later stop, the
        report has what was done until then; the leases are released.
        """
        found = Found()
        self.permissions.ensure_running()
        for group in self._groups(partitions, found):
            try:
                self._delete_group(group, found)
            except DeletionRefusedError as error:
                stopped = self.permissions.why_stopped()
                if stopped is not None:
                    return found.report(stopped)
                for waiting in group:
                    found.fail(waiting.partition, error)
            except RemoteStorageError as error:
                # The store did not confirm its identity: report what was done until then all the same.
                for waiting in group:
                    found.fail(waiting.partition, error)
        return found.report()

    def has_work(self, partition: TopicIdPartition) -> bool:
        """Return whether anything of `partition` is being deleted, is marked, or is an unfinished copy."""
        return partition in self.whole_partitions or self._waiting(partition, Found()) is not None

    def _groups(self, partitions: Iterable[TopicIdPartition], found: Found) -> Iterator[list[_Waiting]]:
        """Yield groups of work: partitions that can share a batch together, each of the others alone."""
        group: list[_Waiting] = []
        segments = 0
        for partition in partitions:
            waiting = self._waiting(partition, found)
            if waiting is None:
                continue
            if waiting.is_alone or waiting.segments > self._most:
                yield [waiting]
                continue
            if len(group) == GROUP_PARTITIONS or segments + waiting.segments > self._most:
                yield group
                group, segments = [], 0
            group.append(waiting)
            segments += waiting.segments
        if group:
            yield group

    def _waiting(self, partition: TopicIdPartition, found: Found) -> _Waiting | None:
        unfinished = marked = segments = 0
        for segment in self.context.segments.list_remote_log_segments(partition):
            if segment.is_marked:
                segments += self._is_over(segment)
            elif segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                unfinished += 1
                marked += segment.state is SegmentState.DELETE_SEGMENT_STARTED
        marked += segments
        is_requested = partition in self.whole_partitions
        is_whole = is_requested and self.permissions.is_allowed(partition, DeletionKind.REMOTE)
        if is_requested and not is_whole:
            found.fail(partition, _forbidden(partition, segments))
        if not (is_whole or unfinished or marked):
            return None
        return _Waiting(partition, is_whole, is_whole or unfinished > 0, marked > 0, segments)

    def _delete_group(self, group: Sequence[_Waiting], found: Found) -> None:
        if len(group) == 1:
            self._delete_alone(group[0], found)
        else:
            self._delete_together([waiting.partition for waiting in group], found)

    def _delete_together(self, partitions: Sequence[TopicIdPartition], found: Found) -> None:
        """Delete what readers could see once of several partitions, all of it in one batch."""
        taken = self.context.leases.acquire_many(partitions, self.owner, self._lease_duration)
        found.left += [finding_of(each.topic_id_partition, each.reason) for each in taken.refused]
        try:
            held = {lease.topic_id_partition: lease for lease in taken.granted}
            for partition, error in incomplete_partitions(
                self.context.storage, self.context.segments, list(held)
            ).items():
                found.fail(partition, error)
                del held[partition]
            self._delete_held(held, found)
        finally:
            self.context.leases.release_many(taken.granted)

    def _delete_held(self, held: dict[TopicIdPartition, Lease], found: Found) -> None:
        allowed = [partition for partition in held if self.permissions.is_allowed(partition, DeletionKind.REMOTE)]
        for partition in held.keys() - set(allowed) - set(self.whole_partitions):
            found.fail(partition, _forbidden(partition, len(self._due(partition)[1])))
        due = [segment for partition in allowed for segment in self._due_and_believed(partition, found)]
        self._delete_in_batches(due, DeletionKind.REMOTE, held, found)

    def _delete_in_batches(
        self,
        due: Sequence[RemoteLogSegmentMetadata],
        kind: DeletionKind,
        held: dict[TopicIdPartition, Lease],
        found: Found,
    ) -> None:
        """Delete what is `due` of the partitions with leases in `held`; lost or refused partitions are removed from it.

        Raises DeletionRefusedError as soon as a person stopped all deletions, or the clock jumped.
        """
        gone_before = len(found.deleted)
        for first in range(0, len(due), self._most):
            self.clocks.ensure_steady()
            batch = [one for one in due[first : first + self._most] if one.topic_id_partition in held]
            partitions = {segment.topic_id_partition: None for segment in batch}
            for partition, refusal in self.permissions.refusals(partitions, kind).items():
                found.fail(partition, refusal)
                del held[partition]
            for lost in self.context.leases.heartbeat_many(list(held.values()), self._lease_duration).refused:
                found.left.append(Finding(str(lost.topic_id_partition), str(lost.reason)))
                del held[lost.topic_id_partition]
            leased = [(one, held[one.topic_id_partition]) for one in batch if one.topic_id_partition in held]
            for partition, error in self._objects.delete(leased, found).items():
                if not isinstance(error, LeaseLostError):
                    raise error
                found.left.append(Finding(str(partition), str(error)))
                del held[partition]
        self._objects.forget_marks(list(held.values()), found.deleted[gone_before:])

    def _delete_alone(self, waiting: _Waiting, found: Found) -> None:
        partition = waiting.partition
        try:
            if waiting.is_whole:
                ensure_known_partition(partition, self.context.segments, self.context.storage)
            lease = self.context.leases.acquire(partition, self.owner, self._lease_duration)
        except (OutdatedMetadataError, RemoteStorageError) as error:
            found.fail(partition, error)
            return
        except LeaseHeldError as error:
            # Copies under way have a holder, and nothing of theirs waits for us.
            if waiting.is_whole or waiting.is_marked:
                found.left.append(finding_of(partition, error))
            return
        try:
            listed = listed_partition(partition, self.context.storage, self.context.segments)
            abandon_unfinished(partition, self.context.segments, lease, self.clocks.clock)
            if waiting.is_whole:
                self.permissions.ensure(partition, DeletionKind.REMOTE)
                self._as_a_whole.start(lease)
            is_held = self._delete_under(lease, found, None if waiting.is_whole else listed)
            if waiting.is_whole and is_held:
                self._finish(lease, found)
        except LeaseLostError as error:
            found.left.append(Finding(str(partition), str(error)))
        except (OutdatedMetadataError, RemoteStorageError) as error:
            found.fail(partition, error)
        finally:
            self.context.leases.release(lease)

    def _finish(self, lease: Lease, found: Found) -> None:
        partition = lease.topic_id_partition
        self.permissions.ensure(partition, DeletionKind.REMOTE)
        self.clocks.ensure_steady()
        self.context.leases.heartbeat(lease, self._lease_duration)
        remains = self._as_a_whole.finish(lease)
        if remains is not None:
            found.fail(partition, remains)

    @property
    def _as_a_whole(self) -> PartitionDeletion:
        return PartitionDeletion(self.context)

    @property
    def _objects(self) -> SegmentDeleter:
        return SegmentDeleter(self.context, self.on_moved)

    def _delete_under(self, lease: Lease, found: Found, listed: Sequence[ListedObject] | None) -> bool:
        """Delete what is due, and return whether the lease still holds and nothing was refused.

        In a partition that stays, of which the store has `listed`, no last copy is deleted by mistake.
        """
        partition = lease.topic_id_partition
        held = {partition: lease}
        unfinished, _ = self._due(partition)
        finished = self._due_and_believed(partition, found)
        if unfinished and listed is not None:
            unfinished = self._without_last_copies(unfinished, lease, listed, found)
        for kind, due in ((DeletionKind.LEFTOVER, unfinished), (DeletionKind.REMOTE, finished)):
            if not due or not held:
                continue
            if self.permissions.is_allowed(partition, kind):
                self._delete_in_batches(due, kind, held, found)
            elif partition not in self.whole_partitions:
                found.fail(partition, _forbidden(partition, len(due)))
        return bool(held)

    def _without_last_copies(
        self,
        unfinished: list[RemoteLogSegmentMetadata],
        lease: Lease,
        listed: Sequence[ListedObject],
        found: Found,
    ) -> list[RemoteLogSegmentMetadata]:
        storage = as_listable(self.context.storage)
        if storage is None:
            return unfinished
        check = OrphanCheck(self.context.segments, storage, self.context.local_log)
        with kept_alive(self.context.leases, [lease], self._lease_duration):
            kept = check.why_kept(lease.topic_id_partition, unfinished, listed)
        self._objects.note([segment for segment in unfinished if segment.segment_id.id in kept], kept, found)
        return [segment for segment in unfinished if segment.segment_id.id not in kept]

    def _due(
        self, partition: TopicIdPartition
    ) -> tuple[list[RemoteLogSegmentMetadata], list[RemoteLogSegmentMetadata]]:
        """Return what is due of unfinished copies, and of once-visible segments."""
        unfinished, finished = [], []
        for segment in self.context.segments.list_remote_log_segments(partition):
            if segment.state is not SegmentState.DELETE_SEGMENT_STARTED:
                continue
            if segment.custom_metadata is not None:
                finished += [segment] if self._is_over(segment) else []
            elif segment.event_timestamp <= self.clocks.clock() - self.context.settings.remote_log_orphan_grace_ms:
                unfinished.append(segment)
        return unfinished, finished

    def _is_over(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the grace time of a marked segment is over; True for a mark in the future."""
        now, marked_at = self.clocks.clock(), segment.event_timestamp
        return self.grace.over_at(marked_at) <= now or marked_at > now + self.clocks.max_skew_ms

    def _due_and_believed(self, partition: TopicIdPartition, found: Found) -> list[RemoteLogSegmentMetadata]:
        """Return what is due of once-visible segments; nothing if one has a mark in the future."""
        finished = self._due(partition)[1]
        try:
            self.clocks.ensure_not_ahead(partition, finished)
        except DeletionRefusedError as error:
            found.fail(partition, error)
            return []
        return self._without_only_copies(partition, finished, found)

    def _without_only_copies(
        self, partition: TopicIdPartition, due: list[RemoteLogSegmentMetadata], found: Found
    ) -> list[RemoteLogSegmentMetadata]:
        """Remove from `due` the second copies whose offsets no finished segment in the store's listing holds any more.

        They were marked a grace time ago because others held their offsets. If a later leader has contradicted one
        since, the others of its own leaders count, which hold the same records. If the topic is no longer tiered, all
        its remote data are deleted, whatever else holds them.
        """
        log_start = self.context.segments.log_start_offset(partition) or 0
        second = [one for one in due if one.end_offset >= log_start]
        is_ended = (
            partition in self.whole_partitions or not self.permissions.decided_topic(partition).remote_storage_enable
        )
        storage = as_listable(self.context.storage)
        if not second or is_ended or storage is None:
            return due
        sizes = {listed.name: listed.size for listed in storage.list_objects(partition_folder(partition))}
        there = listed_segments(partition, self.context.segments, storage, sizes)
        lineage = self.context.segments.partition_state(partition).lineage
        coverage = Coverage.of(there, lineage)
        whole = whole_lineage(there, lineage)

        def is_held(one: RemoteLogSegmentMetadata) -> bool:
            is_contradicted = bool(one.leader_epochs) and not on_lineage(one, whole)
            of_its_leaders = Coverage.of(there, one.leader_epochs) if is_contradicted else coverage
            return of_its_leaders.holding(max(one.start_offset, log_start), one.end_offset) is not None

        kept = {one.segment_id.id: _only_copy(one) for one in second if not is_held(one)}
        self._objects.note([one for one in second if one.segment_id.id in kept], kept, found)
        return [one for one in due if one.segment_id.id not in kept]


def _forbidden(partition: TopicIdPartition, segments: int) -> str:
    return (
        f"{segments} segments of it are marked, but deletion is no longer allowed: they stay in the store, and "
        "no reader gets them; 'tiered-storage topics allow-deletion "
        f"{partition.topic} --only remote' allows it"
    )


def _only_copy(segment: RemoteLogSegmentMetadata) -> str:
    return (
        f"it was marked because other segments hold offsets {segment.start_offset} to {segment.end_offset}, but the "
        "store no longer has all of these: it stays, as it may be the only copy. 'tiered-storage audit' names what is "
        "missing: restore that from a backup, or run 'tiered-storage repair'; then the next run deletes this segment"
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A partition with something to delete: `segments` that were visible, or something to find out.

    A partition that is deleted as a whole, or has unfinished copies, is handled alone.
    """

    partition: TopicIdPartition
    is_whole: bool
    is_alone: bool
    is_marked: bool
    segments: int
