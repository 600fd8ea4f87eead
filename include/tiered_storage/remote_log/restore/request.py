"""The request for a restore, and its plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import RESERVED_PREFIX
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.progress import Amount
from tiered_storage.remote_log.selection import in_short, parse_number
from tiered_storage.settings.properties.types import topic_name


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """One topic, or part of it: of one incarnation where it had several, of some partitions, of a range.

    A range begins with `from_offset` or `from_timestamp` (ms), both inclusive, and ends before `to_offset` or
    `to_timestamp`. Raises ConfigurationError for an empty range.
    """

    topic: str
    topic_id: str | None = None
    partitions: frozenset[int] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_timestamp: int | None = None
    to_timestamp: int | None = None

    def __post_init__(self) -> None:
        """Refuse invalid ranges early."""
        for what, first, end in (
            ("offsets", self.from_offset, self.to_offset),
            ("times", self.from_timestamp, self.to_timestamp),
        ):
            if first is not None and end is not None and first >= end:
                raise ConfigurationError(
                    f"{self.topic}: the {what} to restore go from {first} to before {end}, which is an empty range: "
                    "give a later end"
                )

    @property
    def is_whole(self) -> bool:
        """Whether everything that the store has of each partition is requested."""
        return {self.from_offset, self.to_offset, self.from_timestamp, self.to_timestamp} == {None}

    def named_as(self, name: str | None) -> str:
        """Return the topic's name at the target, `name` or else its own.

        Raises ConfigurationError for an invalid topic name, and for another name with the prefix of Kafka's own topics:
        a broker would lose its offsets or its cluster's metadata if they were replaced.
        """
        try:
            chosen = topic_name(name or self.topic)
        except ValueError as error:
            raise ConfigurationError(f"{self.topic}: the name at the target is {name!r}: {error}") from error
        if chosen != self.topic and chosen.startswith(RESERVED_PREFIX):
            raise ConfigurationError(
                f"{self.topic}: the name at the target is {name!r}: names that begin with {RESERVED_PREFIX} are for "
                "Kafka's own topics; choose another name"
            )
        return chosen

    def wants(self, partition: TopicIdPartition) -> bool:
        """Return whether `partition` is requested."""
        if partition.topic != self.topic or self.topic_id not in {None, partition.topic_id}:
            return False
        return self.partitions is None or partition.partition in self.partitions


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """The part of one remote segment that is taken: its batches from `start_offset` to `end_offset`, both inclusive.

    That is less than all of it if an earlier one reaches into it, or a later leader truncated it.
    """

    metadata: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int

    @property
    def is_whole(self) -> bool:
        """Whether all of the segment is taken."""
        return (self.start_offset, self.end_offset) == (self.metadata.start_offset, self.metadata.end_offset)


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """What is restored of one partition: offsets `log_start_offset` (inclusive) to `log_end_offset` (exclusive).

    `segments` are in order; the first may begin below the log start. `lineage` are the leader epochs within.
    `following` are the segments that follow in the store: their indexes have later aborts.
    """

    topic_id_partition: TopicIdPartition
    segments: tuple[RestoredSegment, ...]
    log_start_offset: int
    log_end_offset: int
    lineage: tuple[EpochEntry, ...]
    following: tuple[RestoredSegment, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all segments; those of one that is not taken whole count in full."""
        return sum(segment.metadata.size for segment in self.segments)

    @property
    def first_offset(self) -> int:
        """The first offset that is written, at or below the log start."""
        return self.segments[0].start_offset if self.segments else self.log_start_offset


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore. It is the dry run: the restore itself looks nothing up again.

    `gaps` are offsets that the store should have but lacks; `refused` are partitions of which nothing is restored.
    """

    request: RestoreRequest
    topic_id: str
    partitions: tuple[RestoredPartition, ...]
    gaps: tuple[Finding, ...] = ()
    refused: tuple[Finding, ...] = ()
    notices: tuple[Finding, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all segments together."""
        return sum(partition.size for partition in self.partitions)

    @property
    def amount(self) -> Amount:
        """The number of segments to restore, and their bytes."""
        return Amount.of(segment.metadata for segment in self.segments())

    def segments(self) -> Iterator[RestoredSegment]:
        """Yield the segments of all partitions."""
        for partition in self.partitions:
            yield from partition.segments

    def ensure_possible(self, *, allow_gaps: bool) -> None:
        """Raise ConfigurationError for a partition that is refused, RemoteObjectNotFoundError for a gap."""
        if self.refused:
            raise ConfigurationError("; ".join(f"{each.partition}: {each.message}" for each in self.refused))
        if self.gaps and not allow_gaps:
            shown = "; ".join(f"{each.partition}: {each.message}" for each in self.gaps)
            raise RemoteObjectNotFoundError(
                f"the store lacks offsets: {shown}. 'tiered-storage audit' shows more; with --allow-gaps the rest is "
                "restored"
            )


def parse_time(name: str, text: str | None) -> int | None:
    """Return a time in ms; UTC unless it has an offset. Raises ConfigurationError, naming `name`, if it is invalid."""
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return parse_number(name, text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}: {in_short(text)} is not a time: write 2026-11-21T20:00:00+00:00, or milliseconds since 1970"
        ) from error
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
