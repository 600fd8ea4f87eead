"""The end of a copy run: makes whole copies visible to readers, in order, partition by partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tiered_storage.errors import LeaseLostError, OutdatedMetadataError, SourceClusterError, TieredStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome
from tiered_storage.remote_log.lineage import on_lineage, trusted_lineage, whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, write_partition_states
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import BulkLookup, SegmentSource
from tiered_storage.remote_log.tiering_policy import refuse_log

if TYPE_CHECKING:
    from tiered_storage.clock import Clock
    from tiered_storage.remote_log.context import RemoteLogContext

_STARTED = SegmentState.COPY_SEGMENT_STARTED


def commit_copy(outcomes: Iterable[CopyOutcome], context: RemoteLogContext) -> CommitReport:
    """Make finished copies visible, partition by partition, in order, up to the first that failed.

    Checks that no newer lease exists, that the local log still has the leaders it was copied under, and that it still
    reaches as far. Marks copies after a failed one for deletion, since readers must find no gap; the next run plans
    them again. If the local log cannot be read or the store is unavailable, it decides nothing: the same commit may be
    retried. A retry never undoes what was committed. Raises MetadataUnavailableError; the report has the errors of
    single partitions.
    """
    by_partition: dict[TopicIdPartition, list[CopyOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_partition[outcome.task.metadata.topic_id_partition].append(outcome)
    commits, logs = [], _LocalLogs(context.source, list(by_partition))
    states = context.segments.partition_states_of(by_partition)
    for partition, of_partition in by_partition.items():
        of_partition.sort(key=_place)
        commits.append(_decide(partition, of_partition, states[partition], context, logs))
    _keep_in_store(commits, context)
    _write(commits, context.segments)
    done = [each.lease for each in commits if each.lost is None and each.is_decided]
    if done:
        context.leases.release_many(done)
    failed = [each for each in commits if each.why_not is not None]
    return CommitReport(
        tuple(segment for each in commits for segment in each.committed),
        tuple(Finding(str(each.partition), each.why_not or "") for each in failed),
        _findings(by_partition, lambda outcome: outcome.damages),
        _findings(by_partition, lambda outcome: outcome.notices),
        all(each.is_retriable for each in failed),
        any(each.lost is None and not each.is_decided for each in failed),
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a copy is not committed, and whether a retry may help; unless `is_final`, a retry of this same commit."""

    reason: str
    retriable: bool
    is_final: bool = True


@dataclass(slots=True)
class _Commit:
    """The updates to write for one partition, and their result."""

    lease: Lease
    committed: list[RemoteLogSegmentMetadata]
    updates: list[RemoteLogSegmentMetadataUpdate] = field(default_factory=list)
    refusal: _Refusal | None = None
    log_start: int | None = None
    lineage: tuple[EpochEntry, ...] = ()
    stored: StoredState | None = None
    lost: str | None = None

    @property
    def partition(self) -> TopicIdPartition:
        return self.lease.topic_id_partition

    @property
    def is_decided(self) -> bool:
        """Whether a retry of this commit would change nothing."""
        return self.refusal is None or self.refusal.is_final

    @property
    def why_not(self) -> str | None:
        return self.lost or (None if self.refusal is None else self.refusal.reason)

    def put_off(self, refusal: _Refusal) -> None:
        """Write nothing for now: the same commit may be retried."""
        self.updates.clear()
        self.refusal, self.log_start, self.lineage = refusal, None, ()

    @property
    def is_retriable(self) -> bool:
        return self.lost is None and (self.refusal is None or self.refusal.retriable)


@dataclass(frozen=True, slots=True)
class _Local:
    """The local log as it is now, and its known leaders."""

    log: PartitionLog
    lineage: tuple[EpochEntry, ...]


def _decide(
    partition: TopicIdPartition,
    outcomes: Sequence[CopyOutcome],
    state: PartitionState,
    context: RemoteLogContext,
    logs: _LocalLogs,
) -> _Commit:
    clock = context.clock
    known = {segment.segment_id: segment for segment in context.segments.list_remote_log_segments(partition)}
    visible = [segment for segment in known.values() if _is_visible(segment)]
    commit = _Commit(outcomes[0].task.lease, [each for each in _segments_of(outcomes, known) if _is_visible(each)])
    pending = [outcome for outcome in outcomes if not _was_visible(known.get(outcome.task.metadata.segment_id))]
    commit.updates.extend(_ended_unused(pending, known, clock))
    pending = [outcome for outcome in pending if not outcome.is_unused]
    if not pending:
        return commit
    local = _look(partition, logs, state.lineage, visible)
    finishing, commit.refusal = _committable(pending, local)
    commit.updates.extend(finishing)
    if isinstance(local, _Local):
        commit.lineage = local.lineage if local.lineage != state.lineage else ()
        if finishing and state.log_start_offset is None:
            becoming = (*visible, *(each.metadata for each in pending[: len(finishing)] if _is_known(each, known)))
            # None if a newer holder has deleted what a zombie commits; the store then rejects the zombie's lease.
            first = min(becoming, key=lambda one: one.start_offset, default=None)
            commit.log_start = None if first is None else _first_log_start(local.log, first)
        if finishing:
            log_start = state.log_start_offset if commit.log_start is None else commit.log_start
            moved = replace(state, log_start_offset=log_start, lineage=local.lineage)
            commit.stored = StoredState.of(moved, known.values())
    if commit.is_decided:
        commit.updates.extend(
            RemoteLogSegmentMetadataUpdate(segment.segment_id, SegmentState.DELETE_SEGMENT_STARTED, clock())
            for segment in _segments_of(pending[len(finishing) :], known)
            if segment.state is _STARTED
        )
    return commit


def _keep_in_store(commits: Sequence[_Commit], context: RemoteLogContext) -> None:
    """Write the state to the store first; if that fails, decide nothing of the partition."""
    for each in commits:
        if each.stored is None:
            continue
        try:
            context.leases.check(each.lease)
        except LeaseLostError as error:
            each.lost = str(error)
    changed = [(each.lease, each.stored) for each in commits if each.stored is not None and each.lost is None]
    errors = write_partition_states(context.storage, context.leases, changed, context.clock(), is_copied=True)
    for each in commits:
        refused = errors.get(each.partition)
        if isinstance(refused, OutdatedMetadataError | LeaseLostError):
            each.lost = str(refused)
        elif refused is not None:
            each.put_off(_Refusal(str(refused), retriable=refused.retriable, is_final=False))


def _write(commits: Sequence[_Commit], metadata: RemoteLogMetadataManager) -> None:
    """Write all decisions in a few transactions, global log starts first: readers must find no gap."""
    holding = [each for each in commits if each.lost is None]
    lineages = [(each.partition, each.lineage, each.lease) for each in holding if each.lineage]
    log_starts = [(each.partition, each.log_start, each.lease) for each in holding if each.log_start is not None]
    by_partition = {each.partition: each for each in holding}
    for changed, outcomes in (
        (lineages, metadata.put_lineages(lineages) if lineages else []),
        (log_starts, metadata.advance_log_start_offsets(log_starts) if log_starts else []),
    ):
        for (partition, *_), lost in zip(changed, outcomes, strict=True):
            if lost is not None:
                by_partition[partition].lost = str(lost)
    steps = [(update, each.lease) for each in holding if each.lost is None for update in each.updates]
    if not steps:
        return
    for (_, lease), outcome in zip(steps, metadata.update_remote_log_segments(steps), strict=True):
        commit = by_partition[lease.topic_id_partition]
        if isinstance(outcome, LeaseLostError):
            commit.lost = str(outcome)
        elif not isinstance(outcome, RemoteLogSegmentMetadata):
            commit.refusal = commit.refusal or _Refusal(str(outcome), retriable=False)
        elif _is_visible(outcome):
            commit.committed.append(outcome)


def _first_log_start(local: PartitionLog, first: RemoteLogSegmentMetadata) -> int:
    """Return the global log start after the first commit, whose first segment is `first`.

    Offsets missing above it are lost. It is the start of the local log, or that of `first` if the local log moved past
    it during the copy. If readers already saw `first` (rebuilt metadata without a log start), it is the smaller of the
    two: a broker's log start, which trimming moves, must not hide readable records.
    """
    if _is_visible(first):
        return min(local.log_start_offset, first.start_offset)
    return local.log_start_offset if local.log_start_offset <= first.end_offset else first.start_offset


def _segments_of(
    outcomes: Iterable[CopyOutcome], known: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    ids = (outcome.task.metadata.segment_id for outcome in outcomes)
    return [known[segment_id] for segment_id in ids if segment_id in known]


def _is_visible(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is SegmentState.COPY_SEGMENT_FINISHED


def _was_visible(segment: RemoteLogSegmentMetadata | None) -> bool:
    """Return whether an earlier commit made the segment visible; True even if it has expired since."""
    return segment is not None and (_is_visible(segment) or segment.custom_metadata is not None)


def _place(outcome: CopyOutcome) -> tuple[bool, int]:
    """Return what sorts outcomes by their offsets; if a copy ended before it rolled its segment, those are unknown."""
    return outcome.task.roll is not None and outcome.rolled is None, outcome.metadata.start_offset


def _is_known(outcome: CopyOutcome, known: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata]) -> bool:
    return outcome.task.metadata.segment_id in known


def _ended_unused(
    outcomes: Iterable[CopyOutcome], known: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata], clock: Clock
) -> Iterator[RemoteLogSegmentMetadataUpdate]:
    """Yield the steps that end the segments that the log had no records for: no object was written."""
    for segment in _segments_of([each for each in outcomes if each.is_unused], known):
        for state in (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED):
            if segment.state < state:
                yield RemoteLogSegmentMetadataUpdate(segment.segment_id, state, clock())


def _committable(
    outcomes: Iterable[CopyOutcome], local: _Local | str
) -> tuple[list[RemoteLogSegmentMetadataUpdate], _Refusal | None]:
    """Return the steps that commit `outcomes`, up to the first that cannot be committed, and why not."""
    updates: list[RemoteLogSegmentMetadataUpdate] = []
    next_offset: int | None = None
    for outcome in outcomes:
        if outcome.failure is not None:
            failed = f"{outcome.failure.error}: {outcome.failure.message}"
            return updates, _Refusal(failed, outcome.failure.retriable)
        if outcome.finished is None:
            return updates, _Refusal("the copy left no result: its worker died", retriable=True)
        if isinstance(local, str):
            return updates, _Refusal(local, retriable=True, is_final=False)
        reason = (
            _why_outdated(outcome.metadata, local)
            or _why_led_elsewhere(outcome, local)
            or _why_apart(outcome, next_offset)
        )
        if reason is not None:
            return updates, _Refusal(reason, retriable=True)
        updates.append(replace(outcome.finished, rolled=outcome.rolled))
        next_offset = outcome.metadata.end_offset + 1
    return updates, None


def _why_apart(outcome: CopyOutcome, next_offset: int | None) -> str | None:
    """Return why a segment that its copy rolled does not follow the one before, whose copy left no result."""
    order, rolled = outcome.task.roll, outcome.rolled
    if order is None or rolled is None:
        return None
    follows = (
        rolled.start_offset <= order.from_offset <= rolled.end_offset
        if next_offset is None
        else (rolled.start_offset == next_offset)
    )
    if follows:
        return None
    expected = order.from_offset if next_offset is None else next_offset
    return (
        f"offsets {rolled.start_offset} to {rolled.end_offset} were copied, but not the offsets before them from "
        f"{expected} on: the next run copies all of them"
    )


class _LocalLogs:
    """Reads the present state of local logs; of all `partitions` in one request if the source can."""

    def __init__(self, source: SegmentSource, partitions: Sequence[TopicIdPartition]) -> None:
        self._source = source
        self._partitions = partitions
        self._found: Mapping[TopicIdPartition, PartitionLog | UnreadablePartition] | None = None
        self._error: TieredStorageError | OSError | None = None

    def of(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Return the log of one of the partitions; None if it is not there. Raises as SegmentSource.partition."""
        if not isinstance(self._source, BulkLookup):
            return self._source.partition(partition)
        if self._error is not None:
            # If the cluster is out of reach, wait for it only once.
            raise self._error.with_traceback(None)
        if self._found is None:
            try:
                self._found = self._source.partitions_of(self._partitions)
            except (TieredStorageError, OSError) as error:
                self._error = error
                raise
        found = self._found.get(partition)
        if isinstance(found, UnreadablePartition):
            raise SourceClusterError(f"{partition}: {found.reason}")
        return found


def _look(
    partition: TopicIdPartition,
    logs: _LocalLogs,
    known: Sequence[EpochEntry],
    visible: Sequence[RemoteLogSegmentMetadata],
) -> _Local | str:
    """Return the local log as it is now, or why it cannot be read or trusted."""
    try:
        log = logs.of(partition)
        if log is None:
            return (
                f"{partition} is no longer among the local logs: its topic was deleted, or its logs cannot be seen. "
                "Nothing is committed or deleted: the copies stay COPY_SEGMENT_STARTED until a run sees the topic "
                "again, or 'tiered-storage delete-topic' deletes its remote log"
            )
        refuse_log(log)
        return _Local(log, whole_lineage(visible, trusted_lineage(known, log)))
    except (TieredStorageError, OSError) as error:
        return str(error)


def _why_outdated(copied: RemoteLogSegmentMetadata, local: _Local) -> str | None:
    """Return why the local log no longer matches the copy; a copy of segments since trimmed at its start is valid."""
    offsets = f"offsets {copied.start_offset} to {copied.end_offset}"
    if not on_lineage(copied, local.lineage):
        return (
            f"{offsets} were copied under leader epochs that no longer hold: the leader changed meanwhile; the next "
            "run copies them again"
        )
    if copied.end_offset >= local.log.last_stable_offset:
        return (
            f"{offsets} were copied, and the local log is now stable up to {local.log.last_stable_offset} only: it was "
            "truncated meanwhile; the next run copies what there is"
        )
    return None


def _why_led_elsewhere(outcome: CopyOutcome, local: _Local) -> str | None:
    """Return why the files that were copied are no longer the leader's: a follower's may lack what is stable now."""
    order, unsegmented = outcome.task.roll, local.log.unsegmented
    before = None if order is None else order.rules.files
    now = None if unsegmented is None else unsegmented.rules.files
    if before is None or now is None or before.broker == now.broker:
        return None
    copied = outcome.metadata
    return (
        f"offsets {copied.start_offset} to {copied.end_offset} were copied beside broker {before.broker}, and broker "
        f"{now.broker} leads by now: the next run copies them beside that one"
    )


def _findings(
    by_partition: Mapping[TopicIdPartition, list[CopyOutcome]], messages_of: Callable[[CopyOutcome], tuple[str, ...]]
) -> tuple[Finding, ...]:
    return tuple(
        Finding(str(partition), message)
        for partition, outcomes in by_partition.items()
        for outcome in outcomes
        for message in messages_of(outcome)
    )
