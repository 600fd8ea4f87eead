"""What a metadata store has beside its segments, for a cluster that Remote Log only reads: nothing.

There are no decisions, stops or generations. A call that would change something raises ConfigurationError; one
that would only take a note keeps none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tiered_storage.clock import Clock
from tiered_storage.errors import LeaseHeldError, LeaseLostError
from tiered_storage.remote_log.metadata.life_cycle import GIVEN_BACK, expiry, held_error, why_lost, why_over
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, Generation, RenewedAt
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import GrantedLeases, RefusedLease, Topic
from tiered_storage.remote_log.metadata.safety import AuditResult, DeletionFailure, Stop
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.native.read_only_storage import refuse
from tiered_storage.remote_log.selection import EVERYTHING, Selection

EXPORT_LEASE = "export-"
"""How the made-up topic ids of exports' leases begin; no topic has such an id."""


class NativeLeases:
    """See Leases: none on the cluster's partitions; those on the folders of exports are held in this process.

    An export is written elsewhere, so that it needs one. Other processes do not see it: let one process at a time
    export a table. Numbers are times (ms), so that they rise from process to process.
    """

    def __init__(self, clock: Clock) -> None:
        """Hold nothing yet."""
        self._clock = clock
        self._newest: dict[TopicIdPartition, Lease] = {}
        self._lock = threading.Lock()

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        """See Leases. Raises ConfigurationError for a partition of the cluster."""
        if not partition.topic_id.startswith(EXPORT_LEASE):
            refuse(f"{partition} cannot be changed")
        now = self._clock()
        with self._lock:
            holder = self._newest.get(partition)
            if holder is not None and holder.owner != owner and holder.expires_at > now:
                raise held_error(holder)
            number = now if holder is None else max(now, holder.fencing_number + 1)
            lease = Lease(partition, owner, number, expiry(now, duration_ms))
            self._newest[partition] = lease
        return lease

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        """See Leases. Raises as `acquire`."""
        granted, refused = list[Lease](), list[RefusedLease]()
        for partition in sorted(set(partitions)):
            try:
                granted.append(self.acquire(partition, owner, duration_ms))
            except LeaseHeldError as error:
                refused.append(RefusedLease(partition, error))
        return GrantedLeases(tuple(granted), tuple(refused))

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        """See Leases."""
        with self._lock:
            lost = why_lost(lease, self._newest) or why_over(lease, self._newest)
            if lost is not None:
                raise lost
            renewed = replace(lease, expires_at=expiry(self._clock(), duration_ms))
            self._newest[lease.topic_id_partition] = renewed
        return renewed

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        """See Leases."""
        granted, refused = list[Lease](), list[RefusedLease]()
        for lease in held:
            try:
                granted.append(self.heartbeat(lease, duration_ms))
            except LeaseLostError as error:
                refused.append(RefusedLease(lease.topic_id_partition, error))
        return GrantedLeases(tuple(granted), tuple(refused))

    def check(self, lease: Lease) -> None:
        """See Leases."""
        with self._lock:
            lost = why_lost(lease, self._newest)
        if lost is not None:
            raise lost

    def fencing_number(self, partition: TopicIdPartition) -> int:
        """See Leases."""
        with self._lock:
            newest = self._newest.get(partition)
        return 0 if newest is None else newest.fencing_number

    def release(self, lease: Lease) -> None:
        """See Leases."""
        with self._lock:
            if why_lost(lease, self._newest) is None:
                self._newest[lease.topic_id_partition] = replace(lease, expires_at=GIVEN_BACK)

    def release_many(self, held: Sequence[Lease]) -> None:
        """See Leases."""
        for lease in held:
            self.release(lease)

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        """Raise ConfigurationError if there are any."""
        for partition in numbers:
            refuse(f"{partition} cannot be changed")

    def held(self) -> Sequence[Lease]:
        """Return the leases of this process."""
        now = self._clock()
        with self._lock:
            running = [lease for lease in self._newest.values() if lease.expires_at > now]
        return sorted(running, key=lambda lease: -lease.expires_at)

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:  # noqa: ARG002
        """Return None: no other process sees the leases of this one."""
        return None


class NativeTopics:
    """See Topics: no decision was taken, and none can be."""

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:  # noqa: ARG002
        """Return None."""
        return None

    def put(self, topic: Topic) -> None:
        """Raise ConfigurationError."""
        refuse(f"nothing can be decided about {topic.name}")

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse(f"nothing can be decided about {change(None).name}")

    def named(self, name: str) -> Sequence[Topic]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def list(self) -> Sequence[Topic]:
        """Return nothing."""
        return ()


class NativeSafety:
    """See Safety: nothing here is ever deleted."""

    def stop(self, reason: str, stopped_by: str) -> None:  # noqa: ARG002
        """Raise ConfigurationError: the deletions are Kafka's."""
        refuse("deletions cannot be stopped here")

    def lift(self, lifted_by: str, before: int | None = None) -> None:
        """Do nothing: there is no stop."""

    def stopped(self) -> Stop | None:
        """Return None."""
        return None

    def put_audit_result(self, result: AuditResult) -> None:
        """Keep nothing: no deletion of ours asks for it."""

    def audit_results(self, cluster_id: str, topic_id: str) -> Sequence[AuditResult]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:  # noqa: ARG002
        """Raise ConfigurationError if there are any."""
        for segment_id in errors:
            refuse(f"{segment_id} cannot be deleted here")

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """Do nothing."""

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:  # noqa: ARG002
        """Yield nothing."""
        return iter(())


class NativeIdentity:
    """See MetadataIdentity: that of the cluster, which is bound to no store of ours."""

    def __init__(self, cluster_id: str) -> None:
        """Use the cluster's id."""
        self._cluster_id = cluster_id

    @property
    def metadata_uuid(self) -> str:
        """The cluster's id."""
        return self._cluster_id

    def bound_store_uuid(self) -> str | None:
        """Return None."""
        return None

    def bind_store(self, uuid: str) -> None:
        """Raise ConfigurationError."""
        refuse(f"the object store {uuid} cannot be bound")


class NativeGeneration:
    """See MetadataGeneration: it never changes."""

    def __init__(self, where: str) -> None:
        """Show `where` in messages."""
        self._where = where

    @property
    def where(self) -> str:
        """See MetadataGeneration."""
        return self._where

    def read(self) -> Generation:
        """Return the first."""
        return Generation(0, "")

    def pending(self) -> tuple[str | None, bool]:
        """Return that nothing is pending."""
        return None, False

    def renew(self) -> None:
        """Raise ConfigurationError."""
        refuse("nothing can be decided")

    def confirm(self, published: Generation) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse("nothing can be decided")

    def claim(self, newest_number: int) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse("no store can be taken over")

    def backed_up_at(self) -> int | None:
        """Return None."""
        return None

    def record_backup(self, now: int) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse("no backup can be recorded")


class NativeClockReadings:
    """See ClockReadings: none was taken, and none is kept."""

    def read(self, boot_id: str) -> ClockReading | None:  # noqa: ARG002
        """Return None."""
        return None

    def latest(self) -> ClockReading | None:
        """Return None."""
        return None

    def latest_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:  # noqa: ARG002
        """Return None."""
        return None

    def begin(self, renewed_at: RenewedAt) -> None:
        """Keep nothing."""

    def record(self, reading: ClockReading) -> None:
        """Keep nothing."""

    def forget_later_than(self, wall: int) -> None:
        """Do nothing."""
