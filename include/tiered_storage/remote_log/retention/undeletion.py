"""Undo marked deletions while their objects still exist: for `remote.log.deletion.grace.ms`.

Segments become visible again, the global log start returns to where it was before, and the deletion of a whole
partition is cancelled. A segment stays marked if other finished segments hold its offsets and every readable batch of
it: it was a second or a damaged copy. So does one of which the store lacks an object; the global log start then returns
only to the segments after it.

A topic that its running cluster replaced loses the right to remote deletion: its grace time is over, so the next expire
would mark it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.sent_records import why_other_records
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.enabling.absent_topics import REPLACED_SINCE
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, listed_partition, write_partition_state
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
    finding_of,
)
from tiered_storage.remote_log.retention.permission.object_checks import ensure_present
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.storage.listable_storage import ListedObject, as_listable


@dataclass(frozen=True, slots=True)
class Undeletion:
    """The part of a deletion to undo in one partition: its segments, and our new log start (inclusive).

    `second_copies` segments stay marked, since others hold their offsets; `lost` ones since the store lacks them. With
    `is_replaced`, the running cluster created the topic again, and remote deletion of the old one is forbidden now.
    """

    topic_id_partition: TopicIdPartition
    log_start_offset: int
    segments: tuple[RemoteLogSegmentMetadata, ...]
    second_copies: int = 0
    lost: tuple[Finding, ...] = ()
    is_replaced: bool = False

    @property
    def kept(self) -> str:
        """A notice for the user about a replaced topic."""
        partition = self.topic_id_partition
        return (
            f"{partition.topic} ({partition.topic_id}) was created again at its brokers: remote deletion of the old "
            "one is forbidden now, so that expire does not mark it again; 'tiered-storage topics allow-deletion "
            f"{partition.topic} --only remote' allows it"
        )

    @property
    def size(self) -> int:
        """The size in bytes of what becomes visible again."""
        return sum(segment.size for segment in self.segments)

    def changes(self, state: PartitionState) -> bool:
        """Return whether there is anything to undo in a partition with `state`."""
        is_moved = self.log_start_offset < (state.log_start_offset or 0)
        return bool(self.segments) or is_moved or state.delete_state is not None


def undelete(
    topic: str,
    partitions: frozenset[int] | None,
    context: RemoteLogContext,
    owner: str,
    *,
    topic_id: str | None = None,
    dry_run: bool = False,
) -> tuple[list[Undeletion], list[Finding]]:
    """Undo the deletion of a topic, by its exact name, in `partitions` (None: all), of all its incarnations or of one.

    Returns what was undone, and the failures with their reasons; a failure in one partition affects no other. A dry run
    changes nothing. Raises ConfigurationError if nothing of the topic is marked, StoreMismatchError and
    OutdatedMetadataError.
    """
    if dry_run:
        context.guard.ensure_same()
    else:
        # expire deletes on a full disk, so undelete must work there too.
        context.spend_reserves()
        context.guard.renew("an undelete")
    taken_back: list[Undeletion] = []
    left: list[Finding] = []
    for partition, state in sorted(context.segments.partition_states().items()):
        is_other = partition.topic != topic or topic_id not in {None, partition.topic_id}
        if is_other or (partitions is not None and partition.partition not in partitions):
            continue
        if not _may_have_something(partition, state, context):
            continue
        try:
            found = _plan(partition, context) if dry_run else _undelete(partition, context, owner)
        except (TieredStorageError, OSError) as error:
            left.append(finding_of(partition, error))
            continue
        taken_back += [found] if found.changes(state) else []
        left += found.lost
    if not taken_back and not left:
        raise ConfigurationError(
            f"topic {topic}: no marked segment of it still exists, so nothing was brought back; 'tiered-storage topics "
            f"list' shows the topics, 'tiered-storage segments --topics {topic}' its segments"
        )
    return taken_back, left


def _may_have_something(partition: TopicIdPartition, state: PartitionState, context: RemoteLogContext) -> bool:
    if state.delete_state is PartitionDeleteState.FINISHED:
        return False
    if state.delete_state is not None or state.log_start_before(_grace_began(context)) < (state.log_start_offset or 0):
        return True
    return SegmentState.DELETE_SEGMENT_STARTED in context.segments.count_remote_log_segments(partition)


def _grace_began(context: RemoteLogContext) -> int:
    return context.clock() - context.settings.remote_log_deletion_grace_ms + 1


def _undelete(partition: TopicIdPartition, context: RemoteLogContext, owner: str) -> Undeletion:
    duration = context.settings.lease_duration_ms
    lease = context.leases.acquire(partition, owner, duration)
    try:
        with kept_alive(context.leases, [lease], duration):
            found = _plan(partition, context)
            if found.changes(context.segments.partition_state(partition)):
                if found.is_replaced:
                    _forbid_deletion(partition, context)
                _write(found, lease, context)
    finally:
        context.leases.release(lease)
    return found


def _forbid_deletion(partition: TopicIdPartition, context: RemoteLogContext) -> None:
    start = context.decided_topic(partition)

    def forbidden(known: Topic | None) -> Topic:
        return replace(known or start, remote_deletion_allowed=False)

    context.topics.change(partition.cluster_id, partition.topic_id, forbidden)


def _write(found: Undeletion, lease: Lease, context: RemoteLogContext) -> None:
    """Write everything: the store first, so that rebuilt metadata agree."""
    partition, now = found.topic_id_partition, context.clock()
    state = context.segments.partition_state(partition)
    returned = {segment.segment_id for segment in found.segments}
    others = [one for one in context.segments.list_remote_log_segments(partition) if one.segment_id not in returned]
    stored = StoredState.of(state.undeleted(found.log_start_offset), others)
    write_partition_state(context.storage, context.leases, lease, stored, now)
    context.segments.undelete(partition, [*returned], found.log_start_offset, now, lease)
    context.safety.forget_failures(returned)


def _plan(partition: TopicIdPartition, context: RemoteLogContext) -> Undeletion:
    """Return what can be undone in `partition` now.

    Raises OutdatedMetadataError, LineageContradictedError, and what the store raises.
    """
    listed = listed_partition(partition, context.storage)
    state = context.segments.partition_state(partition)
    segments = list(context.segments.list_remote_log_segments(partition))
    local = context.local_log(partition)
    lineage = trusted_lineage(state.lineage, local)
    read = finished(segments)
    lost: list[Finding] = []
    chosen: list[RemoteLogSegmentMetadata] = []
    second_copies, now, marked_from = 0, context.clock(), _grace_began(context)
    # Latest mark first: of a damaged segment and its replacement, the replacement was marked later.
    for segment in sorted((one for one in segments if one.is_marked), key=lambda one: -one.event_timestamp):
        held_by = Coverage.of([*read, *chosen], lineage)
        is_held = held_by.holding(segment.start_offset, segment.end_offset) is not None
        if is_held and why_other_records(segment, held_by, segment.start_offset, lineage, context.storage) is None:
            second_copies += 1
            continue
        try:
            _ensure_there(segment, context, listed)
            chosen.append(segment.undeleted(now))
            marked_from = min(marked_from, segment.event_timestamp)
        except TieredStorageError as error:
            lost.append(finding_of(partition, error))
    wanted = state.log_start_before(marked_from)
    log_start = _first_readable(wanted, state, Coverage.of([*read, *chosen], lineage), local)
    returned = tuple(sorted((one for one in chosen if one.end_offset >= log_start), key=lambda one: one.start_offset))
    is_replaced = REPLACED_SINCE in context.decided_topic(partition).properties
    return Undeletion(partition, log_start, returned, second_copies, tuple(lost), is_replaced)


def _ensure_there(segment: RemoteLogSegmentMetadata, context: RemoteLogContext, listed: Sequence[ListedObject]) -> None:
    """Raise unless the store still has every object of `segment`."""
    if (storage := as_listable(context.storage)) is not None:
        sizes = {found.name: found.size for found in listed}
        for name, size in storage.expected_objects(segment).items():
            if sizes.get(name) != size:
                raise RemoteObjectNotFoundError(
                    f"{storage.place_of(name)}: the store no longer has such an object of {size} bytes, so "
                    f"offsets {segment.start_offset} to {segment.end_offset} cannot be brought back"
                )
    ensure_present(segment, context.storage)


def _first_readable(wanted: int, state: PartitionState, coverage: Coverage, local: PartitionLog | None) -> int:
    """Return the lowest offset, at least `wanted`, from which on everything up to the global log start is readable."""
    log_start = reached = state.log_start_offset or 0
    held = [(covered.start_offset, covered.end_offset) for covered in coverage.ranges]
    if local is None:
        # The offsets after the remote segments may be in a local log that is out of reach.
        held.append((max((end for _, end in held), default=wanted - 1) + 1, log_start))
    else:
        ends = [log_start if segment.end_offset is None else segment.end_offset for segment in local.segments]
        held += [(segment.base_offset, end) for segment, end in zip(local.segments, ends, strict=True)]
    for start, end in sorted(held, reverse=True):
        if start < reached <= end + 1:
            reached = start
    return max(wanted, reached) if wanted < log_start else log_start
