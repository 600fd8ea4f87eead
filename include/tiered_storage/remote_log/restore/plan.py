"""Plan a restore: find the segments, along the lineage of leaders, that hold the requested offsets. Changes nothing.

Offsets come from the metadata alone. A few indexes are read as well, and batches if there is no producer snapshot:

    times     leading segments are left out while their largest timestamps are below `from_timestamp`. The range ends at
              the first segment whose smallest timestamp, in its manifest, is at or after `to_timestamp`; manifests are
              read from the first segment on whose largest timestamp reaches that, and all batches where they lack it
    early end a range that ends inside a transaction is extended to the end of the segment that decides it: otherwise
              readers of committed records would wait there for ever
    uncovered the store is listed: objects after the end in the metadata are a gap, also those of an unfinished segment
              that begins before that end; so is a partition without a segment. A rebuild has such gaps if objects of a
              segment are lost
    the end   undecided transactions are reported, also those around a gap
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tiered_storage.errors import ConfigurationError, SourceClusterError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext, overlaps
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.indexes.remote_index_builder import RemoteIndexBuilder
from tiered_storage.remote_log.jobs.throttle import read_back_limit
from tiered_storage.remote_log.lineage import whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, PartitionState, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.restore.committed import StoredTransactions, index_of
from tiered_storage.remote_log.restore.directory import DirectoryTarget, RestoredDirectory, restore_to_directory
from tiered_storage.remote_log.restore.request import RestoredPartition, RestoredSegment, RestorePlan, RestoreRequest
from tiered_storage.remote_log.restore.uncovered import KnownPartition, find_uncovered
from tiered_storage.remote_log.restore.validation import Validation
from tiered_storage.remote_log.source.partition_log import PartitionLog, epochs_within
from tiered_storage.remote_log.source.segment_source import BulkLookup
from tiered_storage.remote_log.storage.batch_stream import checked_batches, fetch_whole
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

if TYPE_CHECKING:
    from tiered_storage.remote_log.restore.cluster import ClusterReport, ClusterTarget


NAMED_AT_MOST = 20
BROKERS_SECONDS = 5.0
"""How long a plan waits for brokers to answer, which it does not depend on."""


def plan_restore(
    metadata: RemoteLogMetadataManager, leases: Leases, storage: RemoteStorageManager, request: RestoreRequest
) -> RestorePlan:
    """Return what restoring `request` would take from the store.

    Raises ConfigurationError if the store has no such topic or partition, or several incarnations of the topic.
    """
    # Before the metadata: a copy that ends meanwhile is under way in both.
    held = {(lease.topic_id_partition, lease.fencing_number) for lease in leases.held()}
    with_segments = metadata.list_partitions()
    wanted = _wanted_partitions(with_segments, metadata.partition_states(), request)
    known: dict[TopicIdPartition, KnownPartition] = {}
    partitions: list[RestoredPartition] = []
    gaps: list[Finding] = []
    refused: list[Finding] = []
    notices: list[Finding] = []
    for partition in wanted:
        state = metadata.partition_state(partition)
        if state.delete_state is not None:
            refused.append(Finding(str(partition), "its deletion was requested: what is left of it will be deleted"))
            continue
        segments = list(metadata.list_remote_log_segments(partition))
        every = _without_overlaps(Coverage.of(segments, state.lineage), state.log_start_offset or 0)
        begin, end = _chosen(every, storage, request)
        reached = max(state.log_start_offset or 0, every[-1].end_offset + 1 if every else 0)
        known[partition] = KnownPartition.of(reached if end == len(every) else None, segments, held)
        if partition not in with_segments:
            gaps += _without_segments(partition, state.log_start_offset or 0, request)
        restored = _restored(partition, state, segments, every[begin:end], every[end:], request)
        if restored is None:
            notices.append(Finding(str(partition), "the store has nothing of it in the requested range"))
            continue
        partitions.append(restored)
        gaps += _gaps(restored, state, request)
        notices += _undecided(restored, storage)
    numbers = {each.partition for each in wanted}
    if (listable := as_listable(storage)) is not None:
        uncovered = find_uncovered(known, wanted[0], metadata, listable, request)
        gaps += uncovered.gaps
        notices += uncovered.notices
        numbers |= uncovered.missing
    notices += _holes(numbers, request)
    return RestorePlan(request, wanted[0].topic_id, tuple(partitions), tuple(gaps), tuple(refused), tuple(notices))


def _wanted_partitions(
    with_segments: Sequence[TopicIdPartition],
    states: Mapping[TopicIdPartition, PartitionState],
    request: RestoreRequest,
) -> list[TopicIdPartition]:
    """Return the requested partitions: those `with_segments`, and those of which only the log start is known."""
    begun = {
        each for each, state in states.items() if state.log_start_offset is not None and state.delete_state is None
    }
    known = begun.union(with_segments)
    wanted = sorted((each for each in known if request.wants(each)), key=lambda each: each.partition)
    if not wanted:
        raise ConfigurationError(
            f"nothing of topic {request.topic!r} as requested was ever in the store: 'tiered-storage topics list' "
            "shows the known topics. If the metadata are lost, rebuild them from the store first: 'tiered-storage "
            "rebuild-metadata'"
        )
    incarnations = sorted({(each.cluster_id, each.topic_id) for each in wanted})
    if len(incarnations) > 1:
        shown = ", ".join(f"{topic_id} of cluster {cluster_id}" for cluster_id, topic_id in incarnations)
        raise ConfigurationError(f"{request.topic} had several incarnations: give one by --topic-id: {shown}")
    return wanted


def _restored(
    partition: TopicIdPartition,
    state: PartitionState,
    segments: Sequence[RemoteLogSegmentMetadata],
    chosen: Sequence[RestoredSegment],
    following: Sequence[RestoredSegment],
    request: RestoreRequest,
) -> RestoredPartition | None:
    """Return what is restored of a partition: the `chosen` of its `segments`; None if that is nothing."""
    global_log_start = state.log_start_offset or 0
    if not chosen:
        if not request.is_whole or state.log_start_offset is None:
            return None
        return RestoredPartition(partition, (), global_log_start, global_log_start, ())
    log_end = chosen[-1].end_offset + 1
    log_start = max(global_log_start, chosen[0].start_offset)
    lineage = epochs_within(whole_lineage(finished(segments), state.lineage), log_start, log_end - 1)
    return RestoredPartition(partition, tuple(chosen), log_start, log_end, lineage, tuple(following))


def _without_overlaps(coverage: Coverage, global_log_start: int) -> list[RestoredSegment]:
    """Return the ranges at or above the global log start, each offset in one of them only."""
    segments: list[RestoredSegment] = []
    reached = 0
    for covered in coverage.ranges:
        start = max(covered.start_offset, reached)
        reached = covered.end_offset + 1
        if start <= covered.end_offset and covered.end_offset >= global_log_start:
            segments.append(RestoredSegment(covered.segment, start, covered.end_offset))
    return segments


def _chosen(
    segments: Sequence[RestoredSegment], storage: RemoteStorageManager, request: RestoreRequest
) -> tuple[int, int]:
    """Return the range of indexes in `segments` (end exclusive) that is requested."""
    begin, end = 0, len(segments)
    if request.from_offset is not None:
        begin = next((i for i, each in enumerate(segments) if each.end_offset >= request.from_offset), end)
    if request.to_offset is not None:
        end = next((i for i, each in enumerate(segments) if each.start_offset >= request.to_offset), end)
    if request.from_timestamp is not None:
        late = (i for i, each in enumerate(segments) if each.metadata.max_timestamp >= request.from_timestamp)
        begin = max(begin, next(late, end))
    if request.to_timestamp is not None:
        end = min(end, _end_by_time(segments, begin, storage, request.to_timestamp))
    transactions = StoredTransactions(segments, storage)
    while begin < end < len(segments) and transactions.at_end_of(end - 1):
        end += 1
    return begin, max(begin, end)


def _end_by_time(
    segments: Sequence[RestoredSegment], begin: int, storage: RemoteStorageManager, to_timestamp: int
) -> int:
    """Return the index after the last segment, from `begin` on, with a record before `to_timestamp`."""
    reached = False
    for i in range(begin, len(segments)):
        reached = reached or segments[i].metadata.max_timestamp >= to_timestamp
        if not reached:
            continue
        first = _first_timestamp(segments[i], storage)
        if first is None or first >= to_timestamp:
            return i if first is not None else i + 1
    return len(segments)


def _first_timestamp(segment: RestoredSegment, storage: RemoteStorageManager) -> int | None:
    """Return the smallest timestamp (ms) of the segment, -1 if it has none; None if it has no manifest."""
    raw = index_of(segment, IndexKind.MANIFEST, storage)
    if raw is None:
        return None
    known = Manifest.parse(raw, str(segment.metadata.segment_id)).first_timestamp
    return _first_of_batches(segment.metadata, storage) if known is None else known


def _first_of_batches(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> int | None:
    """Return the same by the segment's batches, for a manifest that was not made by reading them."""
    builder = RemoteIndexBuilder(segment, object_name=str(segment.segment_id))
    for _, table in checked_batches(segment, fetch_whole(segment, storage)):
        builder.append(table)
    return Manifest.parse(builder.indexes()[IndexKind.MANIFEST], str(segment.segment_id)).first_timestamp


def _undecided(restored: RestoredPartition, storage: RemoteStorageManager) -> Iterable[Finding]:
    """Yield the transactions whose outcome the store does not show."""
    transactions = StoredTransactions(restored.segments, storage)
    if (first := transactions.first_undecided()) is not None:
        message = (
            f"the transaction from offset {first} on has no end in the store: readers of committed records get "
            "nothing from there on; if the topic has a new id, or the target is a running cluster, the restore ends "
            "before it"
        )
        yield Finding(str(restored.topic_id_partition), message)
    for lost in transactions.lost_in_gaps():
        message = (
            f"whether the transaction of producer {lost.producer_id} from offset {lost.first_offset} on was committed "
            f"is in what is missing before offset {lost.last_offset + 1}: its records are left out of a running "
            "cluster, and a restore into a directory is refused"
        )
        yield Finding(str(restored.topic_id_partition), message)


def _gaps(restored: RestoredPartition, state: PartitionState, request: RestoreRequest) -> Iterable[Finding]:
    """Yield the ranges of offsets that are missing between the global log start, the first segment, and the others."""
    reached = restored.first_offset
    if state.log_start_offset is not None and request.from_timestamp is None:
        reached = min(reached, max(state.log_start_offset, request.from_offset or 0))
    for segment in restored.segments:
        if segment.start_offset > reached:
            missing = f"offsets {reached} to {segment.start_offset - 1} are missing"
            yield Finding(str(restored.topic_id_partition), missing)
        reached = segment.end_offset + 1


def _without_segments(partition: TopicIdPartition, log_start: int, request: RestoreRequest) -> Iterable[Finding]:
    """Yield a finding if `partition` has no known segment: none was ever finished, or all are lost or expired."""
    if request.to_offset is not None and request.to_offset <= log_start:
        return
    message = "the metadata know no segment of it, and nothing of it ever expired: its segments are lost or unknown"
    if log_start:
        message = (
            f"the metadata know no segment of it. Its records before offset {log_start} expired or were deleted; if "
            "there were segments after it, they are lost or unknown"
        )
    yield Finding(str(partition), message)


def _holes(numbers: Set[int], request: RestoreRequest) -> Iterable[Finding]:
    """Yield the partitions that must have existed, or that were requested, of which the store never had anything."""
    expected = request.partitions or range(max(numbers))
    for number in sorted(set(expected) - numbers)[:NAMED_AT_MOST]:
        yield Finding(f"{request.topic}-{number}", "neither the store nor the metadata have anything of it")


@dataclass(frozen=True, slots=True)
class RemoteLogRestores:
    """Plans and executes restores over an open `context`; each is documented where it is implemented."""

    context: RemoteLogContext

    def plan(self, request: RestoreRequest) -> RestorePlan:
        """Return what a restore would restore; see plan_restore.

        Offsets of a partition that Kafka itself tiers are gaps too, as far as the source has its local log.
        """
        plan = plan_restore(self.context.segments, self.context.leases, self.context.storage, request)
        gaps, notices = self._tiered_by_kafka([restored.topic_id_partition for restored in plan.partitions])
        return replace(plan, gaps=(*plan.gaps, *gaps), notices=(*plan.notices, *notices))

    def _tiered_by_kafka(self, partitions: Sequence[TopicIdPartition]) -> tuple[list[Finding], list[Finding]]:
        """Return a gap for each of `partitions` that Kafka tiers, and a notice if brokers do not say so."""
        message = "{}. Records in Kafka's own remote tier are not restored"
        try:
            logs = list(self._local_logs(partitions))
        except (SourceClusterError, ConfigurationError) as error:
            unknown = f"it is unknown whether Kafka itself tiers it, as its brokers cannot be asked: {error}"
            return [], [Finding(str(partitions[0]), message.format(unknown))]
        tiered = ((log.topic_id_partition, log.tiered_by_kafka) for log in logs if log.tiered_by_kafka is not None)
        return [Finding(str(partition), message.format(why)) for partition, why in tiered], []

    def _local_logs(self, partitions: Sequence[TopicIdPartition]) -> Iterator[PartitionLog]:
        """Look at those of `partitions` that can be looked at: a restore does not need them.

        Raises SourceClusterError and ConfigurationError if brokers cannot be asked.
        """
        source = self.context.source
        if partitions and isinstance(source, BulkLookup):
            # All together: brokers are often down when their logs are lost, and are waited for once.
            found = source.partitions_of(partitions, seconds=BROKERS_SECONDS).values()
            yield from (log for log in found if isinstance(log, PartitionLog))
            return
        for partition in partitions:
            with suppress(TieredStorageError, OSError):
                log = self.context.local_log(partition)
                if log is not None:
                    yield log

    def to_directory(
        self,
        plan: RestorePlan,
        target: DirectoryTarget,
        *,
        validation: Validation = Validation.SIZES,
        allow_gaps: bool = False,
        workers: int = 2,
        on_moved: OnMoved = unreported,
    ) -> list[RestoredDirectory]:
        """Restore `plan` as files of a broker; see restore_to_directory.

        Raises ConfigurationError for a directory inside the store or another place of ours, or around one.
        """
        if found := overlaps(self.context.settings, target.root, str(target.root)):
            raise ConfigurationError("; ".join(found))
        return restore_to_directory(
            plan,
            self.context.storage,
            target,
            validation=validation,
            allow_gaps=allow_gaps,
            workers=workers,
            on_moved=on_moved,
            limit=read_back_limit(self.context.settings),
        )

    def to_cluster(
        self,
        plan: RestorePlan,
        target: ClusterTarget,
        *,
        validation: Validation = Validation.SIZES,
        allow_gaps: bool = False,
        on_moved: OnMoved = unreported,
    ) -> ClusterReport:
        """Restore `plan` as records in a running cluster; see restore_to_cluster."""
        from tiered_storage.remote_log.restore.cluster import restore_to_cluster  # noqa: PLC0415 -- a Kafka client

        return restore_to_cluster(
            plan,
            self.context.storage,
            target,
            validation=validation,
            allow_gaps=allow_gaps,
            on_moved=on_moved,
            limit=read_back_limit(self.context.settings),
        )
