"""Take the metrics of a remote log: a snapshot of the metadata, then one of the local logs.

The metadata add up the segments themselves; the segments of a partition are listed only where the sums leave a doubt.
The metadata come first: stable ends only rise, so a copy that is committed meanwhile violates no rule.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.enabling.broker_limits import lowered_limits
from tiered_storage.remote_log.enabling.retention_margin import margin_by_age, margin_by_size, write_rate
from tiered_storage.remote_log.lineage import merged, whole_lineage
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import SegmentTotals
from tiered_storage.remote_log.metrics.partition_metrics import (
    BrokerRetention,
    CopyLag,
    PartitionMetrics,
    RemoteLogMetrics,
    SegmentMetrics,
    TierOffsets,
)
from tiered_storage.remote_log.metrics.samples import Sample, SampleFile, Samples
from tiered_storage.remote_log.model import PartitionState, SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition, UnsegmentedLog
from tiered_storage.remote_log.source.segment_source import configured_partitions, first_timestamp
from tiered_storage.remote_log.tiering_policy import Decisions, TieringPolicy

if TYPE_CHECKING:
    from tiered_storage.remote_log.context import RemoteLogContext

_MINUTE_MS = 60_000
_GOLDEN_RATIO = 0.618033988749895
"""Multiples of it, without their whole part, are spread evenly over 0 to 1."""
MOST_LISTED = 100
"""How many partitions one snapshot lists the segments of, because the sums leave a doubt."""


def take_metrics(
    context: RemoteLogContext, samples: Samples | None = None, monotonic: Callable[[], float] = time.monotonic
) -> RemoteLogMetrics:
    """Take a snapshot now. `samples` are those of earlier ones, which make it cheaper, and know more partitions.

    Raises what the metadata store raises. Local logs that cannot be read are named in the metrics.
    """
    return _Snapshot(context, Samples() if samples is None else samples, monotonic).take()


class Snapshots:
    """Takes snapshots of `context`, each of which goes on where the last one ended, also one of another process.

    Without `keeps_samples`, what they learn is for this process only.
    """

    def __init__(self, context: RemoteLogContext, *, keeps_samples: bool = True) -> None:
        self._context = context
        self._keeps_samples = keeps_samples
        self._file = SampleFile(context.work)

    def take(self) -> RemoteLogMetrics:
        """Take one now. Raises as take_metrics."""
        found = take_metrics(self._context, self._file.read())
        if self._keeps_samples:
            self._file.keep()
        return found


class _Snapshot:
    def __init__(self, context: RemoteLogContext, samples: Samples, monotonic: Callable[[], float]) -> None:
        self._context = context
        self._monotonic = monotonic
        self._begun = monotonic()
        self._now = context.clock()
        self._samples = samples
        samples.begin()
        self._lists_left = MOST_LISTED
        self._limited_by_size: list[tuple[PartitionLog, UnsegmentedLog, TieringPolicy]] = []
        """The copied logs of a cluster whose brokers delete by size."""
        self._totals: Mapping[TopicIdPartition, _Totals] = _by_partition(context.segments.segment_totals())
        self._sized_ms = self._passed_ms()
        self._states = context.segments.partition_states()
        self._failures = _failures(context)
        self._decisions = Decisions(context.topics.list(), context.settings)

    def _passed_ms(self) -> int:
        return round(1000 * (self._monotonic() - self._begun))

    def take(self) -> RemoteLogMetrics:
        found: dict[TopicIdPartition, PartitionMetrics] = {}
        unreadable = dict[tuple[str, int | None], str]()
        known = {**self._totals, **self._states}
        logs, problem = self._logs(known)
        try:
            for log in self._in_turn(logs):
                if log.is_internal:
                    continue
                if isinstance(log, UnreadablePartition):
                    if self._decisions.is_wanted(log.topic):
                        unreadable[log.topic, log.number] = log.reason
                elif (metrics := self._local(log)) is not None:
                    found[log.topic_id_partition] = metrics
        except TieredStorageError as error:
            problem = str(error)
        self._ask_rates(found)
        for partition in known:
            if partition not in found:
                why = unreadable.pop((partition.topic, partition.partition), None)
                found[partition] = replace(self._remote(partition), problem=why)
        for (topic, number), reason in unreadable.items():
            nobody = TopicIdPartition("", "", -1 if number is None else number, topic)
            found[nobody] = PartitionMetrics(nobody, TierOffsets(), SegmentMetrics(), problem=reason)
        in_order = sorted(found.values(), key=lambda each: (each.partition.topic, each.partition))
        if problem is None:
            self._samples.forget_others(found)
        return RemoteLogMetrics(self._now, self._passed_ms(), tuple(in_order), problem, self._sized_ms)

    def _logs(self, known: Collection[TopicIdPartition]) -> tuple[list[PartitionLog | UnreadablePartition], str | None]:
        """Return the local logs, and why these are not all; None if they are."""
        found: list[PartitionLog | UnreadablePartition] = []
        try:
            logs = configured_partitions(self._context.source)
            # No comprehension: what was found before an error counts.
            for log in LostIdentities(known, self._context.segments).recognised(logs):
                found.append(log)  # noqa: PERF402
        except TieredStorageError as error:
            return found, str(error)
        return found, None

    def _in_turn(self, logs: list[PartitionLog | UnreadablePartition]) -> Iterator[PartitionLog | UnreadablePartition]:
        """Yield `logs` from another place on at each moment.

        The first ones get what one snapshot may read. So all get it in the end, also in runs that share no samples.
        """
        begin = int(len(logs) * (self._now / _MINUTE_MS * _GOLDEN_RATIO % 1))
        yield from logs[begin:]
        yield from logs[:begin]

    def _remote(self, partition: TopicIdPartition) -> PartitionMetrics:
        totals = self._totals.get(partition, _NOTHING)
        start, end = totals.remote_range
        log_start = self._states.get(partition, _NO_STATE).log_start_offset
        offsets = TierOffsets(remote_start=start, remote_end=end, log_start=log_start)
        return PartitionMetrics(partition, offsets, self._segments(partition, totals))

    def _segments(self, partition: TopicIdPartition, totals: _Totals) -> SegmentMetrics:
        failed, attempts = self._failures.get(partition, (0, 0))
        due = self._now - self._context.settings.copy_stuck_after_ms
        stuck = 0
        if totals.oldest_unfinished is not None and totals.oldest_unfinished < due:
            begun = self._context.segments.list_remote_log_segments(partition)
            stuck = sum(
                each.state is SegmentState.COPY_SEGMENT_STARTED and each.event_timestamp < due for each in begun
            )
        return replace(totals.metrics, stuck=stuck, failed_deletions=failed, deletion_attempts=attempts)

    def _local(self, log: PartitionLog) -> PartitionMetrics | None:
        """Return the metrics of a partition with a local log; None if it is neither tiered nor remote."""
        partition = log.topic_id_partition
        remote, problem, policy = self._remote(partition), None, None
        try:
            policy = self._decisions.of(log)
        except TieredStorageError as error:
            problem = str(error)
        is_copied = policy is not None and policy.copies
        state = self._states.get(partition, _NO_STATE)
        if state.delete_state is not None:
            return remote
        if not is_copied and problem is None and partition not in self._totals:
            return None
        offsets = self._offsets(log, remote.offsets)
        if offsets.violated and self._lists_left > 0:
            self._lists_left -= 1
            log = self._again(log)
            offsets = self._offsets(log, remote.offsets, exactly=True)
        found = replace(remote, offsets=offsets, violated=offsets.violated, problem=problem)
        if policy is None or not policy.copies:
            return found
        try:
            lag, tail_size = self._lag(log, offsets)
            found = replace(
                found,
                lag=lag,
                is_lag_unknown=lag is None,
                tail_size=tail_size,
                retention=self._retention(log, policy),
            )
        except (TieredStorageError, OSError) as error:
            return replace(found, problem=str(error))
        if log.unsegmented is not None and log.configs is not None and log.configs.retention_bytes >= 0:
            self._limited_by_size.append((log, log.unsegmented, policy))
        return replace(
            found,
            used_percent=_percent(
                None if tail_size is None else found.segments.remote_size + tail_size, policy.settings.retention_bytes
            ),
            local_used_percent=_percent(_local_size(log), policy.settings.local_retention_bytes),
        )

    def _retention(self, log: PartitionLog, policy: TieringPolicy) -> BrokerRetention | None:
        """Return what the brokers may delete of a log, as far as its rate is known where a size limits it."""
        configs, settings = log.configs, self._context.settings
        if configs is None:
            return None
        margin, lowered = margin_by_age(configs, policy.settings), tuple(lowered_limits(policy, settings, configs))
        least = settings.enable_min_retention_margin_ms
        if log.unsegmented is not None and configs.retention_bytes >= 0:
            rate = self._samples.rate(log.topic_id_partition, self._now)
            by_size = None if rate is None else margin_by_size(configs, policy.settings, rate)
            margin = min((each for each in (margin, by_size) if each is not None), default=None)
            if rate is None and (margin is None or margin >= least):
                # It may be less by size.
                return BrokerRetention(lowered=lowered)
        return BrokerRetention(margin, margin is not None and margin < least, lowered)

    def _ask_rates(self, found: dict[TopicIdPartition, PartitionMetrics]) -> None:
        """Ask how fast logs are written that a size limits, first of those asked longest ago; complete their margins.

        That takes requests, so a snapshot asks only of some.
        """
        asked_at = self._samples.asked_at
        for log, unsegmented, policy in sorted(
            self._limited_by_size, key=lambda each: asked_at(each[0].topic_id_partition)
        ):
            if self._samples.rates_left <= 0:
                return
            partition = log.topic_id_partition
            try:
                self._samples.ask_rate(partition, self._now, partial(write_rate, log, unsegmented, self._now))
                found[partition] = replace(found[partition], retention=self._retention(log, policy))
            except (TieredStorageError, OSError) as error:
                found[partition] = replace(found[partition], problem=str(error))

    def _again(self, log: PartitionLog) -> PartitionLog:
        """Return the log as it is now: answers that came one after the other may have contradicted each other."""
        with suppress(TieredStorageError, OSError):
            return self._context.source.partition(log.topic_id_partition) or log
        return log

    def _offsets(self, log: PartitionLog, remote: TierOffsets, *, exactly: bool = False) -> TierOffsets:
        """Return the offsets of both tiers; the remote ones along the lineage where a later leader may matter."""
        partition = log.topic_id_partition
        start, end = remote.remote_start, remote.remote_end
        if end is not None and (exactly or self._is_contradicted(log, end)):
            segments = list(self._context.segments.list_remote_log_segments(partition))
            known = merged(self._states.get(partition, _NO_STATE).lineage, log.leader_epochs)
            ranges = Coverage.of(segments, whole_lineage(segments, known)).ranges
            start, end = (ranges[0].start_offset, ranges[-1].end_offset + 1) if ranges else (None, None)
        return replace(
            remote,
            local_start=log.log_start_offset,
            stable_end=log.last_stable_offset,
            local_end=log.readable_end,
            remote_start=start,
            remote_end=end,
        )

    def _is_contradicted(self, log: PartitionLog, remote_end: int) -> bool:
        """Return whether a leader after the last remote one began below the remote end: it truncated the rest."""
        last = self._totals[log.topic_id_partition].last_epoch
        return any(
            entry.start_offset < remote_end and (last is None or entry.epoch > last) for entry in log.leader_epochs
        )

    def _lag(self, log: PartitionLog, offsets: TierOffsets) -> tuple[CopyLag | None, int | None]:
        """Return the lag of a log, and the bytes of all its stable records that are not remote; None: not known."""
        start = max(offsets.next_copied or 0, log.log_start_offset)
        if start >= log.last_stable_offset:
            return CopyLag(), 0
        if log.unsegmented is not None:
            return self._unsegmented_lag(log, log.unsegmented, start)
        due = [
            each
            for each in log.closed_segments
            if each.end_offset is not None and start <= each.end_offset < log.last_stable_offset
        ]
        tail = sum(each.size for each in log.segments if each.end_offset is None or each.end_offset >= start)
        if not due:
            return CopyLag(), tail
        sample = self._samples.get(
            log.topic_id_partition,
            due[0].base_offset,
            lambda: Sample(due[0].base_offset, first_timestamp(open_segment(due[0].location))),
        )
        return CopyLag(len(due), sum(each.size for each in due), self._age(sample)), tail

    def _unsegmented_lag(
        self, log: PartitionLog, unsegmented: UnsegmentedLog, start: int
    ) -> tuple[CopyLag | None, int | None]:
        """Return both of a log whose segments are unseen: by the sizes in the leader's files, or estimated."""
        partition = log.topic_id_partition
        sample = self._samples.get(
            partition, start, lambda: Sample(start, unsegmented.timestamp_at(start), unsegmented.bytes_an_offset(start))
        )
        density = (0.0 if sample is None else sample.bytes_an_offset) or self._totals.get(partition, _NOTHING).density
        size = int(density * (log.last_stable_offset - start))
        tail_size = size if sample is not None or density else None
        age, whole = self._age(sample), unsegmented.rules.segment_bytes
        if unsegmented.closed_sizes is not None and unsegmented.elsewhere is None:
            sizes = unsegmented.closed_sizes(start, log.last_stable_offset - 1)
        else:
            sizes = (whole,) * (size // whole)
        if sizes:
            return CopyLag(len(sizes), sum(sizes), age), tail_size
        if sample is None:
            # Less than a segment lags only once it is old.
            return None, tail_size
        if age is not None and age > unsegmented.rules.tail_ms:
            return CopyLag(1, size, age), tail_size
        return CopyLag(), tail_size

    def _age(self, sample: Sample | None) -> int | None:
        if sample is None or sample.timestamp is None or sample.timestamp < 0:
            return None
        return max(0, self._now - sample.timestamp)


def _percent(size: int | None, limit: int) -> int | None:
    """Return how much of a limit (bytes) is taken, in whole percent, as Kafka: 0 without a limit."""
    if limit <= 0:
        return 0
    return None if size is None else 100 * size // limit


def _local_size(log: PartitionLog) -> int | None:
    return sum(each.size for each in log.segments) if log.unsegmented is None else log.unsegmented.size_on_disk


@dataclass(frozen=True, slots=True)
class _Totals:
    """The totals of one partition's segments, put together."""

    metrics: SegmentMetrics = field(default_factory=SegmentMetrics)
    remote_range: tuple[int | None, int | None] = (None, None)
    density: float = 0.0
    last_epoch: int | None = None
    oldest_unfinished: int | None = None

    @classmethod
    def of(cls, totals: list[SegmentTotals]) -> _Totals:
        def those(*states: SegmentState, finished: bool | None = None) -> Iterator[SegmentTotals]:
            return (each for each in totals if each.state in states and finished in {None, each.was_finished})

        remote = next(those(SegmentState.COPY_SEGMENT_FINISHED), None)
        begun = next(those(SegmentState.COPY_SEGMENT_STARTED), None)
        deleting = list(those(SegmentState.DELETE_SEGMENT_STARTED))
        copied = list(those(*SegmentState, finished=True))
        metrics = SegmentMetrics(
            remote=0 if remote is None else remote.count,
            remote_size=0 if remote is None else remote.size,
            copied=sum(each.count for each in copied),
            copied_size=sum(each.size for each in copied),
            ended=sum(each.count for each in deleting if not each.was_finished),
            unfinished=0 if begun is None else begun.count,
            deleting=sum(each.count for each in deleting),
            deleting_size=sum(each.size for each in deleting),
            deleted=sum(each.count for each in those(SegmentState.DELETE_SEGMENT_FINISHED, finished=True)),
        )
        return cls(
            metrics,
            (None, None) if remote is None else (remote.start_offset, remote.end_offset + 1),
            0.0 if remote is None else remote.size / max(1, remote.offsets),
            None if remote is None else remote.last_epoch,
            None if begun is None else begun.oldest_event_timestamp,
        )


_NOTHING, _NO_STATE = _Totals(), PartitionState()


def _by_partition(totals: Iterable[SegmentTotals]) -> dict[TopicIdPartition, _Totals]:
    found: dict[TopicIdPartition, list[SegmentTotals]] = defaultdict(list)
    for each in totals:
        found[each.topic_id_partition].append(each)
    return {partition: _Totals.of(of_partition) for partition, of_partition in found.items()}


def _failures(context: RemoteLogContext) -> dict[TopicIdPartition, tuple[int, int]]:
    """Return how many deletions of a partition's objects failed, and in how many attempts."""
    found: dict[TopicIdPartition, tuple[int, int]] = {}
    for each in context.store.safety.failures():
        count, attempts = found.get(each.segment_id.topic_id_partition, (0, 0))
        found[each.segment_id.topic_id_partition] = (count + 1, attempts + each.attempts)
    return found
