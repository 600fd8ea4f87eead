"""The content of a partition at one moment: which offsets are in which tier, and which leader wrote them."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from tiered_storage.errors import (
    DivergingEpochError,
    FencedLeaderEpochError,
    InvalidLogDirectoryError,
    OffsetOutOfRangeError,
    RemoteObjectNotFoundError,
    UnknownLeaderEpochError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, end_offset_for
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import agreed_end, merged, whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import LEADER_EPOCH_UNKNOWN, SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline, ReadTiming
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool
from tiered_storage.remote_log.read.read_values import FetchEpochs
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage.remote_log.source.segment_source import SegmentSource

NO_REMOTE = Coverage(())


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition at one moment. Ends of offsets are exclusive."""

    partition: TopicIdPartition
    local: PartitionLog | None
    coverage: Coverage
    global_log_start: int
    lineage: tuple[EpochEntry, ...]
    undecided_from: int | None = None
    """The start of the first transaction without a visible end; None: there is none, or it was not searched for."""
    is_log_start_known: bool = False
    """Whether the global log start was ever set: then offsets missing after it were lost, and are never skipped."""
    hidden: InvalidLogDirectoryError | None = None
    """Why the local tier could not be read, although there may be one; None: it could, or there is none."""
    copies_under_way: tuple[tuple[int, int], ...] = ()
    """The first and last offsets of segments that are being copied, or whose copy has not ended well."""
    _remote_ends: array[int] = field(init=False, repr=False, compare=False)
    """The last offset of each remote range, contiguous in memory: a look-up among 100,000 reads a few cache lines."""

    def __post_init__(self) -> None:
        ends = array("q", (covered.end_offset for covered in self.coverage.ranges))
        object.__setattr__(self, "_remote_ends", ends)

    @property
    def log_start_offset(self) -> int:
        """The first readable offset, in either tier, unless it was lost."""
        if self.is_log_start_known:
            return self.global_log_start
        starts = [covered.start_offset for covered in self.coverage.ranges[:1]]
        if self.local is not None:
            starts.append(self.local.log_start_offset)
        return max(self.global_log_start, min(starts, default=0))

    @property
    def remote_end(self) -> int:
        """The offset after the last remote one; 0 if nothing is remote."""
        return 0 if self.coverage.end_offset is None else self.coverage.end_offset + 1

    def may_become_remote(self, start_offset: int, end_offset: int) -> bool:
        """Return whether any offset from `start_offset` to `end_offset` (exclusive) is being copied."""
        return any(first < end_offset and last >= start_offset for first, last in self.copies_under_way)

    @property
    def local_start(self) -> int:
        """The first local offset; the log's end if nothing is local."""
        if self.local is None:
            return self.end_offset(Isolation.READ_UNCOMMITTED)
        return max(self.global_log_start, self.local.log_start_offset)

    def end_offset(self, isolation: Isolation) -> int:
        """Return the offset after the last one that a reader may see; all remote offsets are stable."""
        local_end = 0
        committed = isolation is Isolation.READ_COMMITTED
        if self.local is not None:
            local_end = self.local.last_stable_offset if committed else self.local.readable_end
        end = max(self.remote_end, local_end)
        if committed and self.undecided_from is not None:
            end = min(end, self.undecided_from)
        return max(self.log_start_offset, end)

    def check_range(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError if `offset` is outside of the log; its end is in range.

        As in a broker, uncommitted offsets are in range for every reader; a read_committed one gets no records there.
        Raises the error of an unreadable local tier if that might have the offset.
        """
        start, end = self.log_start_offset, self.end_offset(Isolation.READ_UNCOMMITTED)
        if not start <= offset <= end:
            self.ensure_not_hidden(offset)
            raise OffsetOutOfRangeError(str(self.partition), offset, start, end)

    def check_epochs(self, offset: int, epochs: FetchEpochs) -> None:
        """Raise if a broker would refuse `offset`, which is in range, to a reader that gives `epochs`.

        FencedLeaderEpochError, UnknownLeaderEpochError, and DivergingEpochError if the reader fetched records that a
        later leader truncated. Source: KIP-320; released Kafka (Partition.readRecords).
        """
        known = self.leader_epoch
        for epoch in (epochs.current_leader, epochs.last_fetched):
            if epoch is not None and epoch > known:
                raise UnknownLeaderEpochError(str(self.partition), epoch, known)
        if epochs.current_leader is not None and epochs.current_leader < known:
            raise FencedLeaderEpochError(str(self.partition), epochs.current_leader, known)
        if epochs.last_fetched is None:
            return
        found = end_offset_for(self.lineage, epochs.last_fetched, self.end_offset(Isolation.READ_UNCOMMITTED))
        if found is not None and (found[0] < epochs.last_fetched or found[1] < offset):
            raise DivergingEpochError(str(self.partition), offset, *found, known)

    def ensure_not_hidden(self, offset: int) -> None:
        """Raise the error of an unreadable local tier if that might have `offset`."""
        if self.hidden is not None and offset >= self.global_log_start:
            # The same error is raised many times, and must not keep the frames of earlier readers alive.
            raise self.hidden.with_traceback(None) from None

    def local_segment(self, offset: int) -> LocalSegment | None:
        """Return the local segment that has `offset`."""
        local = self.local
        if local is None or not local.log_start_offset <= offset < local.readable_end:
            return None
        at = bisect_right(local.segments, offset, key=lambda segment: segment.base_offset)
        return local.segments[at - 1] if at else None

    def remote_range(self, offset: int) -> CoveredRange | None:
        """Return the valid range of the remote segment that has `offset`; None if none has it."""
        at = bisect_left(self._remote_ends, offset)
        if at == len(self._remote_ends):
            return None
        found = self.coverage.ranges[at]
        return found if found.start_offset <= offset else None

    def existing_remote_range(self, offset: int) -> CoveredRange:
        """Return as `remote_range`. Raises RemoteObjectNotFoundError instead of None: a reader never skips an offset.

        Raises the error of an unreadable local tier if that might have the offset.
        """
        found = self.remote_range(offset)
        if found is None:
            self.ensure_not_hidden(offset)
            raise RemoteObjectNotFoundError(
                f"{self.partition}: no finished remote segment on the lineage holds offset {offset}, and it is not "
                "local; 'tiered-storage audit' and 'tiered-storage plan' report gaps"
            )
        return found

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last known leader; -1 if there is none."""
        return self.lineage[-1].epoch if self.lineage else LEADER_EPOCH_UNKNOWN

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the leader that wrote `offset`, or will write it; -1 if unknown."""
        at = bisect_right(self.lineage, offset, key=lambda entry: entry.start_offset)
        return self.lineage[at - 1].epoch if at else LEADER_EPOCH_UNKNOWN


def snapshot_partition(
    partition: TopicIdPartition,
    source: SegmentSource | None,
    metadata: RemoteLogMetadataManager,
    *,
    may_be_hidden: bool = False,
) -> PartitionSnapshot:
    """Take a snapshot of `partition` now; without a source, only at its remote tier.

    Raises what the source and the metadata store raise.

    If the local tier `may_be_hidden`, an unreadable one (a broker has its directory, or it is not mounted here) is not
    an error: the snapshot records it, and has the remote tier.
    """
    local, hidden = None, None
    try:
        local = None if source is None else source.partition(partition)
    except (InvalidLogDirectoryError, OSError) as error:
        if not may_be_hidden:
            raise
        hidden = error if isinstance(error, InvalidLogDirectoryError) else InvalidLogDirectoryError(str(error))
    state = metadata.partition_state(partition)
    observed = local.leader_epochs if local else ()
    if local is not None:
        local = _without_truncated_end(local, state.lineage)
    segments = list(metadata.list_remote_log_segments(partition))
    log_start = state.log_start_offset or 0
    lineage = whole_lineage(segments, merged(state.lineage, observed))
    if state.delete_state is not None:
        # Readers see nothing remote of a deleted partition, even while some of its objects still exist.
        ends = [segment.end_offset + 1 for segment in segments]
        start = log_start if local is not None else max([log_start, *ends])
        is_known = local is None
        return PartitionSnapshot(
            partition, local, NO_REMOTE, start, lineage, is_log_start_known=is_known, hidden=hidden
        )
    coverage = Coverage.of(segments, lineage) if segments else NO_REMOTE
    is_known = state.log_start_offset is not None
    under_way = tuple(
        (each.start_offset, each.end_offset) for each in segments if each.state is SegmentState.COPY_SEGMENT_STARTED
    )
    return PartitionSnapshot(
        partition,
        local,
        coverage,
        log_start,
        lineage,
        is_log_start_known=is_known,
        hidden=hidden,
        copies_under_way=under_way,
    )


def _without_truncated_end(log: PartitionLog, known: tuple[EpochEntry, ...]) -> PartitionLog:
    """Return an outdated replica's log without the end that a later leader, unknown to it, truncated.

    Without that end it does not show which earlier transactions were decided, so nothing in it counts as stable.
    """
    agreed = agreed_end(known, log.leader_epochs, log.readable_end)
    if agreed >= log.readable_end:
        return log
    end = max(agreed, log.log_start_offset)
    return replace(log, last_stable_offset=log.log_start_offset, high_watermark=end)


MOST_SEGMENTS = 200_000
"""The most segments to keep over all partitions, about 1 KB each; the last used partition is always kept."""
AGE_PER_SNAPSHOT = 20
"""A snapshot stays fresh for this many times as long as it took to take, a twentieth of the time at most.

The wait for a thread counts too, up to MOST_SECONDS_FOR_WAITING of freshness: when very many partitions are read, each
would otherwise be outdated before its reader comes back, and the threads would do nothing but look.
"""
MOST_SECONDS_FOR_WAITING = 10.0


@dataclass(frozen=True, slots=True)
class _Seen:
    snapshot: PartitionSnapshot
    fresh_until: float
    next_at: float
    """The earliest time (seconds) of the next snapshot: as long after this one as this one took."""

    @property
    def segments(self) -> int:
        local = 0 if self.snapshot.local is None else len(self.snapshot.local.segments)
        return 1 + len(self.snapshot.coverage.ranges) + local


class PartitionSnapshots:
    """Cached snapshots of partitions; concurrent requests share one. Thread-safe."""

    def __init__(
        self,
        take: Callable[[TopicIdPartition], PartitionSnapshot],
        pool: ReaderPool,
        max_age_ms: int,
        timing: ReadTiming,
        most_segments: int = MOST_SEGMENTS,
    ) -> None:
        """Call `take` on the threads of `pool` to replace snapshots older than `max_age_ms`."""
        self._take = take
        self._pool = pool
        self._max_age = max_age_ms / 1000
        self._timing = timing
        self._most_segments = most_segments
        self._lock = threading.Lock()
        self._seen: OrderedDict[TopicIdPartition, _Seen] = OrderedDict()
        self._held = 0
        """The segments of all that were seen: to count them each time would take longer than a look-up."""
        self._under_way: dict[TopicIdPartition, Future[PartitionSnapshot]] = {}

    def fresh(self, partition: TopicIdPartition) -> PartitionSnapshot | None:
        """Return the cached snapshot if it is fresh."""
        with self._lock:
            seen = self._seen.get(partition)
            if seen is None or self._timing.now() > seen.fresh_until:
                return None
            self._seen.move_to_end(partition)
            return seen.snapshot

    async def get(self, partition: TopicIdPartition, deadline: FetchDeadline) -> PartitionSnapshot:
        """Return a fresh snapshot. Raises what `take` raises, and ReadTimedOutError."""
        known = self.fresh(partition)
        return await deadline.outcome(self._begin(partition), str(partition)) if known is None else known

    async def refreshed(self, partition: TopicIdPartition, deadline: FetchDeadline) -> PartitionSnapshot:
        """Return a snapshot whose taking begins after this call. Raises as `get`.

        Two snapshots are at least as far apart as the first one took, however many callers there are: one
        partition never takes more than half of a thread's time.
        """
        with self._lock:
            under_way, before = self._under_way.get(partition), self._seen.get(partition)
        earlier = None if before is None else before.snapshot
        if under_way is not None:
            earlier = await deadline.outcome(under_way, str(partition))
        seen = self._last_seen(partition)
        if seen is not None and seen.snapshot is earlier:
            await deadline.pass_until(seen.next_at, str(partition))
            seen = self._last_seen(partition)
        if seen is not None and seen.snapshot is not earlier:
            return seen.snapshot
        return await deadline.outcome(self._begin(partition), str(partition))

    def _last_seen(self, partition: TopicIdPartition) -> _Seen | None:
        with self._lock:
            return self._seen.get(partition)

    def _begin(self, partition: TopicIdPartition) -> Future[PartitionSnapshot]:
        """Return the snapshot that is being taken, or begin one."""
        with self._lock:
            under_way = self._under_way.get(partition)
            if under_way is None:
                asked_at = self._timing.now()
                under_way = self._pool.submit(lambda: self._take_now(partition, asked_at))
                self._under_way[partition] = under_way
            return under_way

    def _take_now(self, partition: TopicIdPartition, asked_at: float) -> PartitionSnapshot:
        begun = self._timing.now()
        try:
            snapshot = self._take(partition)
        except BaseException:
            with self._lock:
                self._under_way.pop(partition, None)
                self._drop(self._seen.pop(partition, None))
            raise
        now = self._timing.now()
        cost = now - begun
        for_waiting = min(AGE_PER_SNAPSHOT * (now - asked_at), MOST_SECONDS_FOR_WAITING)
        fresh_for = max(self._max_age, AGE_PER_SNAPSHOT * cost, for_waiting)
        seen = _Seen(snapshot, now + fresh_for, now + cost)
        with self._lock:
            self._under_way.pop(partition, None)
            self._drop(self._seen.pop(partition, None))
            self._seen[partition] = seen
            self._held += seen.segments
            while self._held > self._most_segments and len(self._seen) > 1:
                self._drop(self._seen.popitem(last=False)[1])
        return snapshot

    def _drop(self, seen: _Seen | None) -> None:
        self._held -= 0 if seen is None else seen.segments
