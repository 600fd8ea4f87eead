"""The rules of every change, for all metadata stores.

A change needs the newest lease of its partition; a segment goes along its life cycle; a lineage rises. The contract
suites hold every implementation against these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, zip_longest

from tiered_storage.clock import as_date
from tiered_storage.errors import ConfigurationError, InvalidTransitionError, LeaseHeldError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Outcome
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

GIVEN_BACK = 0
"""When a lease expires (ms) that was released."""


def check_lease_of(partition: TopicIdPartition, lease: Lease) -> None:
    """Raise ConfigurationError if `lease` is of another partition."""
    if lease.topic_id_partition != partition:
        raise ConfigurationError(
            f"{partition}: cannot be changed under a lease of {lease.topic_id_partition}: pass its own"
        )


def why_lost(lease: Lease, newest: Mapping[TopicIdPartition, Lease]) -> LeaseLostError | None:
    """Return why nothing may be changed under `lease`; None if it is the newest, even if it has expired.

    Metadata from a backup grant the same numbers again, to other owners.
    """
    holder = newest.get(lease.topic_id_partition)
    if holder is None or holder.fencing_number < lease.fencing_number:
        given = 0 if holder is None else holder.fencing_number
        return LeaseLostError(
            f"{lease.topic_id_partition}: lease {lease.fencing_number} of {lease.owner} was never granted by this "
            f"metadata store (its newest is {given}): it was rebuilt or restored meanwhile; start the run again"
        )
    if (holder.fencing_number, holder.owner) != (lease.fencing_number, lease.owner):
        return LeaseLostError(
            f"{lease.topic_id_partition}: lease {lease.fencing_number} of {lease.owner} was taken over by "
            f"{holder.owner} (lease {holder.fencing_number}): this attempt must stop, the other one does the work"
        )
    return None


def why_over(lease: Lease, newest: Mapping[TopicIdPartition, Lease]) -> LeaseLostError | None:
    """Return why a heartbeat of `lease`, the newest one of its partition, is refused; None if it was not released."""
    if newest[lease.topic_id_partition].expires_at != GIVEN_BACK:
        return None
    return LeaseLostError(
        f"{lease.topic_id_partition}: lease {lease.fencing_number} of {lease.owner} was released: acquire a new one"
    )


def held_error(holder: Lease) -> LeaseHeldError:
    """Return the error for a request for a lease that `holder` has."""
    return LeaseHeldError(
        f"{holder.topic_id_partition}: {holder.owner} works on it until {as_date(holder.expires_at)} or longer: "
        "wait for it to end, or for its lease to expire; if it no longer runs, 'tiered-storage leases end' ends its "
        "lease"
    )


def expiry(now: int, duration_ms: int) -> int:
    """Return when a lease expires (ms). Raises ConfigurationError for a duration of 0 ms or less."""
    if duration_ms <= 0:
        raise ConfigurationError(f"a lease of {duration_ms} ms is invalid: give it more than 0 ms")
    return now + duration_ms


def check_addition(segment: RemoteLogSegmentMetadata, lease: Lease) -> None:
    """Raise ConfigurationError for a lease of another partition or number, and for impossible offsets."""
    check_lease_of(segment.topic_id_partition, lease)
    if segment.fencing_number != lease.fencing_number:
        raise ConfigurationError(
            f"{segment.segment_id}: has fencing number {segment.fencing_number}, and begins under lease "
            f"{lease.fencing_number}: give it the number of its lease"
        )
    if not 0 <= segment.start_offset <= segment.end_offset:
        raise ConfigurationError(
            f"{segment.segment_id}: offsets {segment.start_offset} to {segment.end_offset} are invalid: the start must "
            "be 0 or more, and the end, inclusive, not before it"
        )


def why_not_added(
    segment: RemoteLogSegmentMetadata, known: RemoteLogSegmentMetadata | None
) -> InvalidTransitionError | None:
    """Return why `segment` is not added; `known` is what has its id already, None if nothing has."""
    if segment.state is not SegmentState.COPY_SEGMENT_STARTED:
        return InvalidTransitionError(
            f"{segment.segment_id}: begins as COPY_SEGMENT_STARTED, and not as {segment.state.name}"
        )
    if known is not None and known != segment:
        return InvalidTransitionError(
            f"{segment.segment_id}: is known already, as {known.state.name} of offsets {known.start_offset} to "
            f"{known.end_offset}: every attempt to copy takes a new id"
        )
    return None


def why_deleted(
    segment: RemoteLogSegmentMetadata, known: RemoteLogSegmentMetadata | None, deleted: Collection[TopicIdPartition]
) -> InvalidTransitionError | None:
    """Return why nothing new is added to a partition; `deleted` are those that are deleted as a whole, or were."""
    if known is not None or segment.topic_id_partition not in deleted:
        return None
    return InvalidTransitionError(
        f"{segment.segment_id}: everything remote of {segment.topic_id_partition} was marked for deletion, or is "
        "deleted: this incarnation of the topic takes no more segments"
    )


def stepped(known: RemoteLogSegmentMetadata | None, update: RemoteLogSegmentMetadataUpdate, lease: Lease) -> Outcome:
    """Return the segment after `update`, `known` itself if that repeats its state, or the error that refuses it."""
    if known is None:
        return InvalidTransitionError(
            f"{update.segment_id}: is not known and cannot become {update.state.name}: its copy was never begun here"
        )
    if known.state is update.state:
        return known
    finishes = (known.state, update.state) == (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED)
    if finishes and known.fencing_number != lease.fencing_number:
        return LeaseLostError(
            f"{update.segment_id}: its copy began under lease {known.fencing_number} and cannot be finished under "
            f"lease {lease.fencing_number}: mark it for deletion; the next run copies the segment again"
        )
    try:
        return known.updated(update)
    except InvalidTransitionError as refused:
        return refused


def offsets_at(segment: RemoteLogSegmentMetadata, leader_epoch: int) -> range:
    """Return the offsets that `segment` holds at `leader_epoch`."""
    for entry, following in zip_longest(segment.leader_epochs, segment.leader_epochs[1:]):
        if entry.epoch == leader_epoch:
            end = segment.end_offset + 1 if following is None else following.start_offset
            return range(max(entry.start_offset, segment.start_offset), min(end, segment.end_offset + 1))
    return range(0)


def check_lineage(partition: TopicIdPartition, lineage: Sequence[EpochEntry]) -> None:
    """Raise ConfigurationError if an epoch does not rise or a start offset falls."""
    for entry, following in pairwise(lineage):
        if following.epoch <= entry.epoch or following.start_offset < entry.start_offset:
            raise ConfigurationError(f"{partition}: {following} after {entry} is not a rising lineage")


def check_deletion(known: PartitionState, metadata: RemotePartitionDeleteMetadata) -> None:
    """Raise InvalidTransitionError unless the deletion of a partition in the state `known` may take this step."""
    before = known.delete_state
    if not (metadata.state is PartitionDeleteState.MARKED if before is None else before.may_become(metadata.state)):
        was = "is not being deleted" if before is None else f"is {before.name} for deletion"
        raise InvalidTransitionError(f"{metadata.topic_id_partition} {was} and cannot become {metadata.state.name}")
