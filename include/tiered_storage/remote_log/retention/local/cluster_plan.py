"""Plan local retention beside a running cluster: what its brokers may delete by DeleteRecords.

A cluster shows no segments. The remote ones take their place, with their ends, sizes and largest timestamps: the
brokers' log start moves from the end of one to the end of another. It moves only over offsets that finished segments on
the lineage hold without a gap, that are stable, and that every consumer group of the topic has read (its committed
offset), unless the settings name the group or the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import PartitionState, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.progress import Amount
from tiered_storage.remote_log.retention.local.plan import DELETED_AS_A_WHOLE, LocalRetentionPlan, is_past
from tiered_storage.remote_log.source.opening import CLUSTER_SCHEME
from tiered_storage.remote_log.source.partition_log import (
    UNREAD,
    LocalSegment,
    PartitionLog,
    SegmentLocation,
    UnsegmentedLog,
)
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings


@dataclass(frozen=True, slots=True)
class IgnoredReaders:
    """The consumer groups that hold nothing back, and the topics that no group holds back; by name."""

    groups: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return those that the settings name."""
        return cls(
            frozenset(settings.local_retention_ignored_groups),
            frozenset(settings.local_retention_topics_ignoring_groups),
        )


@dataclass(frozen=True, slots=True)
class RemoteSide:
    """A partition's state in the metadata."""

    state: PartitionState
    segments: Sequence[RemoteLogSegmentMetadata]

    @classmethod
    def of(cls, partition: TopicIdPartition, metadata: RemoteLogMetadataManager) -> Self:
        """Read it from `metadata`."""
        return cls(metadata.partition_state(partition), tuple(metadata.list_remote_log_segments(partition)))


@dataclass(frozen=True, slots=True)
class _Held:
    """A part of the brokers' log and the remote segment that holds it, as far as the lineage has it there."""

    local: LocalSegment
    covered: CoveredRange

    @property
    def end(self) -> int:
        """The offset (exclusive) where it ends."""
        return self.covered.end_offset + 1


def plan_cluster_retention(
    log: PartitionLog,
    remote: RemoteSide,
    settings: TopicSettings,
    now: int,
    ignored: IgnoredReaders,
    max_segments: int | None = None,
) -> LocalRetentionPlan:
    """Return what of `log` is past local retention at `now` (ms) and may be deleted at its brokers.

    `max_segments` limits it to the oldest. `held_back` is why records past their limit stay. Consumer groups are asked
    only if anything is due. Raises LineageContradictedError, and SourceClusterError if the groups are unknown.
    """
    lineage = trusted_lineage(remote.state.lineage, log)
    plan = LocalRetentionPlan(log.topic_id_partition, (), log.log_start_offset, (), lineage=lineage, now=now)
    if remote.state.delete_state is not None:
        return replace(plan, held_back=DELETED_AS_A_WHOLE)
    due, held_back = _due(log, remote, lineage, settings, now)
    if due and log.topic_id_is_derived:
        return replace(plan, held_back=_WITHOUT_TOPIC_ID)
    if not due or log.unsegmented is None:
        return replace(plan, held_back=held_back)
    readers = _Readers.of(log, log.unsegmented, ignored)
    chosen = [held for held in due if held.end <= readers.bound]
    waits = len(chosen) < len(due)
    if waits:
        held_back = readers.why_held_back(due[len(chosen)])
    if max_segments is not None and len(chosen) > max_segments:
        chosen, held_back, waits = chosen[:max_segments], None, False
    start = chosen[-1].end if chosen else log.log_start_offset
    return replace(
        plan,
        segments=tuple(held.local for held in chosen),
        new_local_start=start,
        held_by=tuple({held.covered.segment.segment_id.id: held.covered.segment for held in chosen}.values()),
        held_back=held_back,
        waits=waits,
        notes=tuple(readers.notes(start)) if chosen else (),
    )


def past_cluster_retention(log: PartitionLog, remote: RemoteSide, settings: TopicSettings, now: int) -> Amount:
    """Return how much of `log` is past local retention at `now` (ms) and remote, even if a group still reads it."""
    due, _ = _due(log, remote, trusted_lineage(remote.state.lineage, log), settings, now)
    return Amount(len(due), sum(held.local.size for held in due))


def _due(
    log: PartitionLog, remote: RemoteSide, lineage: Sequence[EpochEntry], settings: TopicSettings, now: int
) -> tuple[list[_Held], str | None]:
    """Return what is past local retention, oldest first, up to a gap; and the gap, if more is due after it.

    What is not remote yet does not count towards local.retention.bytes: its size is unknown.
    """
    parts = list(_parts(log, Coverage.of(remote.segments, lineage)))
    limit = settings.local_retention_bytes
    excess = sum(part.local.size for part in parts) - limit if limit >= 0 else 0
    due: list[_Held] = []
    reached = log.log_start_offset
    for part in parts:
        is_over_size = excess >= part.local.size > 0
        if not is_over_size and not is_past([part.covered.segment], settings.local_retention_ms, now):
            break
        if part.local.base_offset > reached:
            return due, _why_missing(reached, part.local.base_offset - 1, remote.state.log_start_offset or 0)
        excess -= part.local.size
        due.append(part)
        reached = part.end
    return due, None


def _parts(log: PartitionLog, coverage: Coverage) -> Iterator[_Held]:
    """Yield the stable parts of `log` that are remote, each up to the end of a remote segment."""
    reached = log.log_start_offset
    for covered in coverage.ranges_from(reached):
        if covered.end_offset >= log.last_stable_offset:
            return
        begin = max(covered.start_offset, reached)
        location = SegmentLocation(f"{CLUSTER_SCHEME}://{log.topic_id_partition}/{begin:020d}")
        yield _Held(LocalSegment(begin, covered.end_offset, covered.size_from(begin), location), covered)
        reached = covered.end_offset + 1


@dataclass(frozen=True, slots=True)
class _Readers:
    """Where consumer groups continue to read; those in `ignored` hold nothing back, with `all_ignored` no group
    does."""

    topic: str
    log_start: int
    committed: Mapping[str, int]
    ignored: frozenset[str]
    all_ignored: bool

    @classmethod
    def of(cls, log: PartitionLog, unsegmented: UnsegmentedLog, ignored: IgnoredReaders) -> Self:
        """Ask the cluster, unless the topic itself is named. Raises SourceClusterError."""
        topic = log.topic_id_partition.topic
        if topic in ignored.topics:
            return cls(topic, log.log_start_offset, {}, frozenset(), all_ignored=True)
        committed = unsegmented.committed_offsets(ignored.groups)
        return cls(topic, log.log_start_offset, committed, ignored.groups, all_ignored=False)

    @property
    def bound(self) -> float:
        """The offset (exclusive) up to which all groups that count have read; infinite without any.

        A group that has committed other partitions of the topic only has read nothing here.
        """
        counted = [max(offset, self.log_start) for group, offset in self.committed.items() if group not in self.ignored]
        return min(counted, default=float("inf"))

    def why_held_back(self, first: _Held) -> str:
        """Return why `first`, the oldest part that stays, is not deleted."""
        late = [
            f"{group} at offset {offset}" if offset != UNREAD else f"{group} that has committed other partitions only"
            for group, offset in sorted(self.committed.items(), key=lambda known: (known[1], known[0]))
            if group not in self.ignored and offset < first.end
        ]
        named = ", ".join(late[:_MOST_GROUPS]) + (
            f" and {len(late) - _MOST_GROUPS} more" if late[_MOST_GROUPS:] else ""
        )
        return (
            f"offsets {first.local.base_offset} to {first.covered.end_offset} are past local retention, but not read "
            f"by every consumer group: {named}; they stay until those commit a later offset. A group that may lose "
            "records can be named in local.retention.ignored.groups"
        )

    def notes(self, start: int) -> Iterator[str]:
        """Yield notices for the user about a deletion of the records below `start`."""
        if self.all_ignored:
            yield f"no consumer group holds it back: local.retention.topics.ignoring.groups names {self.topic}"
            return
        if not self.committed:
            yield "no consumer group holds it back: none has committed an offset of it"
        for group, offset in sorted(self.committed.items()):
            if group in self.ignored and offset < start:
                yield (
                    f"group {group} loses offsets {max(offset, self.log_start)} to {start - 1} at the brokers: "
                    "local.retention.ignored.groups names it"
                )


_MOST_GROUPS = 5

_WITHOUT_TOPIC_ID = (
    "the brokers give the topic no id, so it is unknown whether its remote records are of the same topic: what is "
    "local stays until their own retention deletes it"
)


def _why_missing(first: int, last: int, global_log_start: int) -> str:
    if last < global_log_start:
        return (
            f"offsets {first} to {last} lie below the global log start, and nothing remote holds them: neither they "
            "nor later ones are deleted, until the brokers' own retention or kafka-delete-records deleted them"
        )
    return (
        f"offsets {first} to {last} are not remote, a gap that 'tiered-storage audit' names: neither they nor later "
        "ones are deleted at the brokers"
    )
