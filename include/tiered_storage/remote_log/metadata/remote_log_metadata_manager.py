"""The borders to the metadata: segments and partitions (KIP-405), topics and leases.

Safety has a border of its own, in safety.py. The docstrings here are the contract; one test suite runs it against
every implementation. All of it is strongly consistent: every later call of every process sees the effect of a call that
has returned.

list_remote_segments, earliest_log_offset and register_partitions are the document's listRemoteSegments,
earliestLogOffset and registering of a partition, over every manager. A manager may answer the last two better than by a
listing: if it has a method of that name, that is called. No manager needs one. The document's cleanupLogUntil deletes;
it is RemoteLogDeletions.plan_cleanup_until.

Source: KIP-405, drafts up to 85, sections RemoteLogMetadataManager and Handle expired remote segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tiered_storage.errors import InvalidTransitionError, LeaseHeldError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

Addition: TypeAlias = tuple[RemoteLogSegmentMetadata, Lease]
Step: TypeAlias = tuple[RemoteLogSegmentMetadataUpdate, Lease]
Outcome: TypeAlias = RemoteLogSegmentMetadata | LeaseLostError | InvalidTransitionError
"""A segment after a change, or the error that refused it."""


def only_accepted(outcomes: Sequence[Outcome]) -> RemoteLogSegmentMetadata:
    """Return the segment after the only change of a call with many. Raises the error that refused it."""
    [outcome] = outcomes
    if not isinstance(outcome, RemoteLogSegmentMetadata):
        raise outcome
    return outcome


LogStart: TypeAlias = tuple[TopicIdPartition, int, Lease]
"""A move of the global log start (inclusive) of a partition, and the lease for it."""

ObservedLineage: TypeAlias = tuple[TopicIdPartition, Sequence[EpochEntry], Lease]
"""The leader epochs to record for a partition, and the lease for it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The decisions on one topic. Every deletion is off until a person allows it.
    `properties` are per-topic settings by Kafka's names, such as local.retention.ms, as text.
    """

    cluster_id: str
    topic_id: str
    name: str
    remote_storage_enable: bool = False
    local_deletion_allowed: bool = False
    remote_deletion_allowed: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """The segments of one partition in one state together: how many, their `size` in bytes, and their offsets.

    `was_finished`: their copies finished once. `start_offset` and `end_offset` (inclusive) are the lowest and the
    highest, `offsets` how many they span in sum, overlaps twice. Timestamps are ms: the latest of a record, and the
    earliest change of a state. `last_epoch` is the highest leader epoch, None if none is known.
    """

    topic_id_partition: TopicIdPartition
    state: SegmentState
    was_finished: bool
    count: int
    size: int
    start_offset: int
    end_offset: int
    offsets: int
    max_timestamp: int
    oldest_event_timestamp: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True)
class RefusedLease:
    """A partition whose lease was not granted, and why."""

    topic_id_partition: TopicIdPartition
    reason: LeaseHeldError | LeaseLostError


@dataclass(frozen=True, slots=True)
class GrantedLeases:
    """The result of a request for many leases; together as many as were requested."""

    granted: tuple[Lease, ...]
    refused: tuple[RefusedLease, ...]


class RemoteLogMetadataManager(Protocol):
    """Keeps the metadata of remote segments and partitions, and checks every change of state against the life cycle.

    All methods raise MetadataUnavailableError (retriable), MetadataCorruptError, or what they name. A call with many
    items handles each in turn, at the cost of a few: the result has each refusal in its place, and a refusal does not
    affect the others. It raises ConfigurationError, before anything is written, for a lease of another partition.
    """

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        """Record a copy that starts (COPY_SEGMENT_STARTED, under `lease`).

        Adding the same again does nothing. Raises LeaseLostError if a newer holder exists, and InvalidTransitionError
        for another state, for a known id with other content, or if the partition is being deleted, or was, as a whole.
        """
        ...

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        """Change a segment's state, atomically with the check of `lease`; return the segment after it.

        A repeated change does nothing. Raises InvalidTransitionError (also for an unknown id), and LeaseLostError if a
        newer holder exists, or if a copy would be finished under another lease than it began under.
        """
        ...

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        """Add many; return, in order, each segment or the error that refused it."""
        ...

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        """Make many changes; return, in order, each segment after it or the error that refused the change."""
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment that holds `offset`, at `leader_epoch` if given.

        Of several, the one whose copy finished first: every reader gets the same one.
        """
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Return the last offset (inclusive) that finished segments hold at `leader_epoch`."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Stream the partition's segments in every state except DELETE_SEGMENT_FINISHED, by start offset."""
        ...

    def list_deleted_segments(
        self, partition: TopicIdPartition, start_offset: int, end_offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Stream the partition's segments in DELETE_SEGMENT_FINISHED that have an offset from `start_offset` to
        `end_offset` (inclusive), by start offset.
        """
        ...

    def count_remote_log_segments(self, partition: TopicIdPartition) -> Mapping[SegmentState, int]:
        """Return how many segments a listing of the partition has in each state, if there are any."""
        ...

    def segment_totals(self) -> Sequence[SegmentTotals]:
        """Return the totals of all segments, by partition and state, deleted ones too, as of one moment.

        For metrics of thousands of partitions, at the cost of a few calls.
        """
        ...

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return one segment in any state except DELETE_SEGMENT_FINISHED."""
        ...

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        """Return those of `ids` that were ever added to the partition, in any state, including deleted ones."""
        ...

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """Return every partition that has, or had, a remote segment."""
        ...

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the global log start offset (inclusive); None if nothing was ever decided."""
        ...

    def advance_log_start_offset(
        self, partition: TopicIdPartition, offset: int, lease: Lease, moved_at: int | None = None
    ) -> None:
        """Move the global log start up to `offset`; a lower offset than the known one changes nothing.

        With `moved_at` (ms), the previous one is kept among the partition's earlier ones, for undelete; the first move
        keeps 0. Raises LeaseLostError, and ConfigurationError for a negative offset.
        """
        ...

    def advance_log_start_offsets(
        self, log_starts: Sequence[LogStart], moved_at: int | None = None
    ) -> list[LeaseLostError | None]:
        """Move many; return, in order, the error that refused a move, or None.

        Raises ConfigurationError, before anything is written, for a negative offset.
        """
        ...

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],
        log_start_offset: int,
        event_timestamp: int,
        lease: Lease,
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Undo a deletion; return the segments after it.

        It is atomic, but for segments in a metadata topic: their records follow the rest. If the call breaks off
        between them, these segments are still marked, until it is repeated.

        The segments return to COPY_SEGMENT_FINISHED at `event_timestamp` (ms), the global log start returns to
        `log_start_offset` if that is lower, and the partition is no longer deleted as a whole. Raises LeaseLostError;
        InvalidTransitionError for a segment that is not marked, or was never finished, and if the deletion of the
        partition is FINISHED; ConfigurationError for a segment or a lease of another partition.
        """
        ...

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        """Return the state of the partition, as of one moment; an empty one for an unknown partition."""
        ...

    def partition_states_of(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionState]:
        """Return `partition_state` of each of `partitions`, as of one moment, at the cost of a few calls."""
        ...

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        """Return the state of every partition that has, or had, a remote segment, a lineage, a log start or a deletion,
        all as of one moment.
        """
        ...

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:
        """Record `lineage`, merged with the known one (lineage.merged), so that a later leader's epochs are not lost.

        Raises LeaseLostError, and ConfigurationError if an epoch does not rise or a start offset falls.
        """
        ...

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[LeaseLostError | None]:
        """Record many; return, in order, the error that refused it or None.

        Raises ConfigurationError, before anything is written, for epochs that are not a valid lineage.
        """
        ...

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:
        """Change the state of a partition's deletion; a repeated change does nothing.

        Raises LeaseLostError, and InvalidTransitionError for a step that is not the next one.
        """
        ...


def list_remote_segments(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, min_offset: int = 0
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the finished segments with any offset from `min_offset` (inclusive) on, by start offset."""
    for segment in metadata.list_remote_log_segments(partition):
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED and segment.end_offset >= min_offset:
            yield segment


def earliest_log_offset(metadata: RemoteLogMetadataManager, partition: TopicIdPartition) -> int | None:
    """Return the first offset of the remote log, at or above the global log start; None if nothing is remote.

    A manager's own `earliest_log_offset(partition)` answers if it has one.
    """
    own = getattr(metadata, "earliest_log_offset", None)
    if own is not None:
        found: int | None = own(partition)
        return found
    log_start = metadata.log_start_offset(partition) or 0
    first = next(list_remote_segments(metadata, partition, log_start), None)
    return None if first is None else max(log_start, first.start_offset)


def register_partitions(metadata: RemoteLogMetadataManager, partitions: Sequence[TopicIdPartition]) -> None:
    """Tell the manager that this process leads or follows `partitions`, so that it can keep their metadata at hand.

    Calls the manager's own `register_partitions(partitions)`; one without it reads what it is asked for.
    """
    own = getattr(metadata, "register_partitions", None)
    if own is not None:
        own(partitions)


class Leases(Protocol):
    """Who may change a partition: one holder at a time, with a number that only rises.

    A call with many items handles each in turn, at the cost of a few; the result has each refusal, which does not
    affect the others.
    """

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        """Take the lease if it is free, expired, or held by the same `owner` (then with a new number).

        Raises LeaseHeldError, naming the holder and until when.
        """
        ...

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        """Take every lease that `acquire` would, each partition once; leases of another holder are refused."""
        ...

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        """Renew it. Raises LeaseLostError if another holder exists, or if it was released.

        Another holder has a higher number; or the same number and another name, in metadata from a backup.
        """
        ...

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        """Renew every lease that `heartbeat` would; lost ones are refused."""
        ...

    def check(self, lease: Lease) -> None:
        """Raise LeaseLostError if another holder exists; an expired lease that was not taken over is still valid."""
        ...

    def fencing_number(self, partition: TopicIdPartition) -> int:
        """Return the number of the newest lease of `partition`, held or not; 0 if there never was one."""
        ...

    def release(self, lease: Lease) -> None:
        """Release it; if it was taken over meanwhile, do nothing."""
        ...

    def release_many(self, held: Sequence[Lease]) -> None:
        """Release every lease that was not taken over meanwhile."""
        ...

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        """Make every later lease of these partitions get a higher number than the one given for it.

        For rebuilt metadata: a holder of a lease of the lost metadata must never count as a holder.
        """
        ...

    def held(self) -> Sequence[Lease]:
        """Return every lease that has not expired, the one that expires last first.

        The topics of their partitions have no name: leases are kept by topic id.
        """
        ...

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:
        """End the lease of `partition` at the user's request, whoever holds it; return it, None if nobody holds it.

        The number rises in the name of `ended_by`, so that all further changes of the holder are refused.
        """
        ...


class Topics(Protocol):
    """The decisions for each topic, by topic id."""

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """Return the decisions on the topic, or None."""
        ...

    def put(self, topic: Topic) -> None:
        """Write a decision, replacing an earlier one for the same topic id."""
        ...

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        """Replace the present decision (None: there is none) by the result of `change`, and return it.

        No other decision comes between: all other writers wait, so `change` must be quick and must not access the
        store. If it raises, nothing changes.
        """
        ...

    def named(self, name: str) -> Sequence[Topic]:
        """Return the decisions for every incarnation of a topic's name, by cluster."""
        ...

    def list(self) -> Sequence[Topic]:
        """Return all, by cluster and name."""
        ...
