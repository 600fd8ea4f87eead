"""The borders to what is known of the remote log: segments and partitions (KIP-405), topics and leases.

What makes deleting safe has a border of its own, in safety.py. The docstrings here are the contract; one suite of tests
runs it against every implementation. All of it is strongly consistent: a call that returned is seen by every later call
of every process.
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
"""What a segment now is, or why it was refused."""

LogStart: TypeAlias = tuple[TopicIdPartition, int, Lease]
"""Where our log start of a partition moves to (inclusive), and under which lease."""

ObservedLineage: TypeAlias = tuple[TopicIdPartition, Sequence[EpochEntry], Lease]
"""The leader epochs to keep of a partition, and under which lease."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What was decided for one topic. Everything that deletes is off until a person allows it.

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
class RefusedLease:
    """A partition whose lease is not ours to have, and why."""

    topic_id_partition: TopicIdPartition
    reason: LeaseHeldError | LeaseLostError


@dataclass(frozen=True, slots=True)
class GrantedLeases:
    """What came of asking for many leases at once; together as many as were asked for."""

    granted: tuple[Lease, ...]
    refused: tuple[RefusedLease, ...]


class RemoteLogMetadataManager(Protocol):
    """Keeps the metadata of remote segments and partitions, with every change of state checked against the life cycle.

    All methods raise MetadataUnavailableError (retriable), MetadataCorruptError, or what they name. A call on many
    items is one on each of them in turn, at the price of a few: the answer has each refusal in its place, which leaves
    the others as they are. It raises ConfigurationError, before anything is written, for a lease of another partition.
    """

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        """Record a copy that starts (COPY_SEGMENT_STARTED, under `lease`).

        Adding the very same again does nothing. Raises LeaseLostError if a newer holder exists, and
        InvalidTransitionError for another state, for an id that is known with other content, or if the partition is
        to go, or gone, as a whole.
        """
        ...

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        """Take one step in a segment's life, atomically with the check of `lease`; returns what it now is.

        A repeated step does nothing. Raises InvalidTransitionError (also for an unknown id), and LeaseLostError if
        a newer holder exists, or if a copy would be finished under another lease than it began under.
        """
        ...

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        """Add many; return, in order, each segment or the error that refused it."""
        ...

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        """Take many steps; return, in order, what each segment now is or the error that refused the step."""
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment that holds `offset`, at `leader_epoch` where one is given.

        Of several, the one whose copy finished first: every reader gets the same one.
        """
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Return the last offset (inclusive) that finished segments hold at `leader_epoch`."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Stream the partition's segments in every state but DELETE_SEGMENT_FINISHED, by start offset."""
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

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return one segment in any state but DELETE_SEGMENT_FINISHED."""
        ...

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        """Return those of `ids` that were ever added to the partition, in any state; the deleted ones too."""
        ...

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """Return every partition that has, or had, a remote segment."""
        ...

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """Return OUR log start offset (inclusive); None if nothing was ever decided."""
        ...

    def advance_log_start_offset(
        self, partition: TopicIdPartition, offset: int, lease: Lease, moved_at: int | None = None
    ) -> None:
        """Move our log start up to `offset`; a lower one than is known changes nothing.

        With `moved_at` (ms) the one until now is kept among the partition's earlier ones, for undelete; a move without
        a known log start keeps 0. Raises LeaseLostError, and ConfigurationError for a negative offset.
        """
        ...

    def advance_log_start_offsets(
        self, log_starts: Sequence[LogStart], moved_at: int | None = None
    ) -> list[LeaseLostError | None]:
        """Move many; return, in order, the error that refused it or None.

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
        """Take a deletion back, all of it or nothing; return the segments as they are then.

        The segments return to COPY_SEGMENT_FINISHED at `event_timestamp` (ms), our log start returns to
        `log_start_offset` if that is lower, and the partition is no longer to be deleted as a whole. Raises
        LeaseLostError; InvalidTransitionError for a segment that is not marked, or never was finished, and where the
        deletion of the partition is FINISHED; ConfigurationError for a segment or a lease of another partition.
        """
        ...

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        """Return what we keep of the partition, as of one moment; of an unknown one that is nothing."""
        ...

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        """Return what we keep of every partition that has, or had, a remote segment, a lineage, a log start or a
        deletion, all as of one moment.
        """
        ...

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:
        """Keep what `lineage` tells, together with what is known already (lineage.merged): a later leader's
        word is not lost by it.

        Raises LeaseLostError, and ConfigurationError if an epoch does not rise or a start offset falls.
        """
        ...

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[LeaseLostError | None]:
        """Keep many; return, in order, the error that refused it or None.

        Raises ConfigurationError, before anything is written, for epochs that are no lineage.
        """
        ...

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:
        """Take one step in the deletion of a partition; a repeated one does nothing.

        Raises LeaseLostError, and InvalidTransitionError for a step that is not the next one.
        """
        ...


class Leases(Protocol):
    """Who may change a partition: one holder at a time, told apart by a number that only rises.

    A call on many is one on each, at the price of a few; the answer has each refusal, which leaves the others as they
    are.
    """

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        """Take the lease: where it is free, expired, or held by the same `owner` (then with a new number).

        Raises LeaseHeldError, naming the holder and until when.
        """
        ...

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        """Take every lease that `acquire` would, each partition once; refused are those that somebody else holds."""
        ...

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        """Prolong it. Raises LeaseLostError if another holder exists, or if it was given back.

        Another holder has a higher number; or the same one under another name, in metadata from a backup.
        """
        ...

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        """Prolong every lease that `heartbeat` would; refused are those that are lost."""
        ...

    def check(self, lease: Lease) -> None:
        """Raise LeaseLostError where another holder exists; an expired lease that nobody took is still good."""
        ...

    def fencing_number(self, partition: TopicIdPartition) -> int:
        """Return the number of the newest lease of `partition`, held or not; 0 if there never was one."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it back; where it was taken over meanwhile, do nothing."""
        ...

    def release_many(self, held: Sequence[Lease]) -> None:
        """Give back every lease that was not taken over meanwhile."""
        ...

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        """Let nobody ever hold a lease of these partitions with a number as low as the one given for it.

        For a store that is made again: whoever holds a lease of the one before must never be taken for a holder.
        """
        ...

    def held(self) -> Sequence[Lease]:
        """Return every lease whose time is not over, the one that runs longest first.

        The topics of their partitions have no name: leases are kept by topic id.
        """
        ...

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:
        """End the lease of `partition`, whoever holds it, by a person's word; return it, None if nobody holds it.

        The number rises in the name of `ended_by`, so that whatever the holder still does is refused.
        """
        ...


class Topics(Protocol):
    """The decisions for each topic, by topic id."""

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """Return what was decided, or None."""
        ...

    def put(self, topic: Topic) -> None:
        """Write a decision, replacing an earlier one for the same topic id."""
        ...

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        """Write what `change` makes of the present decision (None: there is none), and return it.

        Nobody else's word comes between: all others that write wait, so `change` must be quick and call no store.
        What it raises leaves all as it was.
        """
        ...

    def named(self, name: str) -> Sequence[Topic]:
        """Return the decisions for every incarnation of a topic's name, by cluster."""
        ...

    def list(self) -> Sequence[Topic]:
        """Return all, by cluster and name."""
        ...
