"""What a copy run writes between its steps: one JSON object a line, so that tasks pass each other only paths.

plan (CopyPlan) -> begun (CopyTask, one a segment) -> copied (CopyOutcome, one a segment) ->
committed (CommitReport)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RolledSegment,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.partition_log import PlannedLocation, RollRules
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN, Encoding


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A closed local segment that is due. `end_offset` is inclusive; `lineage` has all known leaders up to it.

    With `roll` the copy rolls the segment itself: it lies within the offsets, which all such segments of the partition
    share, and `size` is an estimate.
    """

    topic_id_partition: TopicIdPartition
    location: PlannedLocation
    base_offset: int
    end_offset: int
    size: int
    lineage: tuple[EpochEntry, ...]
    roll: RollRules | None = None


@dataclass(frozen=True, slots=True)
class SeenLineage:
    """The lineage of a partition, with more entries than we have stored."""

    topic_id_partition: TopicIdPartition
    leader_epochs: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The segments that are due, and what was left out and why.

    `lineages` are to be stored, also for partitions with nothing due: a trimmed broker forgets them. `refused` are
    partitions that must not be tiered although it was requested; `unreadable` ones could not be read; `alarms` are
    of what is copied, and whose records the brokers deleted before that, or may. All three make a run fail at its end,
    after everything else is done. `replacing` are ids of remote segments that a repair copies again: the plan
    treats them as missing.
    """

    segments: tuple[PlannedSegment, ...]
    refused: tuple[Finding, ...] = ()
    unreadable: tuple[Finding, ...] = ()
    notices: tuple[Finding, ...] = ()
    lineages: tuple[SeenLineage, ...] = ()
    replacing: frozenset[str] = frozenset()
    alarms: tuple[Finding, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether a run has nothing to do."""
        return not self.segments and not self.lineages

    @property
    def troubles(self) -> tuple[Finding, ...]:
        """Findings that make the run fail at its end."""
        return (*self.refused, *self.unreadable, *self.alarms)

    @property
    def size(self) -> int:
        """The bytes of all segments together."""
        return sum(segment.size for segment in self.segments)

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """The partitions with something due, in order."""
        return sorted(self.by_partition)

    @property
    def by_partition(self) -> dict[TopicIdPartition, list[PlannedSegment]]:
        """The segments that are due of each partition."""
        found: dict[TopicIdPartition, list[PlannedSegment]] = {}
        for segment in self.segments:
            found.setdefault(segment.topic_id_partition, []).append(segment)
        return found

    def without(self, unreadable: Collection[Finding]) -> CopyPlan:
        """Return the plan with nothing due, and no lineage kept, of the partitions that are `unreadable`."""
        names = {finding.partition for finding in unreadable}
        return replace(
            self,
            segments=tuple(one for one in self.segments if str(one.topic_id_partition) not in names),
            unreadable=(*self.unreadable, *unreadable),
            lineages=tuple(one for one in self.lineages if str(one.topic_id_partition) not in names),
            alarms=tuple(one for one in self.alarms if one.partition not in names),
        )


@dataclass(frozen=True, slots=True)
class RollOrder:
    """How the copy rolls its segment of a running cluster's log: the next one, from `from_offset` (inclusive) on.

    All segments that a run rolls of a partition share this and the bounds in their metadata. `size` is an estimate.
    A later leader may have truncated a remote segment at `from_offset`: `truncated` then holds that segment, preceded
    by the one that ends where it begins, if there is one. They show the producers at `from_offset`.
    """

    rules: RollRules
    from_offset: int
    size: int
    truncated: tuple[RemoteLogSegmentMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One segment to copy, begun as `metadata` under `lease`. `lineage` holds all epochs up to its end.

    `readable_from` is the first offset (inclusive) of the partition that readers are given once this is committed.
    `after` is the remote segment that it continues, if no other task of the run continues it: the local log must have
    the same batches. `encoding` is what the topic's settings ask for. With `roll`, `metadata` has only bounds.
    """

    metadata: RemoteLogSegmentMetadata
    lease: Lease
    location: PlannedLocation
    lineage: tuple[EpochEntry, ...]
    readable_from: int = 0
    after: RemoteLogSegmentMetadata | None = None
    encoding: Encoding = PLAIN
    roll: RollOrder | None = None

    @property
    def size(self) -> int:
        """The bytes to copy; an estimate if the copy rolls the segment itself."""
        return self.metadata.size if self.roll is None else self.roll.size


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How the copy of one task ended: with `finished`, the step that commits it, or with `failure`.

    `damages` name errors in other files than the segment's `.log` (a false index); they do not stop the copy, but the
    run fails. `notices` are worth knowing (an index rebuilt because it was missing). `seconds` of work; `library` is
    the folder that the worker's code came from.

    `rolled` is the segment that the copy rolled itself, if it got so far. `is_unused`: the log had no further segment,
    and nothing was written.
    """

    task: CopyTask
    finished: RemoteLogSegmentMetadataUpdate | None
    failure: JobFailure | None = None
    record_count: int = 0
    damages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    library: str = ""
    rolled: RolledSegment | None = None
    is_unused: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether its worker left a result."""
        return self.finished is not None or self.failure is not None or self.is_unused

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        """The metadata that the copy began with, and with what it rolled, as far as that is known."""
        begun = self.task.metadata
        if self.rolled is None:
            return begun
        return replace(
            begun,
            start_offset=self.rolled.start_offset,
            end_offset=self.rolled.end_offset,
            size=self.rolled.size,
            leader_epochs=self.rolled.leader_epochs,
        )


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became visible to readers, and what the user must check: failed copies and damaged files.

    `is_undecided`: the same commit may be retried, since nothing was written for some partition. A lease that is lost,
    or that older metadata gave, rules a retry out.
    """

    committed: tuple[RemoteLogSegmentMetadata, ...]
    failures: tuple[Finding, ...]
    damages: tuple[Finding, ...]
    notices: tuple[Finding, ...]
    retriable: bool
    is_undecided: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether everything requested was done and no damage was found."""
        return not self.failures and not self.damages
