"""Delete the local segments of a plan, step by step, after checking what holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import (
    DeletionRefusedError,
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.forked_log import ensure_same_batches
from tiered_storage.remote_log.copy.sent_records import is_same_file
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.lineage import merged
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, listed_partition, write_partition_state
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, finding_of
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.retention.local.expired_segments import ensure_sent
from tiered_storage.remote_log.retention.local.plan import STEP_BYTES, LocalRetentionPlan
from tiered_storage.remote_log.retention.local.planning import LocalRetentionPlanner
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_present, whole_pieces
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import share_offsets
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, as_listable
from tiered_storage.remote_log.tiering_policy import decide


@dataclass(frozen=True, slots=True)
class LocalRetentionReport:
    """What was deleted, by partition, and the failures. `stopped` is why the run ended early."""

    trimmed: tuple[LocalRetentionPlan, ...]
    failures: tuple[Finding, ...]
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class LocalRetentionEnforcement:
    """Deletes the local segments that plans list, after it checked their remote copies.

    Before it locks the directory, as a broker may want to start there, or asks the brokers to delete:

    - every object that must hold the deleted records is listed with its size, and read back whole with
      `remote.log.verify.before.trim`;
    - each local batch is compared with the remote one, or with the checksum of what was deleted; the records of a
      running cluster are not read again: they are those of the leader epochs that the remote ones have (KIP-101);
    - what the local log is about to forget of the lineage is recorded.

    Under the lock, or right before the request, the partition is planned again, the permissions are asked, and what
    both plans have in common is deleted. A large partition is trimmed in steps, each checked right before its deletion
    (see trim_steps). A finished step stays done if a later one fails.

    Only the recording of a lineage takes a lease: a copy may hold one for hours, just when disks fill up, and only
    finished copies count here.
    """

    context: RemoteLogContext
    permissions: DeletionPermissions
    clocks: ClockAgreement
    limit: RateLimit
    """The limit on the rate at which segments are read back whole."""
    on_moved: OnMoved = unreported
    """Is called for each checked segment: a remote one that holds what is deleted, and a deleted local one."""

    def enforce(self, plans: Sequence[LocalRetentionPlan]) -> LocalRetentionReport:
        """Delete what `plans` list, as far as it is still due.

        A failure in one partition affects no other, unless its metadata are older than the store; the report lists it.
        Repeated runs change nothing. Raises DeletionRefusedError if all deletions are stopped before the first; a
        later stop ends the run, and the report says so.
        """
        self.permissions.ensure_running()
        trimmed: list[LocalRetentionPlan] = []
        failures: list[Finding] = []
        for plan in plans:
            if not plan.segments:
                continue
            stopped = self.permissions.why_stopped()
            if stopped is not None:
                return LocalRetentionReport(tuple(trimmed), tuple(failures), stopped)
            reached = plan.segments[0].base_offset
            try:
                for part in plan.steps(STEP_BYTES):
                    reached = self._trim(part)
                    if reached < part.new_local_start:
                        break
            except OutdatedMetadataError as error:
                # They are an old backup: other copies and decisions since then are unknown.
                done = plan.up_to(reached)
                trimmed += [done] if done.segments else []
                return LocalRetentionReport(tuple(trimmed), tuple(failures), str(error))
            except (TieredStorageError, OSError) as error:
                failures.append(finding_of(plan.topic_id_partition, error))
            done = plan.up_to(reached)
            if done.segments:
                trimmed.append(done)
        return LocalRetentionReport(tuple(trimmed), tuple(failures))

    def _trim(self, plan: LocalRetentionPlan) -> int:
        """Delete the segments of `plan`, one step; return the new log start."""
        partition = plan.topic_id_partition
        self.permissions.ensure(partition, DeletionKind.LOCAL)
        self._ensure_held(plan)
        self._keep_lineage(plan)

        def still_due() -> int:
            current = self._replan(plan)
            self.permissions.ensure(partition, DeletionKind.LOCAL)
            return plan.segments[0].base_offset if current is None else plan.start_in(current)

        return self.context.source.local_trim.trim(partition, plan.segments, plan.new_local_start, still_due)

    def _keep_lineage(self, plan: LocalRetentionPlan) -> None:
        """Record the lineage that the local log is about to forget. Raises LeaseHeldError: then the next run trims."""
        partition = plan.topic_id_partition
        known = self.context.segments.partition_state(partition).lineage
        if merged(known, plan.lineage) == known:
            return
        leases = self.context.leases
        lease = leases.acquire(partition, f"local retention {random_uuid()}", self.context.settings.lease_duration_ms)
        try:
            # Not earlier: a previous holder may have changed any of it.
            state = self.context.segments.partition_state(partition)
            lineage = merged(state.lineage, plan.lineage)
            segments = self.context.segments.list_remote_log_segments(partition)
            stored = StoredState.of(replace(state, lineage=lineage), segments)
            write_partition_state(self.context.storage, self.context.leases, lease, stored, self.context.clock())
            self.context.segments.put_lineage(partition, lineage, lease)
        finally:
            leases.release(lease)

    def _replan(self, plan: LocalRetentionPlan) -> LocalRetentionPlan | None:
        """Plan again for the partition of `plan`, while its log directory is locked, or before its brokers delete.

        Raises DeletionRefusedError for a possible last copy if remote deletion is no longer allowed.
        """
        self._refuse_if_last_copy(plan)
        log = self.context.source.while_trimming(plan.segments[0]).partition(plan.topic_id_partition)
        if log is None:
            return None
        decision = decide(log, self.context.topics, self.context.settings)
        if not decision.trims:
            return None
        # The clock of the plan may have been ahead.
        now = min(plan.now, self.context.clock())
        segments = self.context.segments
        self.clocks.ensure_not_ahead(
            plan.topic_id_partition, segments.list_remote_log_segments(plan.topic_id_partition)
        )
        return LocalRetentionPlanner(self.context, self.permissions).of(log, decision.settings, now)

    def _refuse_if_last_copy(self, plan: LocalRetentionPlan) -> None:
        topic = self.context.decided_topic(plan.topic_id_partition)
        if not plan.is_held_whole and not topic.remote_deletion_allowed:
            raise DeletionRefusedError(
                f"{plan.topic_id_partition}: remote deletion is no longer allowed since this was planned, and the "
                "segments below the global log start may be the last copy: nothing of it was deleted"
            )

    def _ensure_held(self, plan: LocalRetentionPlan) -> None:
        verifies, storage = self.context.settings.remote_log_verify_before_trim, self.context.storage
        listed = listed_partition(plan.topic_id_partition, storage, self.context.segments)
        sizes = {found.name: found.size for found in listed}
        for segment in plan.held_by:
            if (listable := as_listable(storage)) is not None:
                _ensure_listed(segment, sizes, listable)
            if not verifies:
                ensure_present(segment, storage)
                self.on_moved(segment.size, 1)
        if not self.context.source.shows_segments:
            self._ensure_whole(plan, verifies=verifies)
            return
        compared = [one for one in plan.segments if verifies or not is_same_file(one, plan.held_by, storage)]
        holders = [one for one in plan.held_by if any(share_offsets(one, local) for local in compared)]
        read = self._read_back if verifies else storage.fetch_log_segment
        ensure_same_batches(plan.topic_id_partition, compared, holders, plan.lineage, read)
        self._ensure_ended(plan)
        for local in plan.segments:
            self.on_moved(local.size, 1)

    def _ensure_whole(self, plan: LocalRetentionPlan, *, verifies: bool) -> None:
        """Read back what holds the segments of a running cluster: leader epochs say that its records are the same."""
        for segment in plan.held_by if verifies else ():
            for _ in self._read_back(segment):
                pass
        for local in plan.segments:
            self.on_moved(local.size, 1)

    def _ensure_ended(self, plan: LocalRetentionPlan) -> None:
        """Ensure that what nothing remote holds may be deleted without it; see expired_segments.py."""
        expired = [
            one for one in plan.segments if one.base_offset < plan.held_from and open_segment(one.location).exists()
        ]
        unheld = [(one, min(plan.held_from, (one.end_offset or 0) + 1)) for one in expired]
        needed = [(one.base_offset, below - 1) for one, below in unheld if not plan.total.expires(one, below)]
        if needed:
            ensure_sent(plan.topic_id_partition, expired, needed, self.context.segments)

    def _read_back(self, segment: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        yield from whole_pieces(segment, self.context.storage, self.limit.spend)
        self.on_moved(segment.size, 1)


def _ensure_listed(segment: RemoteLogSegmentMetadata, sizes: Mapping[str, int], storage: ListableStorage) -> None:
    for name, size in storage.expected_objects(segment).items():
        if name not in sizes:
            raise RemoteObjectNotFoundError(
                f"{name}: the store does not list it, and it must hold what would be trimmed"
            )
        if sizes[name] != size:
            raise RemoteObjectCorruptError(f"{name}: has {sizes[name]} bytes in the store, {size} were sent")
