"""What a source shows of a partition's local log at one moment: its segments, its offsets, and its lineage.

A source reports what it cannot read instead of failing as a whole: one broken partition holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NewType, TypeAlias

from pydantic import AliasChoices, Field

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import INTERNAL_TOPICS
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition

if TYPE_CHECKING:
    from tiered_storage.kafka_wire.topic_configs import TopicConfigs

SegmentLocation = NewType("SegmentLocation", str)
"""Where a source keeps a segment. It names the segment in messages, and opens it (open_segment) on every host that
sees what the source sees. Its format is private to the source."""

LogDirLocation = NewType("LogDirLocation", str)
"""Where the hosts of copies see a log directory of a broker; only the source opens it."""

FETCHED_SCHEME: Final = "fetched"
"""Of the location (`fetched://` and a path) of a file that this process alone writes, out of what a broker sent."""

PlannedLocation: TypeAlias = Annotated[SegmentLocation, Field(validation_alias=AliasChoices("location", "log_path"))]
"""A location in a plan or a task that is written down; earlier releases called it log_path."""


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment of a local log. `end_offset` is inclusive; an active segment has none yet."""

    base_offset: int
    end_offset: int | None
    size: int
    location: PlannedLocation

    @property
    def is_active(self) -> bool:
        """Whether it is still written to."""
        return self.end_offset is None


@dataclass(frozen=True, slots=True)
class LeaderFiles:
    """The broker that leads a partition, and its log directories as the hosts of copies see them (broker.log.dirs)."""

    broker: int
    directories: tuple[LogDirLocation, ...]


@dataclass(frozen=True, slots=True)
class RollRules:
    """How a copy rolls segments of a log whose own segments it cannot see: as its broker does. Sizes in bytes.

    `fetch_bytes` is how much it asks for at once. Without `has_topic_id` the cluster knows the topic by its name only.
    `retention_ms` is after how long brokers delete records; -1: never. With `files`, closed segments are those of the
    leader, and the copy rolls only the rest.
    """

    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    fetch_bytes: int
    has_topic_id: bool = True
    retention_ms: int = -1
    files: LeaderFiles | None = None

    @property
    def tail_ms(self) -> int:
        """How old (ms) the first record of less than a whole segment is once that is rolled.

        Brokers delete such records too once their retention is over: half of it is left for copies that come late.
        """
        return self.segment_ms if self.retention_ms < 0 else min(self.segment_ms, self.retention_ms // 2)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Why this host cannot read the files of a partition's leader, for messages.

    Without `is_left`, no other worker is expected to: this host sees no broker's files, or no setting names them.
    """

    reason: str
    is_left: bool


UNREAD: Final = -1
"""In place of a committed offset: the group has committed some of the topic, but none of this partition."""


@dataclass(frozen=True, slots=True)
class UnsegmentedLog:
    """A log whose segments its source cannot show, so that a copy rolls its own.

    `offset_at` returns the first offset whose record has a timestamp (ms) or a later one, the end of the log if none
    has. `bytes_an_offset` estimates the bytes an offset takes, from a record or two at the given one; `timestamp_at`
    returns the largest timestamp (ms) of the batch there, by which its broker rolls, -1 if it has none.
    `committed_offsets` returns the offset that each consumer group has committed, active or not, by the group's name:
    where it reads on, or UNREAD. It raises if that is unknown for any group, except those it is given. All four ask the
    cluster, and raise SourceClusterError. `size_on_disk` is how many bytes the leader has of it; None: it was not
    asked, or does not report it.
    With RollRules.files, `closed_sizes` returns the bytes of each closed segment of the leader with any offset from the
    first given one on, and none above the second one. It raises SourceClusterError and InvalidLogDirectoryError.
    `elsewhere` is set if this host cannot read those files. `replicas` is how many brokers have the log.
    """

    rules: RollRules
    offset_at: Callable[[int], int]
    bytes_an_offset: Callable[[int], float]
    timestamp_at: Callable[[int], int]
    committed_offsets: Callable[[Collection[str]], Mapping[str, int]]
    closed_sizes: Callable[[int, int], Sequence[int]] | None = None
    elsewhere: Elsewhere | None = None
    size_on_disk: int | None = None
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's local log, as seen at one moment. `place` names it in messages.

    Offsets from `log_start_offset` (inclusive) to `last_stable_offset` (exclusive) are there and will not change.
    `leader_epochs` is the lineage, oldest first. `segments` are in order; the last one is the active one. If the source
    cannot show them, there are none, and `unsegmented` says how a copy rolls its own.
    `high_watermark` is the offset (exclusive) up to which every replica has the log: what is stable, and after it what
    belongs to open transactions; None if the source does not distinguish it.
    """

    topic_id_partition: TopicIdPartition
    place: str
    segments: tuple[LocalSegment, ...]
    log_start_offset: int
    last_stable_offset: int
    leader_epochs: tuple[EpochEntry, ...]
    is_internal: bool = False
    is_compacted: bool = False
    topic_id_is_derived: bool = False
    """The topic's real id is unknown: a topic that was deleted and created again looks like the same one."""
    cluster_id_is_derived: bool = False
    """The cluster's real id is unknown: the one here is made from the directory's path."""
    high_watermark: int | None = None
    tiered_by_kafka: str | None = None
    """Why older records of it may lie in Kafka's own remote tier; None if they cannot."""
    unsegmented: UnsegmentedLog | None = None
    configs: TopicConfigs | None = None
    """The brokers' settings of the topic; None if the source does not know them."""
    log_start_over_tiers: int | None = None
    """The log start in the log directory's checkpoint, over both tiers if Kafka itself tiers the topic; None if no
    checkpoint names it, and from brokers."""

    @property
    def readable_end(self) -> int:
        """The offset (exclusive) up to which a read_uncommitted consumer reads."""
        return self.last_stable_offset if self.high_watermark is None else self.high_watermark

    @property
    def closed_segments(self) -> Sequence[LocalSegment]:
        """The segments that are no longer written to, oldest first."""
        return [segment for segment in self.segments if not segment.is_active]

    def epochs_of(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the lineage within [`start_offset`, `end_offset`], its first entry changed to begin there."""
        return epochs_within(self.leader_epochs, start_offset, end_offset)


@dataclass(frozen=True, slots=True)
class UnreadablePartition:
    """A partition that the source found but cannot vouch for, with the reason for the user."""

    partition: str
    reason: str

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self.partition.rpartition("-")[0]

    @property
    def number(self) -> int | None:
        """The partition's number; None if its name does not end in one."""
        suffix = self.partition.rpartition("-")[2]
        return int(suffix) if suffix.isascii() and suffix.isdecimal() else None

    @property
    def is_internal(self) -> bool:
        """Whether the topic is one of Kafka's own."""
        return self.topic in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """A partition that the source names, with its `place` for messages; its log was not read.

    Its ids may be derived, as those of a PartitionLog. `problem` says why its log cannot be used, as far as that is
    known without looking into it; `tiered_by_kafka` and `configs` are those of a PartitionLog, where they are known.
    """

    topic_id_partition: TopicIdPartition
    place: str
    is_internal: bool
    is_compacted: bool
    topic_id_is_derived: bool
    cluster_id_is_derived: bool
    problem: str | None = None
    tiered_by_kafka: str | None = None
    configs: TopicConfigs | None = None


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The brokers that have a partition, by id, and the one that leads it; None if none does."""

    leader: int | None
    brokers: tuple[int, ...]


def name_of(found: PartitionLog | NamedPartition | UnreadablePartition) -> tuple[str, int | None]:
    """Return topic and number of a partition, as far as they are known."""
    if isinstance(found, UnreadablePartition):
        return found.topic, found.number
    return found.topic_id_partition.topic, found.topic_id_partition.partition


def epochs_within(lineage: Sequence[EpochEntry], start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    """Return the part of `lineage` that was written in [`start_offset`, `end_offset`], both inclusive.

    The first entry is changed to begin at `start_offset` (KIP-405, segmentLeaderEpochs).
    """
    inside = [entry for entry in lineage if start_offset < entry.start_offset <= end_offset]
    before = [entry for entry in lineage if entry.start_offset <= start_offset]
    first = [EpochEntry(before[-1].epoch, start_offset)] if before else []
    return (*first, *inside)


def of_same_offsets(holder: RemoteLogSegmentMetadata, local: LocalSegment) -> bool:
    """Return whether both have the same first and last offset."""
    return (holder.start_offset, holder.end_offset) == (local.base_offset, local.end_offset)


def share_offsets(holder: RemoteLogSegmentMetadata, local: LocalSegment) -> bool:
    """Return whether any offset may be in both; an active segment has no end."""
    return local.base_offset <= holder.end_offset and (
        local.end_offset is None or holder.start_offset <= local.end_offset
    )
