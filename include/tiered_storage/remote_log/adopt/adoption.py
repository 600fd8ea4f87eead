"""The adoption of a topic that Kafka itself tiered: what our remote log still lacks of it, copied in rounds.

Each round is a run of the ordinary copy with leases, verification and a commit of its own, so that a killed adoption
loses one round at most, and the next one copies the rest. Segments keep their offsets and bytes, and get ids of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import Self

from tiered_storage.errors import AmbiguousPartitionError, ConfigurationError, TieredStorageError, UnknownPartitionError
from tiered_storage.remote_log.adopt import tier_logs
from tiered_storage.remote_log.adopt.tier_logs import TierLogs
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.plan import why_deleted
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment, SeenLineage
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.lineage import trusted_lineage, up_to, whole_lineage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.native.read_only_storage import native_storage, refuse
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.storage.listable_storage import as_listable

RUN_SEGMENTS = 16
RUN_BYTES = 4 << 30
"""How much of one partition is copied in one go. Each run reads the segment that it continues once more, to compare."""
RUNS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class Adoption:
    """Adopts topics of the cluster that `logs` shows. `remote_log` is our own, with them as its local logs."""

    remote_log: RemoteLogManager
    logs: TierLogs

    @classmethod
    @contextmanager
    def opened(cls, ours: RemoteLogContext, native: RemoteLogContext) -> Iterator[Self]:
        """Adopt from `native` into `ours` during the `with` block, which closes neither.

        Raises ConfigurationError if `native` is no cluster that tiers by itself, or `ours` is one.
        """
        if native_storage(ours.storage) is not None:
            refuse("nothing can be adopted into it")
        with tier_logs.opened(native) as logs:
            yield cls(RemoteLogManager(replace(ours, source=logs)), logs)

    def plan(self, topic: str, numbers: Collection[int] | None = None) -> CopyPlan:
        """Return what is still lacking of the partitions `numbers` of a topic; None: of all.

        Partitions of which our remote log has segments of another origin are refused, and those whose log start the
        cluster does not show. Raises UnknownPartitionError, AmbiguousPartitionError, ConfigurationError, and what the
        two metadata stores raise.
        """
        partitions = self._partitions(topic, numbers)
        logs = self.logs.partitions_of(partitions)
        parts = [self._of_partition(each, logs[each]) for each in partitions if each in logs]
        return CopyPlan(
            tuple(each for part in parts for each in part.segments),
            tuple(each for part in parts for each in part.refused),
            notices=tuple(each for part in parts for each in part.notices),
            lineages=tuple(each for part in parts for each in part.lineages),
        )

    def rounds(self, plan: CopyPlan, stopped: Collection[str]) -> Iterator[CopyPlan]:
        """Yield the rounds of `plan`; a caller adds to `stopped` the partitions of which a segment was not copied.

        Nothing more is copied of those: readers must find no gap.
        """
        in_turns = chain.from_iterable(zip_longest(*map(_runs, plan.by_partition.values())))
        runs = (run for run in in_turns if run is not None and str(run[0].topic_id_partition) not in stopped)
        while taken := [*islice(runs, RUNS_A_ROUND)]:
            partitions = {run[0].topic_id_partition for run in taken}
            lineages = tuple(each for each in plan.lineages if each.topic_id_partition in partitions)
            yield CopyPlan(tuple(chain.from_iterable(taken)), lineages=lineages)

    def _partitions(self, topic: str, numbers: Collection[int] | None) -> list[TopicIdPartition]:
        selection = None if numbers is None else frozenset(numbers)
        named = [one.topic_id_partition for one in self.logs.names() if one.topic_id_partition.topic == topic]
        found = [one for one in named if selection is None or one.partition in selection]
        if not found:
            raise UnknownPartitionError(
                f"the cluster has tiered nothing of {topic} as requested: 'tiered-storage segments' with its settings "
                "shows what it has"
            )
        incarnations = sorted({one.topic_id for one in found})
        if len(incarnations) > 1:
            raise AmbiguousPartitionError(
                f"{topic} has segments of several incarnations, topic ids {', '.join(incarnations)}: adopt it once the "
                "brokers have deleted those of the earlier ones"
            )
        ours = self.remote_log.context.settings.cluster_id
        if ours not in {None, found[0].cluster_id}:
            raise ConfigurationError(
                f"{topic} is of the cluster {found[0].cluster_id}, and cluster.id is {ours}: adopt it with the "
                "settings of the remote log that is to have this cluster's topics"
            )
        return sorted(found)

    def _of_partition(self, partition: TopicIdPartition, log: PartitionLog | UnreadablePartition) -> CopyPlan:
        """Return what is due of one partition."""
        if isinstance(log, UnreadablePartition):
            return _refused(partition, log.reason)
        context = self.remote_log.context
        state = context.segments.partition_state(partition)
        segments = finished(context.segments.list_remote_log_segments(partition))
        listable = as_listable(context.storage)
        why_not = None if listable is None else listable.why_no_name(partition)
        if state.delete_state is not None:
            why_not = why_deleted(state.delete_state)
        if why_not := why_not or _why_other_origin(segments, log):
            return _refused(partition, why_not)
        try:
            lineage = whole_lineage(segments, trusted_lineage(state.lineage, log))
        except TieredStorageError as error:
            return _refused(partition, str(error))
        coverage, log_start = Coverage.of(segments, lineage), state.log_start_offset or 0
        due = tuple(
            PlannedSegment(partition, each.location, each.base_offset, end, each.size, up_to(lineage, end))
            for each, end in ((each, each.end_offset or 0) for each in log.segments)
            if end >= log.log_start_offset and coverage.lacks(each.base_offset, end, log_start)
        )
        seen = (SeenLineage(partition, lineage),) if due and lineage != state.lineage else ()
        notices = (*_deleted_since(log, state.log_start_offset), *_gaps(log, coverage.end_offset))
        return CopyPlan(due, notices=notices, lineages=seen)


def _why_other_origin(ours: Sequence[RemoteLogSegmentMetadata], log: PartitionLog) -> str | None:
    """Return why `ours` do not all come from Kafka's tier; those that it has deleted since are not judged."""
    if not log.segments:
        return None
    tiered = {(each.base_offset, each.end_offset, each.size) for each in log.segments}
    first = log.segments[0].base_offset
    other = [
        each
        for each in ours
        if each.end_offset >= first and (each.start_offset, each.end_offset, each.size) not in tiered
    ]
    if not other:
        return None
    return (
        f"the remote log has {len(other)} segments of it that were not adopted, the first with offsets "
        f"{other[0].start_offset} to {other[0].end_offset}: 'tiered-storage copy' continues it; to adopt it from the "
        "start, use a remote log that has nothing of it"
    )


def _refused(partition: TopicIdPartition, why: str) -> CopyPlan:
    return CopyPlan((), (Finding(str(partition), why),))


def _deleted_since(log: PartitionLog, our_start: int | None) -> Iterator[Finding]:
    """Yield that records were deleted in Kafka after our log start was taken: readers of ours still get them."""
    if our_start is None or our_start >= log.log_start_offset:
        return
    partition = log.topic_id_partition
    yield Finding(
        str(partition),
        f"offsets {our_start} to {log.log_start_offset - 1} were deleted in Kafka since they were adopted: retention "
        f"deletes them here too, or 'tiered-storage delete-records {partition.topic} {partition.partition} --before "
        f"{log.log_start_offset}'",
    )


def _gaps(log: PartitionLog, our_end: int | None) -> Iterator[Finding]:
    """Yield the offsets that neither remote log has: above its log start, and after what ours has."""
    reached = log.log_start_offset if our_end is None else our_end + 1
    for each in log.segments:
        if each.base_offset > reached:
            message = f"offsets {reached} to {each.base_offset - 1} are in no segment of Kafka's remote tier"
            yield Finding(str(log.topic_id_partition), message)
        reached = max(reached, (each.end_offset or 0) + 1)


def _runs(segments: Iterable[PlannedSegment]) -> Iterator[list[PlannedSegment]]:
    """Yield the segments of one partition in runs, in order."""
    run: list[PlannedSegment] = []
    for each in segments:
        run.append(each)
        if len(run) >= RUN_SEGMENTS or sum(one.size for one in run) >= RUN_BYTES:
            yield run
            run = []
    if run:
        yield run
