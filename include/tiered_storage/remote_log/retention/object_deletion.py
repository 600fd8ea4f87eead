"""Delete marked segments: objects are deleted in batches, and then DELETE_SEGMENT_FINISHED is written.

Between two batches permissions and the clock are checked again, and leases are renewed; a caller may want no more then.
Partitions with little to delete, and nothing to find out, share a batch. A segment whose deletion fails stays in
DELETE_SEGMENT_STARTED, is listed as a failed deletion, sent to a topic if the settings name one, and retried by the
next run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tiered_storage.errors import (
    ConfigurationError,
    DeletionRefusedError,
    LeaseHeldError,
    LeaseLostError,
    OutdatedMetadataError,
    RemoteMetadataError,
    RemoteStorageError,
    SourceClusterError,
    TieredStorageError,
)
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.start import abandon_unfinished
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.metadata.manifest_sync import (
    StoredState,
    incomplete_partitions,
    listed_partition,
    write_partition_states,
)
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
    finding_of,
)
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.retention.due_segments import DueSegments, PartitionWork
from tiered_storage.remote_log.retention.failed_deletions_topic import FailedDeletion, FailedDeletionsTopic
from tiered_storage.remote_log.retention.orphan_check import OrphanCheck
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_known_versions
from tiered_storage.remote_log.retention.topic_deletion import finish_partition_deletion, start_partition_deletion
from tiered_storage.remote_log.storage.listable_storage import ListedObject, as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import delete_singly

GROUP_PARTITIONS = 50
"""How many partitions at most share a batch: their leases are held together."""


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """The deleted remote segments, the failures, and the partitions whose lease another run holds.

    `stopped` is why the run ended early: all deletions were stopped meanwhile. `cut` are the partitions in which more
    is due, since the caller wanted no more now.
    """

    deleted: tuple[RemoteLogSegmentMetadata, ...]
    failures: tuple[Finding, ...]
    left: tuple[Finding, ...]
    stopped: str | None = None
    cut: frozenset[TopicIdPartition] = frozenset()


@dataclass(slots=True)
class ObjectDeletion:
    """One run that deletes the objects of marked segments, `deletion.batch.segments` at a time.

    Nothing of a partition is deleted if its metadata are older than the store. Of what is `due`, segments that readers
    could see stay if `permissions` refuse the deletion, which may have been forbidden since, or if `clocks` find a mark
    in the future: the clock that made it was ahead.
    """

    context: RemoteLogContext
    permissions: DeletionPermissions
    clocks: ClockAgreement
    due: DueSegments
    owner: str
    on_moved: OnMoved = unreported
    """Is called for each segment whose objects were deleted."""
    topic: FailedDeletionsTopic | None = None
    """Gets each failed deletion."""
    goes_on: Callable[[], bool] = lambda: True
    """Is asked between two batches: without it, partitions keep the rest of their marks for another run."""
    _deleted: list[RemoteLogSegmentMetadata] = field(default_factory=list, init=False)
    _failures: list[Finding] = field(default_factory=list, init=False)
    _left: list[Finding] = field(default_factory=list, init=False)
    _cut: set[TopicIdPartition] = field(default_factory=set, init=False)

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
        Raises DeletionRefusedError if all deletions are stopped before the first of them. After a later stop, the
        report has what was done until then; the leases are released.
        """
        self.permissions.ensure_running()
        for number, group in enumerate(self._groups(partitions)):
            if number and not self.goes_on():
                self._cut.update(work.partition for work in group)
                continue
            try:
                self._delete_group(group)
            except DeletionRefusedError as error:
                stopped = self.permissions.why_stopped()
                if stopped is not None:
                    return self._report(stopped)
                for work in group:
                    self._fail(work.partition, error)
            except RemoteStorageError as error:
                # The store did not confirm its identity: report what was done until then all the same.
                for work in group:
                    self._fail(work.partition, error)
        return self._report()

    def _report(self, stopped: str | None = None) -> DeletionReport:
        cut = frozenset(self._cut)
        return DeletionReport(tuple(self._deleted), tuple(self._failures), tuple(self._left), stopped, cut)

    def _fail(self, partition: TopicIdPartition, error: object) -> None:
        self._failures.append(Finding(str(partition), str(error)))

    def _note(self, segments: Sequence[RemoteLogSegmentMetadata], reasons: Mapping[str, object]) -> None:
        """List those of `segments` that have one of `reasons`, by segment id, as failed deletions."""
        stuck = [(one, str(reasons[one.segment_id.id])) for one in segments if one.segment_id.id in reasons]
        now = self.context.clock()
        self.context.safety.note_failures({one.segment_id: reason for one, reason in stuck}, now)
        for one, reason in stuck:
            self._fail(one.topic_id_partition, f"{one.segment_id}: {reason}")
        self._send(FailedDeletion(one, now, reason) for one, reason in stuck)

    def _send(self, failed: Iterable[FailedDeletion]) -> None:
        """Send failed deletions to the topic that the settings name; if that fails, it is one more failure."""
        if self.topic is None:
            return
        try:
            self.topic.send(failed)
        except (SourceClusterError, ConfigurationError) as error:
            self._failures.append(Finding("", str(error)))

    def _groups(self, partitions: Iterable[TopicIdPartition]) -> Iterator[list[PartitionWork]]:
        """Yield groups of work: partitions that can share a batch together, each of the others alone."""
        group: list[PartitionWork] = []
        segments = 0
        for partition in partitions:
            work = self.due.work(partition)
            if work.is_forbidden:
                self._fail(partition, _forbidden(partition, work.segments))
            if not work.is_anything:
                continue
            if work.is_alone or work.segments > self._most:
                yield [work]
                continue
            if len(group) == GROUP_PARTITIONS or segments + work.segments > self._most:
                yield group
                group, segments = [], 0
            group.append(work)
            segments += work.segments
        if group:
            yield group

    def _delete_group(self, group: Sequence[PartitionWork]) -> None:
        if len(group) == 1:
            self._delete_alone(group[0])
        else:
            self._delete_together([work.partition for work in group])

    def _delete_together(self, partitions: Sequence[TopicIdPartition]) -> None:
        """Delete what readers could see once of several partitions, all of it in one batch."""
        taken = self.context.leases.acquire_many(partitions, self.owner, self._lease_duration)
        self._left += [finding_of(each.topic_id_partition, each.reason) for each in taken.refused]
        try:
            held = {lease.topic_id_partition: lease for lease in taken.granted}
            for partition, error in incomplete_partitions(
                self.context.storage, self.context.segments, list(held)
            ).items():
                self._fail(partition, error)
                del held[partition]
            self._delete_held(held)
        finally:
            self.context.leases.release_many(taken.granted)

    def _delete_held(self, held: dict[TopicIdPartition, Lease]) -> None:
        allowed = [partition for partition in held if self.permissions.is_allowed(partition, DeletionKind.REMOTE)]
        for partition in held.keys() - set(allowed) - set(self.due.whole_partitions):
            self._fail(partition, _forbidden(partition, len(self.due.of_partition(partition)[1])))
        due = [segment for partition in allowed for segment in self._finished_due(partition)]
        self._delete_in_batches(due, DeletionKind.REMOTE, held)

    def _delete_in_batches(
        self,
        due: Sequence[RemoteLogSegmentMetadata],
        kind: DeletionKind,
        held: dict[TopicIdPartition, Lease],
    ) -> None:
        """Delete what is `due` of the partitions with leases in `held`; lost or refused partitions are removed from it.

        Raises DeletionRefusedError as soon as all deletions are stopped, or the clock jumped.
        """
        deleted_before = len(self._deleted)
        for first in range(0, len(due), self._most):
            if first and not self.goes_on():
                self._cut.update(held)
                break
            self.clocks.ensure_steady()
            batch = [one for one in due[first : first + self._most] if one.topic_id_partition in held]
            partitions = {segment.topic_id_partition: None for segment in batch}
            for partition, refusal in self.permissions.refusals(partitions, kind).items():
                self._fail(partition, refusal)
                del held[partition]
            for lost in self.context.leases.heartbeat_many(list(held.values()), self._lease_duration).refused:
                self._left.append(Finding(str(lost.topic_id_partition), str(lost.reason)))
                del held[lost.topic_id_partition]
            leased = [(one, held[one.topic_id_partition]) for one in batch if one.topic_id_partition in held]
            for partition, error in self._delete_batch(leased).items():
                if not isinstance(error, LeaseLostError):
                    raise error
                self._left.append(Finding(str(partition), str(error)))
                del held[partition]
        self._forget_marks(list(held.values()), self._deleted[deleted_before:])

    def _delete_batch(
        self, batch: Sequence[tuple[RemoteLogSegmentMetadata, Lease]]
    ) -> dict[TopicIdPartition, RemoteMetadataError]:
        """Delete segments, each under the lease of its partition, and then write DELETE_SEGMENT_FINISHED.

        Return the partitions whose metadata could not be updated, and why.
        """
        segments = [segment for segment, _ in batch]
        failed = self._delete_objects(segments)
        # Before the metadata change, which may fail.
        self._note(segments, failed)
        now, ended = self.context.clock(), SegmentState.DELETE_SEGMENT_FINISHED
        gone = [(segment, lease) for segment, lease in batch if segment.segment_id.id not in failed]
        steps = [(RemoteLogSegmentMetadataUpdate(segment.segment_id, ended, now), lease) for segment, lease in gone]
        refused: dict[TopicIdPartition, RemoteMetadataError] = {}
        for (segment, _), outcome in zip(gone, self.context.segments.update_remote_log_segments(steps), strict=True):
            if isinstance(outcome, RemoteLogSegmentMetadata):
                self._deleted.append(outcome)
                self.on_moved(outcome.size, 1)
            else:
                refused[segment.topic_id_partition] = outcome
        self.context.safety.forget_failures(segment.segment_id for segment, _ in gone)
        return refused

    def _delete_objects(self, batch: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        if (storage := as_listable(self.context.storage)) is not None:
            return storage.delete_segments(batch)
        return delete_singly(self.context.storage, batch)

    def _forget_marks(self, leases: Sequence[Lease], gone: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Remove the `gone` segments from the partition manifests in the store.

        If that fails nothing is wrong: the next write of the document removes them.
        """
        ended: defaultdict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        for segment in gone:
            if segment.custom_metadata is not None:
                ended[segment.topic_id_partition].append(segment)
        stored: list[tuple[Lease, StoredState]] = []
        for lease in leases:
            partition = lease.topic_id_partition
            if partition not in ended:
                continue
            state = self.context.segments.partition_state(partition)
            if StoredState.of(state, (), ended[partition]).marked:
                stored.append((lease, StoredState.of(state, self.context.segments.list_remote_log_segments(partition))))
        write_partition_states(self.context.storage, self.context.leases, stored, self.context.clock())

    def _delete_alone(self, work: PartitionWork) -> None:
        partition = work.partition
        try:
            if work.is_whole:
                ensure_known_versions(self.context.segments.list_remote_log_segments(partition), self.context.storage)
            lease = self.context.leases.acquire(partition, self.owner, self._lease_duration)
        except (OutdatedMetadataError, RemoteStorageError) as error:
            self._fail(partition, error)
            return
        except LeaseHeldError as error:
            # Copies under way have a holder, and nothing of theirs waits for us.
            if work.is_whole or work.is_marked:
                self._left.append(finding_of(partition, error))
            return
        try:
            listed = listed_partition(partition, self.context.storage, self.context.segments)
            abandon_unfinished(partition, self.context.segments, lease, self.clocks.clock)
            if work.is_whole:
                self.permissions.ensure(partition, DeletionKind.REMOTE)
                start_partition_deletion(lease, self.context)
            is_held = self._delete_under(lease, None if work.is_whole else listed)
            if work.is_whole and is_held and partition not in self._cut:
                self._finish(lease)
        except LeaseLostError as error:
            self._left.append(Finding(str(partition), str(error)))
        except (OutdatedMetadataError, RemoteStorageError) as error:
            self._fail(partition, error)
        finally:
            self.context.leases.release(lease)

    def _finish(self, lease: Lease) -> None:
        partition = lease.topic_id_partition
        self.permissions.ensure(partition, DeletionKind.REMOTE)
        self.clocks.ensure_steady()
        self.context.leases.heartbeat(lease, self._lease_duration)
        remains = finish_partition_deletion(lease, self.context)
        if remains is not None:
            self._fail(partition, remains)

    def _delete_under(self, lease: Lease, listed: Sequence[ListedObject] | None) -> bool:
        """Delete what is due, and return whether the lease still holds and nothing was refused.

        In a partition that stays, of which the store has `listed`, no last copy is deleted by mistake.
        """
        partition = lease.topic_id_partition
        held = {partition: lease}
        unfinished, _ = self.due.of_partition(partition)
        finished = self._finished_due(partition)
        if unfinished and listed is not None:
            unfinished = self._without_last_copies(unfinished, lease, listed)
        for kind, due in ((DeletionKind.LEFTOVER, unfinished), (DeletionKind.REMOTE, finished)):
            if not due or not held or partition in self._cut:
                continue
            if self.permissions.is_allowed(partition, kind):
                self._delete_in_batches(due, kind, held)
            elif partition not in self.due.whole_partitions:
                self._fail(partition, _forbidden(partition, len(due)))
        return bool(held)

    def _without_last_copies(
        self,
        unfinished: list[RemoteLogSegmentMetadata],
        lease: Lease,
        listed: Sequence[ListedObject],
    ) -> list[RemoteLogSegmentMetadata]:
        storage = as_listable(self.context.storage)
        if storage is None:
            return unfinished
        check = OrphanCheck(self.context.segments, storage, self.context.local_log)
        with kept_alive(self.context.leases, [lease], self._lease_duration):
            kept = check.why_kept(lease.topic_id_partition, unfinished, listed)
        return self._without(kept, unfinished)

    def _finished_due(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Return what is due of once-visible segments and no only copy; nothing if one has a mark in the future."""
        finished = self.due.of_partition(partition)[1]
        try:
            self.clocks.ensure_not_ahead(partition, finished)
        except DeletionRefusedError as error:
            self._fail(partition, error)
            return []
        return self._without(self.due.only_copies(partition, finished), finished)

    def _without(
        self, kept: Mapping[str, str], due: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Return `due` without the `kept` ones, which are listed as failed with the reason."""
        if not kept:
            return list(due)
        self._note(due, kept)
        return [segment for segment in due if segment.segment_id.id not in kept]


def _forbidden(partition: TopicIdPartition, segments: int) -> str:
    return (
        f"{segments} segments of it are marked, but deletion is no longer allowed: they stay in the store, and "
        "no reader gets them; 'tiered-storage topics allow-deletion "
        f"{partition.topic} --only remote' allows it"
    )
