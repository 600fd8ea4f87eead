"""A remote log as one task sees it: some partitions alone.

Plans look at every partition of the source. A task of a few partitions would pay for all of them, so it gets a source
that shows no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    UnreadablePartition,
    name_of,
)
from tiered_storage.remote_log.source.segment_source import BulkLookup, LocalTrim, SegmentSource


@dataclass(frozen=True, slots=True)
class NamedSelection(Selection):
    """Selects the partitions of these topics and numbers, and no others."""

    chosen: frozenset[tuple[str, int]] = field(default=frozenset(), kw_only=True)

    @property
    def is_narrowed(self) -> bool:
        """As Selection."""
        return True

    def matches(self, topic: str, partition: int | None = None) -> bool:
        """As Selection."""
        if partition is None:
            return any(topic == name for name, _ in self.chosen)
        return (topic, partition) in self.chosen


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The SegmentSource `source`, of which only `chosen` are shown."""

    source: SegmentSource
    chosen: tuple[TopicIdPartition, ...]

    @property
    def is_configured(self) -> bool:
        """As SegmentSource."""
        return self.source.is_configured

    @property
    def shows_segments(self) -> bool:
        """As SegmentSource."""
        return self.source.shows_segments

    @property
    def access(self) -> Mapping[str, str]:
        """As SegmentSource."""
        return self.source.access

    @property
    def notices(self) -> Sequence[str]:
        """None: they concern the source as a whole."""
        return ()

    @property
    def local_trim(self) -> LocalTrim:
        """As SegmentSource."""
        return self.source.local_trim

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Look at those that are there. Raises what the source raises as a whole."""
        if isinstance(self.source, BulkLookup):
            yield from self.source.partitions_of(self.chosen).values()
            return
        for each in self.chosen:
            try:
                found = self.source.partition(each)
            except (TieredStorageError, OSError) as error:
                yield UnreadablePartition(str(each), str(error))
            else:
                if found is not None:
                    yield found

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        """Name those that are there."""
        wanted = {(each.topic, each.partition) for each in self.chosen}
        return (each for each in self.source.names() if name_of(each) in wanted)

    def named(self, topic: str, number: int) -> Sequence[NamedPartition | UnreadablePartition]:
        """As SegmentSource."""
        return self.source.named(topic, number)

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """As SegmentSource."""
        return self.source.partition(partition)

    def while_trimming(self, segment: LocalSegment) -> SegmentSource:
        """As SegmentSource."""
        return self.source.while_trimming(segment)

    def close(self) -> None:
        """Do nothing: the source belongs to the service."""


def only(remote_log: RemoteLogManager, partitions: Sequence[TopicIdPartition]) -> tuple[RemoteLogManager, Selection]:
    """Return the same remote log with no local partitions but `partitions`, and the selection of these."""
    context = remote_log.context
    narrowed = replace(context, source=ChosenPartitions(context.source, tuple(partitions)))
    names = frozenset((each.topic, each.partition) for each in partitions)
    return RemoteLogManager(narrowed), NamedSelection(chosen=names)
