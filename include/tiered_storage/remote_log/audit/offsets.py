"""Find missing offsets, and offsets held twice, along one partition's lineage.

The tiers must meet: readers cannot get offsets between the end of the remote log and the start of the local one, or
between the global log start and the first remote segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.lineage import merged, on_lineage, whole_lineage
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.model import PartitionState, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition, epochs_within
from tiered_storage.remote_log.source.segment_source import SegmentSource


@dataclass(frozen=True, slots=True)
class LocalRange:
    """A local log for an audit: offsets `log_start_offset` to `last_stable_offset` (exclusive), and leaders."""

    log_start_offset: int
    last_stable_offset: int
    leader_epochs: tuple[EpochEntry, ...]

    @classmethod
    def of(cls, log: PartitionLog) -> LocalRange:
        """Return that of `log`."""
        return cls(log.log_start_offset, log.last_stable_offset, log.leader_epochs)


class LocalLogs:
    """The local logs of what is being copied, as they were before the audit looked at anything else.

    So the remote log can only be ahead of them. `unseen` lists those that could not be read, and why.
    """

    def __init__(
        self,
        source: SegmentSource,
        is_copied: Callable[[PartitionLog | UnreadablePartition], bool],
        identities: LostIdentities,
    ) -> None:
        """Read every partition of `source` now; note failures, and continue without them."""
        self._source = source
        self._is_copied = is_copied
        self._ranges: dict[TopicIdPartition, LocalRange] = {}
        self.unseen: list[str] = []
        try:
            for log in identities.recognised(source.partitions(), unless_remote=True):
                if log.is_internal or not is_copied(log):
                    continue
                if isinstance(log, UnreadablePartition):
                    self.unseen.append(f"{log.partition}: its local log was not looked at: {log.reason}")
                elif log.tiered_by_kafka is not None:
                    self.unseen.append(f"{log.topic_id_partition} is refused: {log.tiered_by_kafka}")
                else:
                    self._ranges[log.topic_id_partition] = LocalRange.of(log)
        except TieredStorageError as error:
            self.unseen.append(f"local logs were not looked at, nor what is missing between the tiers: {error}")

    def range_of(self, partition: TopicIdPartition) -> LocalRange | None:
        """Return the partition's local log at the start; None if there is none or it is not being copied."""
        return self._ranges.get(partition)

    def range_now(self, partition: TopicIdPartition) -> LocalRange | None:
        """Return the partition's local log now."""
        if partition not in self._ranges:
            return None
        try:
            log = self._source.partition(partition)
        except (TieredStorageError, OSError):
            return None
        return LocalRange.of(log) if log is not None and self._is_copied(log) else None


def offset_anomalies(
    partition: TopicIdPartition,
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    local: LocalRange | None,
) -> Iterator[Anomaly]:
    """Yield the gaps of one partition, and the segments on its lineage that another one holds entirely.

    Without `local`, only gaps within the remote tier are found. Offsets that a later leader truncated are ignored,
    however many copies there are: no reader gets them, and they expire.

    Before the global log start was first set, nothing is missing at either end.
    """
    lineage = _lineage(state, local)
    coverage = Coverage.of(segments, lineage)
    for start, end in _missing(coverage, state.log_start_offset, local):
        if end >= (state.log_start_offset or 0):
            first = max(start, state.log_start_offset or 0)
            message = f"offsets {first} to {end} are in no segment"
            yield Anomaly(AnomalyKind.GAP, str(partition), message, partition, offsets=(first, end))
    whole = whole_lineage(segments, lineage)
    for one, other in _overlapping(segments):
        if other.end_offset > one.end_offset or not on_lineage(other, whole):
            continue
        offsets = (other.start_offset, other.end_offset)
        message = f"offsets {offsets[0]} to {offsets[1]} are in {one.segment_id.id} and in {other.segment_id.id}"
        yield Anomaly(AnomalyKind.OVERLAP, str(partition), message, partition, other.segment_id.id, offsets=offsets)


def partial_overlaps(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    """Return how many segments begin inside another and end after it, with the same leaders where they overlap.

    Replicas roll segments at different offsets, so this is normal if copying continued from another replica: both are
    needed, and readers get each offset once.
    """
    return sum(other.end_offset > one.end_offset for one, other in _overlapping(segments))


def reaches_too_far(
    segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState, local: LocalRange | None
) -> tuple[int, int] | None:
    """Return the end of the remote log and that of the stable local one (both inclusive) if the first is later."""
    end = None if local is None else Coverage.of(segments, _lineage(state, local)).end_offset
    if local is None or end is None or end < local.last_stable_offset:
        return None
    return end, local.last_stable_offset - 1


def _lineage(state: PartitionState, local: LocalRange | None) -> tuple[EpochEntry, ...]:
    return merged(state.lineage, local.leader_epochs if local else ())


def _missing(coverage: Coverage, log_start: int | None, local: LocalRange | None) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets (inclusive) that the remote tier lacks, including those below `log_start`.

    Offsets after its end may wait for the next copy: they are missing only if the local log no longer has them.
    """
    if log_start is not None and coverage.ranges and coverage.ranges[0].start_offset > log_start:
        yield log_start, coverage.ranges[0].start_offset - 1
    yield from coverage.gaps()
    if local is None or log_start is None:
        return
    reached = log_start if coverage.end_offset is None else coverage.end_offset + 1
    if local.log_start_offset > reached:
        yield reached, local.log_start_offset - 1


def _overlapping(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]]:
    """Yield each finished segment that begins before the end of those before it, with the one that reaches furthest.

    Copies of different leaders may overlap: the lineage decides which of them is read.
    """
    furthest: RemoteLogSegmentMetadata | None = None
    for segment in finished(segments):
        if furthest is not None and segment.start_offset <= furthest.end_offset:
            start, end = segment.start_offset, min(furthest.end_offset, segment.end_offset)
            if epochs_within(furthest.leader_epochs, start, end) == epochs_within(segment.leader_epochs, start, end):
                yield furthest, segment
        if furthest is None or segment.end_offset > furthest.end_offset:
            furthest = segment
