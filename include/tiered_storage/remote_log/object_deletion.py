"""The deletion of what was marked: objects go in batches, and then DELETE_SEGMENT_FINISHED is written.

Between two batches it is asked anew whether anything may be deleted, and the lease is prolonged. A deletion that fails
stays in DELETE_SEGMENT_STARTED, stands on the list of failed deletions, and is tried again by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tiered_storage.clock import Clock
from tiered_storage.errors import (
    DeletionRefusedError,
    LeaseHeldError,
    LeaseLostError,
    OutdatedMetadataError,
    RemoteMetadataError,
    RemoteStorageError,
    TieredStorageError,
)
from tiered_storage.remote_log.copy_plan import Finding, finding_of
from tiered_storage.remote_log.copy_run import abandon_unfinished
from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.leftover_check import LeftoverCheck
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.metadata.safety import Safety
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.segment_source import PartitionLog
from tiered_storage.remote_log.storage import RemoteStorageManager, delete_singly
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager
from tiered_storage.remote_log.store_states import ensure_may_be_leased, ensure_not_outdated
from tiered_storage.remote_log.topic_deletion import PartitionDeletion

_UNSETTLED = {SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED}


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """The remote segments whose objects are gone, what failed, and the partitions that somebody else works on.

    `stopped` says why the run ended before its end: a person stopped all deletions meanwhile, or the metadata turned
    out older than the store.
    """

    deleted: tuple[RemoteLogSegmentMetadata, ...]
    failures: tuple[Finding, ...]
    left: tuple[Finding, ...]
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """Deletes the objects of marked segments, `batch_segments` at a time.

    Where the metadata turn out older than the store, nothing more goes. A copy that never finished waits
    `grace_ms` from when it was marked: its worker may still be writing; and one that may be the last copy of its
    offsets stays (LeftoverCheck). What readers could see once stays for as long as `gate` refuses it: deletion may have
    been forbidden since it was marked.
    """

    metadata: RemoteLogMetadataManager
    leases: Leases
    safety: Safety
    storage: RemoteStorageManager
    gate: DeletionGate
    clock: Clock
    owner: str
    lease_duration_ms: int
    grace_ms: int
    batch_segments: int
    going: Collection[TopicIdPartition] = frozenset()
    """The partitions that are to go as a whole."""
    local: Callable[[TopicIdPartition], PartitionLog | None] = lambda _: None
    """Returns the local log of a partition; None where it is not in sight."""

    def delete_marked(self, partitions: Iterable[TopicIdPartition]) -> DeletionReport:
        """Delete what is marked in `partitions`, also what earlier runs could not.

        Of those that are to go as a whole, all goes that is allowed to.
        Raises DeletionRefusedError where a person stopped all deletions before the first of them. Where that happens
        later, the report tells what was done until then; the lease is given back.
        """
        found = _Found()
        self.gate.ensure_running()
        for partition in partitions:
            try:
                self._delete_in(partition, found)
            except DeletionRefusedError as error:
                stopped = self.gate.why_stopped()
                if stopped is not None:
                    return found.report(stopped)
                found.failures.append(Finding(str(partition), str(error)))
            except OutdatedMetadataError as error:
                # They are an old backup: nobody knows what else was copied or decided since.
                return found.report(str(error))
        return found.report()

    def has_work(self, partition: TopicIdPartition) -> bool:
        """Whether anything of `partition` is marked, or was begun and may have to be."""
        return self._goes(partition) or bool(self._states_in(partition) & _UNSETTLED)

    def _goes(self, partition: TopicIdPartition) -> bool:
        return partition in self.going and self.gate.is_allowed(partition, DeletionKind.REMOTE)

    def _states_in(self, partition: TopicIdPartition) -> set[SegmentState]:
        return {segment.state for segment in self.metadata.list_remote_log_segments(partition)}

    def _delete_in(self, partition: TopicIdPartition, found: _Found) -> None:
        states = self._states_in(partition)
        goes = self._goes(partition)
        if not goes and not states & _UNSETTLED:
            return
        try:
            ensure_may_be_leased(partition, self.storage, self.leases)
            lease = self.leases.acquire(partition, self.owner, self.lease_duration_ms)
        except RemoteStorageError as error:
            found.failures.append(Finding(str(partition), str(error)))
            return
        except LeaseHeldError as error:
            # Copies under way have a holder, and nothing of theirs waits for us.
            if goes or SegmentState.DELETE_SEGMENT_STARTED in states:
                found.left.append(finding_of(partition, error))
            return
        try:
            listed = ensure_not_outdated(partition, self.storage, self.metadata, self.leases)
            abandon_unfinished(partition, self.metadata, lease, self.clock)
            if goes:
                self.gate.ensure(partition, DeletionKind.REMOTE)
                self._as_a_whole.start(lease)
            self._delete_under(lease, found, None if goes else listed)
            if goes:
                self._finish(lease, found)
        except LeaseLostError as error:
            found.left.append(Finding(str(partition), str(error)))
        except RemoteStorageError as error:
            found.failures.append(Finding(str(partition), str(error)))
        finally:
            self.leases.release(lease)

    def _finish(self, lease: Lease, found: _Found) -> None:
        partition = lease.topic_id_partition
        self.gate.ensure(partition, DeletionKind.REMOTE)
        self.leases.heartbeat(lease, self.lease_duration_ms)
        remains = self._as_a_whole.finish(lease)
        if remains is not None:
            found.failures.append(Finding(str(partition), remains))

    @property
    def _as_a_whole(self) -> PartitionDeletion:
        return PartitionDeletion(self.metadata, self.leases, self.storage, self.clock, self.grace_ms)

    def _delete_under(self, lease: Lease, found: _Found, listed: Sequence[ListedObject] | None) -> None:
        """Delete what is due; of a partition that stays, of which the store has `listed`, no last copy by mistake."""
        unfinished, finished = self._due(lease.topic_id_partition)
        if unfinished and listed is not None:
            unfinished = self._without_last_copies(unfinished, lease.topic_id_partition, listed, found)
        for kind, due in ((DeletionKind.LEFTOVER, unfinished), (DeletionKind.REMOTE, finished)):
            if due and not self.gate.is_allowed(lease.topic_id_partition, kind):
                continue
            for first in range(0, len(due), self.batch_segments):
                self.gate.ensure(lease.topic_id_partition, kind)
                self.leases.heartbeat(lease, self.lease_duration_ms)
                self._delete_batch(due[first : first + self.batch_segments], lease, found)

    def _without_last_copies(
        self,
        unfinished: list[RemoteLogSegmentMetadata],
        partition: TopicIdPartition,
        listed: Sequence[ListedObject],
        found: _Found,
    ) -> list[RemoteLogSegmentMetadata]:
        if not isinstance(self.storage, ObjectRemoteStorageManager):
            return unfinished
        kept = LeftoverCheck(self.metadata, self.storage, self.local).why_kept(partition, unfinished, listed)
        self._note([segment for segment in unfinished if segment.segment_id.id in kept], kept, found)
        return [segment for segment in unfinished if segment.segment_id.id not in kept]

    def _note(self, stuck: Sequence[RemoteLogSegmentMetadata], reasons: Mapping[str, object], found: _Found) -> None:
        """Put `stuck` on the list of failed deletions, with the reason of each by its segment id."""
        self.safety.note_failures({one.segment_id: str(reasons[one.segment_id.id]) for one in stuck}, self.clock())
        for segment in stuck:
            message = f"{segment.segment_id}: {reasons[segment.segment_id.id]}"
            found.failures.append(Finding(str(segment.topic_id_partition), message))

    def _due(
        self, partition: TopicIdPartition
    ) -> tuple[list[RemoteLogSegmentMetadata], list[RemoteLogSegmentMetadata]]:
        """Return what is due of copies that never finished, and of those that readers could see once."""
        unfinished, finished = [], []
        for segment in self.metadata.list_remote_log_segments(partition):
            if segment.state is not SegmentState.DELETE_SEGMENT_STARTED:
                continue
            if segment.custom_metadata is not None:
                finished.append(segment)
            elif segment.event_timestamp <= self.clock() - self.grace_ms:
                unfinished.append(segment)
        return unfinished, finished

    def _delete_batch(self, batch: Sequence[RemoteLogSegmentMetadata], lease: Lease, found: _Found) -> None:
        failed = _delete_objects(batch, self.storage)
        now = self.clock()
        gone = [segment for segment in batch if segment.segment_id.id not in failed]
        steps = [
            (RemoteLogSegmentMetadataUpdate(one.segment_id, SegmentState.DELETE_SEGMENT_FINISHED, now), lease)
            for one in gone
        ]
        lost: RemoteMetadataError | None = None
        for outcome in self.metadata.update_remote_log_segments(steps):
            if isinstance(outcome, RemoteLogSegmentMetadata):
                found.deleted.append(outcome)
            else:
                lost = outcome
        stuck = [segment for segment in batch if segment.segment_id.id in failed]
        self._note(stuck, failed, found)
        self.safety.forget_failures(segment.segment_id for segment in gone)
        if lost is not None:
            raise lost


@dataclass(slots=True)
class _Found:
    """What a run has come to until now."""

    deleted: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def report(self, stopped: str | None = None) -> DeletionReport:
        return DeletionReport(tuple(self.deleted), tuple(self.failures), tuple(self.left), stopped)


def _delete_objects(
    batch: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> Mapping[str, TieredStorageError]:
    if isinstance(storage, ObjectRemoteStorageManager):
        return storage.delete_segments(batch)
    return delete_singly(storage, batch)
