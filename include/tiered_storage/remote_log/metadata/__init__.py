"""The borders to what is known of the remote log: segments (KIP-405), topics, log starts and leases.

The docstrings here are the contract; one suite of tests runs it against every implementation.
All of it is strongly consistent: a call that returned is seen by every later call of every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)


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


class RemoteLogMetadataManager(Protocol):
    """Keeps the metadata of remote segments, with every state change checked against the life cycle.

    All methods raise MetadataUnavailableError (retriable), MetadataCorruptError, or what they name.
    """

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        """Record a copy that starts (COPY_SEGMENT_STARTED, under `lease`).

        Adding the very same again does nothing. Raises LeaseLostError where a newer holder exists, and
        InvalidTransitionError for another state or for an id that is known with other content.
        """
        ...

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        """Take one step in a segment's life, atomically with the check of `lease`; returns what it now is.

        A repeated step does nothing. Raises InvalidTransitionError (also for an unknown id), and LeaseLostError where
        a newer holder exists, or where a copy would be finished under another lease than it began under.
        """
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

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """Return every partition that has, or had, a remote segment."""
        ...

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """Return OUR log start offset (inclusive); None where nothing was ever decided."""
        ...

    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int, lease: Lease) -> None:
        """Move our log start up to `offset`; a lower one than is known changes nothing. Raises LeaseLostError."""
        ...


class Leases(Protocol):
    """Who may change a partition: one holder at a time, told apart by a number that only rises."""

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        """Take the lease: where it is free, expired, or held by the same `owner` (then with a new number).

        Raises LeaseHeldError, naming the holder and until when.
        """
        ...

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        """Prolong it. Raises LeaseLostError where a newer holder exists."""
        ...

    def check(self, lease: Lease) -> None:
        """Raise LeaseLostError where a newer holder exists; an expired lease that nobody took is still good."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it back; where it was taken over meanwhile, do nothing."""
        ...


class Topics(Protocol):
    """The decisions for each topic, by topic id."""

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """Return what was decided, or None."""
        ...

    def put(self, topic: Topic) -> None:
        """Write a decision, replacing an earlier one for the same topic id."""
        ...

    def list(self) -> Sequence[Topic]:
        """Return all, by cluster and name."""
        ...
