"""What there is of a partition at one moment: which offsets, in which tier, written by which leader."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

from tiered_storage.errors import (
    DivergingEpochError,
    FencedLeaderEpochError,
    InvalidLogDirectoryError,
    OffsetOutOfRangeError,
    RemoteObjectNotFoundError,
    UnknownLeaderEpochError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.leader_epoch_cache import end_offset_for
from tiered_storage.kafka_log.log.log_read import Isolation
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import agreed_end, merged, whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import LEADER_EPOCH_UNKNOWN, TopicIdPartition
from tiered_storage.remote_log.read.read_values import FetchEpochs
from tiered_storage.remote_log.source.segment_source import LocalSegment, PartitionLog, SegmentSource

NO_REMOTE = Coverage(())


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as it was when it was looked at. Ends of offsets are exclusive."""

    partition: TopicIdPartition
    local: PartitionLog | None
    coverage: Coverage
    our_log_start: int
    lineage: tuple[EpochEntry, ...]
    undecided_from: int | None = None
    """Where the first transaction begins of which nobody sees the end; None: there is none, or nobody looked."""
    is_log_start_told: bool = False
    """Whether our log start was ever decided: what is missing above it was lost, and is never passed over."""
    hidden: InvalidLogDirectoryError | None = None
    """Why the local tier could not be looked at, though there may be one; None: it could, or there is none."""
    _remote_ends: array[int] = field(init=False, repr=False, compare=False)
    """The last offset of each remote range: side by side in memory a look-up among 100,000 touches a few lines."""

    def __post_init__(self) -> None:
        ends = array("q", (covered.end_offset for covered in self.coverage.ranges))
        object.__setattr__(self, "_remote_ends", ends)

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, in either tier, unless it was lost."""
        if self.is_log_start_told:
            return self.our_log_start
        starts = [covered.start_offset for covered in self.coverage.ranges[:1]]
        if self.local is not None:
            starts.append(self.local.log_start_offset)
        return max(self.our_log_start, min(starts, default=0))

    @property
    def remote_end(self) -> int:
        """The offset behind the last one that is remote; 0 where nothing is."""
        return 0 if self.coverage.end_offset is None else self.coverage.end_offset + 1

    @property
    def local_start(self) -> int:
        """The first offset that is local; the log's end where nothing is."""
        if self.local is None:
            return self.end_offset(Isolation.READ_UNCOMMITTED)
        return max(self.our_log_start, self.local.log_start_offset)

    def end_offset(self, isolation: Isolation) -> int:
        """Return the offset behind the last one that a reader is given; whatever is remote is stable."""
        local_end = 0
        committed = isolation is Isolation.READ_COMMITTED
        if self.local is not None:
            local_end = self.local.stable_offset if committed else self.local.readable_end
        end = max(self.remote_end, local_end)
        if committed and self.undecided_from is not None:
            end = min(end, self.undecided_from)
        return max(self.log_start_offset, end)

    def check_range(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError where `offset` lies outside; the end itself is inside.

        So is what is not committed yet, whoever asks, as with a broker: there is only nothing to give. Raises what
        hides the local tier where that might have the offset.
        """
        start, end = self.log_start_offset, self.end_offset(Isolation.READ_UNCOMMITTED)
        if not start <= offset <= end:
            self.ensure_not_hidden(offset)
            raise OffsetOutOfRangeError(str(self.partition), offset, start, end)

    def check_epochs(self, offset: int, epochs: FetchEpochs) -> None:
        """Raise where a broker would refuse to serve `offset`, which is in range, to a reader that names `epochs`.

        FencedLeaderEpochError, UnknownLeaderEpochError, and DivergingEpochError where the reader fetched what a later
        leader cut off. Source: KIP-320; released Kafka (Partition.readRecords).
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
        """Raise what hides the local tier, where that might have `offset`: whether it does, nobody knows then."""
        if self.hidden is not None and offset >= self.our_log_start:
            # It is raised again and again, and must not keep whoever met it before.
            raise self.hidden.with_traceback(None) from None

    def local_segment(self, offset: int) -> LocalSegment | None:
        """Return the local segment that has `offset`."""
        local = self.local
        if local is None or not local.log_start_offset <= offset < local.readable_end:
            return None
        at = bisect_right(local.segments, offset, key=lambda segment: segment.base_offset)
        return local.segments[at - 1] if at else None

    def remote_range(self, offset: int) -> CoveredRange | None:
        """Return the remote segment that has `offset`, as far as it counts."""
        at = bisect_left(self._remote_ends, offset)
        if at == len(self._remote_ends):
            return None
        found = self.coverage.ranges[at]
        return found if found.start_offset <= offset else None

    def existing_remote_range(self, offset: int) -> CoveredRange:
        """Return the same. Raises RemoteObjectNotFoundError where there is none: an offset is never passed over.

        Raises what hides the local tier where that might have the offset.
        """
        found = self.remote_range(offset)
        if found is None:
            self.ensure_not_hidden(offset)
            raise RemoteObjectNotFoundError(
                f"{self.partition}: no finished remote segment on the lineage holds offset {offset}, and it is not "
                "local; 'tiered-storage audit' and 'tiered-storage plan' tell of gaps"
            )
        return found

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last leader that is known; -1 where none is."""
        return self.lineage[-1].epoch if self.lineage else LEADER_EPOCH_UNKNOWN

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the leader that wrote `offset`, or is to write it; -1 where nobody knows."""
        at = bisect_right(self.lineage, offset, key=lambda entry: entry.start_offset)
        return self.lineage[at - 1].epoch if at else LEADER_EPOCH_UNKNOWN


def look_at(
    partition: TopicIdPartition,
    source: SegmentSource,
    metadata: RemoteLogMetadataManager,
    *,
    has_source: bool = True,
    may_be_hidden: bool = False,
) -> PartitionView:
    """Look at `partition` now. Raises what the source and the metadata store raise.

    Where the local tier `may_be_hidden`, one that cannot be read (a broker has its directory, or it is not mounted
    here) is no error: the view says so, and shows the remote tier.
    """
    local, hidden = None, None
    try:
        local = source.partition(partition) if has_source else None
    except (InvalidLogDirectoryError, OSError) as error:
        if not may_be_hidden:
            raise
        hidden = error if isinstance(error, InvalidLogDirectoryError) else InvalidLogDirectoryError(str(error))
    state = metadata.partition_state(partition)
    observed = local.leader_epochs if local else ()
    if local is not None:
        local = _up_to_what_a_later_leader_cut(local, state.lineage)
    segments = list(metadata.list_remote_log_segments(partition))
    log_start = state.log_start_offset or 0
    lineage = whole_lineage(segments, merged(state.lineage, observed))
    if state.delete_state is not None:
        # Of a partition that a person deleted nothing remote is left to read, though its objects go one by one.
        ends = [segment.end_offset + 1 for segment in segments]
        gone = log_start if local is not None else max([log_start, *ends])
        is_told = local is None
        return PartitionView(partition, local, NO_REMOTE, gone, lineage, is_log_start_told=is_told, hidden=hidden)
    coverage = Coverage.of(segments, lineage) if segments else NO_REMOTE
    is_told = state.log_start_offset is not None
    return PartitionView(partition, local, coverage, log_start, lineage, is_log_start_told=is_told, hidden=hidden)


def _up_to_what_a_later_leader_cut(log: PartitionLog, known: tuple[EpochEntry, ...]) -> PartitionLog:
    """Return an older replica's log without what a leader that it never heard of has cut off.

    Which transactions were decided in front of that it cannot tell any more: nothing of it is stable by itself.
    """
    agreed = agreed_end(known, log.leader_epochs, log.readable_end)
    if agreed >= log.readable_end:
        return log
    end = max(agreed, log.log_start_offset)
    return replace(log, stable_offset=log.log_start_offset, high_watermark=end)
