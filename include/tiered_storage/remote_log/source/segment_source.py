"""The border to local logs: which segments exist, how far they are stable, and where their bytes are.

A source reports what it cannot read instead of failing as a whole: one broken partition holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import INTERNAL_TOPICS
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment on a broker's disk. `end_offset` is inclusive; an active segment has none yet."""

    base_offset: int
    end_offset: int | None
    size: int
    log_path: Path

    @property
    def is_active(self) -> bool:
        """Whether it is still written to."""
        return self.end_offset is None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's local log, as seen at one moment.

    Offsets from `log_start_offset` (inclusive) to `stable_offset` (exclusive) are there and will not change.
    `leader_epochs` is the lineage, oldest first. `segments` are in order; the last one is the active one.
    `high_watermark` is the offset (exclusive) up to which every replica has the log: what is stable, and behind it what
    belongs to open transactions; None if the source does not tell it apart.
    """

    topic_id_partition: TopicIdPartition
    directory: Path
    segments: tuple[LocalSegment, ...]
    log_start_offset: int
    stable_offset: int
    leader_epochs: tuple[EpochEntry, ...]
    is_internal: bool = False
    is_compacted: bool = False
    topic_id_is_derived: bool = False
    """Nobody knows the topic's real id: a topic that was deleted and created again looks like the same one."""
    cluster_id_is_derived: bool = False
    """Nobody knows the cluster's real id: the one here is made from the directory's path."""
    high_watermark: int | None = None
    tiered_by_kafka: str | None = None
    """Why older records of it may lie in Kafka's own remote tier; None if they cannot."""

    @property
    def readable_end(self) -> int:
        """The offset (exclusive) up to which a read_uncommitted consumer reads."""
        return self.stable_offset if self.high_watermark is None else self.high_watermark

    @property
    def closed_segments(self) -> Sequence[LocalSegment]:
        """The segments that are no longer written to, oldest first."""
        return [segment for segment in self.segments if not segment.is_active]

    def epochs_of(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the lineage within [`start_offset`, `end_offset`], its first entry cut to begin there."""
        return epochs_within(self.leader_epochs, start_offset, end_offset)


@dataclass(frozen=True, slots=True)
class UnreadablePartition:
    """A partition that the source found but cannot vouch for, with the reason for a person."""

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
    """A partition as its directory's name and metadata files name it; nobody looked into its log.

    Its ids may be derived, as those of a PartitionLog. `problem` says why its log cannot be used, as far as that is
    known without looking into it.
    """

    topic_id_partition: TopicIdPartition
    directory: Path
    is_internal: bool
    is_compacted: bool
    topic_id_is_derived: bool
    cluster_id_is_derived: bool
    problem: str | None = None


def name_of(found: PartitionLog | NamedPartition | UnreadablePartition) -> tuple[str, int | None]:
    """Return topic and number of a partition, as far as they are known."""
    if isinstance(found, UnreadablePartition):
        return found.topic, found.number
    return found.topic_id_partition.topic, found.topic_id_partition.partition


class SegmentSource(Protocol):
    """Where local segments come from."""

    @property
    def notices(self) -> Sequence[str]:
        """What a person should know of the source as a whole, such as a checkpoint file that is not there."""
        ...

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Look at every partition now, each directory in order of topic and number.

        Raises InvalidLogDirectoryError, also if a broker holds what it reads (LogDirectoryLockedError).
        """
        ...

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Look at one partition now; None if it is not there. Raises as the partition's files demand."""
        ...

    def first_timestamp(self, segment: LocalSegment) -> int | None:
        """Return the timestamp (ms) of a segment's first record; None if it holds none, or that has none.

        It opens a file: a plan over 100,000 segments asks only where it has to know.
        """
        ...

    def magic(self, segment: LocalSegment) -> int | None:
        """Return the magic of a segment's first batch; None if it holds none.

        It opens a file; raises OSError if that cannot be read.
        """
        ...


def epochs_within(lineage: Sequence[EpochEntry], start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    """Return the part of `lineage` that was written in [`start_offset`, `end_offset`], both inclusive.

    The first entry is cut to begin at `start_offset` (KIP-405, segmentLeaderEpochs).
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


class LocalTrim(Protocol):
    """Removes segments from the start of a local log."""

    def trim(
        self,
        partition: TopicIdPartition,
        segments: Sequence[LocalSegment],
        new_local_start: int,
        still_due: Callable[[], int] | None = None,
    ) -> int:
        """Remove `segments`, the oldest of `partition`, so that its log begins at `new_local_start`; return where it
        begins now.

        `still_due` is asked once nobody else can change the log any more: it returns where the log may begin by now,
        at most `new_local_start`, and what it raises leaves all as it was. Raises LogDirectoryLockedError while a
        broker has the directory, and InvalidLogDirectoryError if `segments` are not (or no longer) the oldest
        closed ones. A second call does nothing.
        """
        ...
