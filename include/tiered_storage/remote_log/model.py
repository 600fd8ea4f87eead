"""The remote log's values: partitions, segments, their life cycle, findings about them.

A remote segment's life (KIP-405, RemoteLogSegmentState):

    COPY_SEGMENT_STARTED ──► COPY_SEGMENT_FINISHED ──► DELETE_SEGMENT_STARTED ──► DELETE_SEGMENT_FINISHED
              └──────────────────────────────────────────────────▲

Readers see only COPY_SEGMENT_FINISHED. Until its objects are deleted, a person may return a segment that was finished
from DELETE_SEGMENT_STARTED to COPY_SEGMENT_FINISHED, only by `undeleted`. A partition that is deleted as a whole
(KIP-405, RemotePartitionDeleteState) is MARKED, then STARTED, then FINISHED. Repeating a state is allowed, so that a
step may be run twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Self

from pydantic import ConfigDict

from tiered_storage.errors import InvalidTransitionError, LeaseHeldError, TieredStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry

LEADER_EPOCH_UNKNOWN = -1
MAX_EARLIER_LOG_STARTS = 200
"""How many moves are kept per partition; beyond that, moves close together relative to their age are merged."""

UNKNOWN_SIZE = 0
"""The size of a segment that its copy rolls from a cluster's answers, until the copy has finished."""

_BYTES_AS_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class SegmentState(IntEnum):
    """RemoteLogSegmentState, with the numbers that released Kafka writes."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def may_become(self, target: SegmentState) -> bool:
        """Return whether `target` may follow this state; a state may be repeated."""
        return target is self or target in _NEXT_STATES[self]


_NEXT_STATES: dict[SegmentState, frozenset[SegmentState]] = {
    SegmentState.COPY_SEGMENT_STARTED: frozenset(
        {SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED}
    ),
    SegmentState.COPY_SEGMENT_FINISHED: frozenset({SegmentState.DELETE_SEGMENT_STARTED}),
    SegmentState.DELETE_SEGMENT_STARTED: frozenset({SegmentState.DELETE_SEGMENT_FINISHED}),
    SegmentState.DELETE_SEGMENT_FINISHED: frozenset(),
}


class PartitionDeleteState(IntEnum):
    """RemotePartitionDeleteState, with the numbers that released Kafka writes.

    Kafka's own names have DELETE_PARTITION_ before these.
    """

    MARKED = 0
    STARTED = 1
    FINISHED = 2

    def may_become(self, target: PartitionDeleteState) -> bool:
        """Return whether `target` is the next state, or this one again. A deletion begins as MARKED."""
        return target - self in {0, 1}


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """A partition of one incarnation of a topic; the name is for people and object names, not part of the identity.

    If the name is unknown, the topic's id replaces it.
    """

    cluster_id: str
    topic_id: str
    partition: int
    topic: str = field(compare=False)

    @property
    def is_named(self) -> bool:
        """Whether the topic's name is known."""
        return self.topic != self.topic_id

    def __str__(self) -> str:
        if not self.is_named:
            return f"topic id {self.topic_id} (its name is not known), partition {self.partition}"
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class RemoteLogSegmentId:
    """One attempt to copy one segment: `id` is a fresh Kafka Uuid (22 characters) for every attempt."""

    topic_id_partition: TopicIdPartition
    id: str

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{self.id}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """The metadata of one remote segment (KIP-405, RemoteLogSegmentMetadata).

    `end_offset` is inclusive: the next segment's base offset - 1. Timestamps are ms. `custom_metadata` belongs to the
    RemoteStorageManager that returned it. `fencing_number` is that of the lease under which the copy began.

    While a copy rolls its segment itself, only bounds are known: the segment lies within the offsets, and its `size` is
    UNKNOWN_SIZE. The update that finishes the copy has the rest.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp: int
    event_timestamp: int
    size: int
    leader_epochs: tuple[EpochEntry, ...]
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    broker_id: int = -1
    custom_metadata: bytes | None = None
    fencing_number: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return self.segment_id.topic_id_partition

    @property
    def is_bounded_only(self) -> bool:
        """Whether only bounds of its offsets are known."""
        return self.size == UNKNOWN_SIZE

    @property
    def known_size(self) -> int | None:
        """The size in bytes; None while only bounds are known."""
        return None if self.is_bounded_only else self.size

    @property
    def is_marked(self) -> bool:
        """Whether the segment was visible once, and is marked for deletion now."""
        return self.state is SegmentState.DELETE_SEGMENT_STARTED and self.custom_metadata is not None

    def undeleted(self, event_timestamp: int) -> Self:
        """Return this metadata with its deletion taken back at `event_timestamp` (ms).

        Raises InvalidTransitionError unless the segment is marked, and was finished before.
        """
        if not self.is_marked:
            raise InvalidTransitionError(
                f"{self.segment_id} (offsets {self.start_offset} to {self.end_offset}) is {self.state.name} and cannot "
                "be undeleted: only a finished copy that is marked for deletion can"
            )
        return replace(self, state=SegmentState.COPY_SEGMENT_FINISHED, event_timestamp=event_timestamp)

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> Self:
        """Return this metadata after `update`.

        Raises InvalidTransitionError if the life cycle does not allow it, or if `update` has other offsets than it may.
        """
        if not self.state.may_become(update.state):
            raise InvalidTransitionError(
                f"{self.segment_id} (offsets {self.start_offset} to {self.end_offset}) is {self.state.name} "
                f"and cannot become {update.state.name}"
            )
        if update.rolled is None and self.is_bounded_only and update.state is SegmentState.COPY_SEGMENT_FINISHED:
            raise InvalidTransitionError(
                f"{self.segment_id}: its copy finished without its offsets, which lie within {self.start_offset} to "
                f"{self.end_offset}"
            )
        return replace(
            self if update.rolled is None else self._as_rolled(update.rolled),
            state=update.state,
            event_timestamp=update.event_timestamp,
            custom_metadata=self.custom_metadata if update.custom_metadata is None else update.custom_metadata,
            max_timestamp=self.max_timestamp if update.max_timestamp is None else update.max_timestamp,
        )

    def _as_rolled(self, rolled: RolledSegment) -> Self:
        is_within = self.start_offset <= rolled.start_offset <= rolled.end_offset <= self.end_offset
        if not (self.is_bounded_only and is_within):
            raise InvalidTransitionError(
                f"{self.segment_id} (offsets {self.start_offset} to {self.end_offset}, {self.size} bytes) cannot "
                f"become a segment of the offsets {rolled.start_offset} to {rolled.end_offset}"
            )
        return replace(
            self,
            start_offset=rolled.start_offset,
            end_offset=rolled.end_offset,
            size=rolled.size,
            leader_epochs=rolled.leader_epochs,
        )


@dataclass(frozen=True, slots=True)
class RolledSegment:
    """What a copy learned of the segment that it rolled itself; `end_offset` is inclusive, `size` in bytes."""

    start_offset: int
    end_offset: int
    size: int
    leader_epochs: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A state change of a segment. The end of a copy also sets the largest timestamp (ms) that it read.

    `rolled` is set by the copy of a segment of which only bounds were known.
    """

    segment_id: RemoteLogSegmentId
    state: SegmentState
    event_timestamp: int
    custom_metadata: bytes | None = None
    max_timestamp: int | None = None
    rolled: RolledSegment | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A state change in the deletion of a partition's remote data, at `event_timestamp` (ms)."""

    topic_id_partition: TopicIdPartition
    state: PartitionDeleteState
    event_timestamp: int


@dataclass(frozen=True, slots=True)
class EarlierLogStart:
    """The global log start (inclusive) until a deletion moved it at `moved_at` (ms)."""

    offset: int
    moved_at: int


def _thinned(earlier: tuple[EarlierLogStart, ...], now: int) -> tuple[EarlierLogStart, ...]:
    """Return at most MAX_EARLIER_LOG_STARTS of `earlier`, with neighbours merged.

    It merges the neighbours that together span the smallest share of the time since then. The lower offset stays,
    until the later moment, so that an undelete returns no less than it should. The oldest stays unchanged.
    """
    while len(earlier) > MAX_EARLIER_LOG_STARTS:
        moved = [each.moved_at for each in earlier]
        spans = [(moved[at + 1] - moved[at - 1]) / max(1, now - moved[at - 1]) for at in range(1, len(moved) - 1)]
        at = 1 + spans.index(min(spans))
        earlier = (*earlier[:at], EarlierLogStart(earlier[at].offset, moved[at + 1]), *earlier[at + 2 :])
    return earlier


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition besides its segments.

    `log_start_offset` is the global log start (inclusive), None if nothing was ever decided. `lineage` are the leader
    epochs that we saw, empty if none were recorded. `delete_state` is None unless the partition is being deleted.
    `earlier_log_starts`, oldest first, are what an undelete returns to; equality ignores them, since earlier releases
    keep none.
    """

    log_start_offset: int | None = None
    lineage: tuple[EpochEntry, ...] = ()
    delete_state: PartitionDeleteState | None = None
    earlier_log_starts: tuple[EarlierLogStart, ...] = field(default=(), compare=False)

    @property
    def is_wholly_deleted(self) -> bool:
        """Whether the deletion of the whole partition has begun, so that all its segments are marked."""
        return self.delete_state is not None and self.delete_state >= PartitionDeleteState.STARTED

    def log_start_before(self, moment: int) -> int:
        """Return the global log start as it was before `moment` (ms), as far back as is kept."""
        earlier = (each.offset for each in self.earlier_log_starts if each.moved_at >= moment)
        return next(earlier, self.log_start_offset or 0)

    def log_start_passed(self, offset: int) -> int:
        """Return when (ms) the global log start last moved above `offset`, 0 if that is not kept."""
        return max((each.moved_at for each in self.earlier_log_starts if each.offset <= offset), default=0)

    def with_log_start(self, offset: int, moved_at: int) -> Self:
        """Return this state with the global log start moved up to `offset` at `moved_at` (ms)."""
        earlier = (*self.earlier_log_starts, EarlierLogStart(self.log_start_offset or 0, moved_at))
        return replace(self, log_start_offset=offset, earlier_log_starts=_thinned(earlier, moved_at))

    def undeleted(self, log_start_offset: int) -> Self:
        """Return this state with its deletion taken back, its global log start at most `log_start_offset`."""
        if self.log_start_offset is None or log_start_offset >= self.log_start_offset:
            return replace(self, delete_state=None)
        earlier = tuple(each for each in self.earlier_log_starts if each.offset < log_start_offset)
        return replace(self, log_start_offset=log_start_offset, delete_state=None, earlier_log_starts=earlier)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to change one partition's remote log until `expires_at` (ms), or longer by a heartbeat.

    `fencing_number` rises with every holder; a change under a lower one than the newest is refused.
    """

    topic_id_partition: TopicIdPartition
    owner: str
    fencing_number: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a partition that the user should know."""

    partition: str
    message: str

    @property
    def reason(self) -> str:
        """The message without the partition's name, which starts most error messages."""
        return self.message.removeprefix(f"{self.partition}: ")

    def __str__(self) -> str:
        """Return the reason, after the partition's name if it has one."""
        return f"{self.partition}: {self.reason}" if self.partition else self.message


@dataclass(frozen=True, slots=True)
class TransientFinding(Finding):
    """A finding that a retry may no longer have, without action by the user."""


@dataclass(frozen=True, slots=True)
class LeaseHeldFinding(TransientFinding):
    """Another owner holds the partition now."""


def finding_of(partition: TopicIdPartition, error: TieredStorageError | OSError) -> Finding:
    """Return the finding that `partition` was left out because of `error`."""
    if isinstance(error, LeaseHeldError):
        return LeaseHeldFinding(str(partition), str(error))
    passes = isinstance(error, OSError) or error.retriable
    return (TransientFinding if passes else Finding)(str(partition), str(error))
