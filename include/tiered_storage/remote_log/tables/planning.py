"""Plan which ranges of which remote segments a query reads, each offset in only one range.

Offsets come from the metadata alone. The store is read only for these, if the query needs them:

    times       a segment is left out by its largest timestamp, in the metadata; if the query limits how far records may
                be out of order, also by its smallest timestamp, in its manifest. If the last segments of a partition
                have timestamps later than their copies, manifests also show how far the partition reaches
    committed   transaction indexes and producer snapshots show aborted and undecided transactions: from the first
                undecided record on nothing is returned
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import (
    ConfigurationError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, PartitionState, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.restore.committed import StoredTransactions, index_of
from tiered_storage.remote_log.restore.request import RestoredSegment
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery

SPLIT_BYTES = 64 << 20
"""The approximate size of a split in bytes of segments; smaller splits cost more tasks."""


@dataclass(frozen=True, slots=True)
class TableRange:
    """The offsets `start_offset` to `end_offset` (both inclusive) of one remote segment.

    `aborted` are the aborted transactions with records in it; empty unless the query is for committed records alone.
    """

    segment: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def size(self) -> int:
        """The range's share of the segment's bytes, rounded up."""
        whole = self.segment.end_offset - self.segment.start_offset + 1
        return -(-self.segment.size * (self.end_offset - self.start_offset + 1) // whole)

    def within(self, start_offset: int, end_offset: int) -> TableRange | None:
        """Return the part of the range in [`start_offset`, `end_offset`]; None if it is empty."""
        start, end = max(self.start_offset, start_offset), min(self.end_offset, end_offset)
        if start > end:
            return None
        aborted = tuple(each for each in self.aborted if each.last_offset >= start and each.first_offset <= end)
        return replace(self, start_offset=start, end_offset=end, aborted=aborted)


@dataclass(frozen=True, slots=True)
class TableSplit:
    """What one task reads: `rows` of `ranges`, in their order."""

    ranges: tuple[TableRange, ...]
    rows: RowFilter

    @property
    def size(self) -> int:
        """Approximately how many bytes of segments its ranges have."""
        return sum(each.size for each in self.ranges)


def plan_splits(ranges: Iterable[TableRange], rows: RowFilter, split_bytes: int = SPLIT_BYTES) -> Iterator[TableSplit]:
    """Yield splits of about `split_bytes` that together have each offset of `ranges` once.

    Raises ConfigurationError if `split_bytes` is less than 1.
    """
    if split_bytes < 1:
        raise ConfigurationError(f"splits of {split_bytes} bytes: give 1 or more")
    gathered: list[TableRange] = []
    size = 0
    for part in (part for each in ranges for part in _cut(each, split_bytes)):
        if gathered and size + part.size > split_bytes:
            yield TableSplit(tuple(gathered), rows)
            gathered, size = [], 0
        gathered.append(part)
        size += part.size
    if gathered:
        yield TableSplit(tuple(gathered), rows)


def _cut(whole: TableRange, most_bytes: int) -> Iterator[TableRange]:
    offsets = whole.end_offset - whole.start_offset + 1
    parts = min(-(-whole.size // most_bytes), offsets)
    for number in range(parts):
        start = whole.start_offset + offsets * number // parts
        end = whole.start_offset + offsets * (number + 1) // parts - 1
        part = whole.within(start, end)
        if part is not None:
            yield part


NAMED_AT_MOST = 20
NO_TIMESTAMP = -1
AHEAD_READ_AT_MOST = 4
"""How many of a partition's last manifests are read to find how far it reaches."""


@dataclass(frozen=True, slots=True)
class TablePartition:
    """The ranges that a query reads of one partition, in order of offset, and the offsets that are missing.

    All spans are inclusive.

    gaps         missing offsets that may have held requested records, or the ends of their transactions
    lacking      all missing offsets, in order, whatever times the query requests
    undecidable  spans from the start of a transaction to the end of the missing offsets that may include its end: the
                 transaction's records are left out

    The copied part has offsets `log_start_offset` (inclusive) to `log_end_offset` (exclusive). If only committed
    records are requested, records from `decided_end_offset` on are undecided. `reached_timestamp` (ms, -1: none) is the
    largest timestamp in the segments before that offset, whatever the query requests. If a timestamp is later than its
    segment's copy, the producer's clock was ahead. Such a segment counts by the smallest timestamp in its manifest if
    the query has an end time and the segment is one of the last few; otherwise it does not count.
    """

    topic_id_partition: TopicIdPartition
    ranges: tuple[TableRange, ...]
    gaps: tuple[tuple[int, int], ...]
    log_start_offset: int
    log_end_offset: int
    decided_end_offset: int
    reached_timestamp: int
    lacking: tuple[tuple[int, int], ...] = ()
    undecidable: tuple[tuple[int, int], ...] = ()

    def has_all(self, rows: RowFilter) -> bool:
        """Return whether readable records follow the last of `rows`; if not, later copies may add rows."""
        return rows.over_at is not None and self.reached_timestamp >= rows.over_at


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a query reads of each partition. It is also the dry run; a reader that has it needs no metadata."""

    query: TableQuery
    topic_id: str
    cluster_id: str
    partitions: tuple[TablePartition, ...]
    notices: tuple[Finding, ...] = ()

    def ranges(self) -> Iterator[TableRange]:
        """Yield the ranges of all partitions."""
        for partition in self.partitions:
            yield from partition.ranges

    def ensure_no_gaps(self) -> None:
        """Raise RemoteObjectNotFoundError if offsets are missing that the query may need."""
        gaps = [
            f"{each.topic_id_partition}: offsets {first} to {last}"
            for each in self.partitions
            for first, last in each.gaps
        ]
        if gaps:
            raise RemoteObjectNotFoundError(
                f"missing in the remote log: {'; '.join(gaps[:NAMED_AT_MOST])}: 'tiered-storage repair' copies them "
                "again if the local log still has them; allow gaps to read the rest"
            )


def plan_table(metadata: RemoteLogMetadataManager, storage: RemoteStorageManager, query: TableQuery) -> TablePlan:
    """Return what `query` reads from the store.

    Raises ConfigurationError if the store does not have the topic, has several incarnations of it, or if the topic is
    being deleted.
    """
    known = _partitions_of(metadata.list_partitions(), query)
    states = {partition: metadata.partition_state(partition) for partition in known}
    there = [partition for partition in known if states[partition].delete_state is None]
    _ensure_one_incarnation(there, query)
    topic_id = there[0].topic_id
    deleted = (each for each in known if each.topic_id == topic_id and states[each].delete_state is not None)
    notices = [Finding(str(each), "left out: it is being deleted") for each in deleted]
    wanted = [each for each in there if query.partitions is None or each.partition in query.partitions]
    partitions = tuple(
        _planned(partition, states[partition], list(metadata.list_remote_log_segments(partition)), storage, query)
        for partition in wanted
    )
    return TablePlan(query, topic_id, there[0].cluster_id, partitions, tuple(notices))


def _partitions_of(known: Sequence[TopicIdPartition], query: TableQuery) -> list[TopicIdPartition]:
    found = sorted(
        (each for each in known if each.topic == query.topic and query.topic_id in {None, each.topic_id}),
        key=lambda each: each.partition,
    )
    if not found:
        incarnation = "" if query.topic_id is None else f" with the id {query.topic_id}"
        raise ConfigurationError(
            f"nothing of topic {query.topic!r}{incarnation} was ever copied: 'tiered-storage topics list' shows the "
            "known topics"
        )
    return found


def _ensure_one_incarnation(there: Sequence[TopicIdPartition], query: TableQuery) -> None:
    if not there:
        raise ConfigurationError(
            f"{query.topic} is being deleted; 'tiered-storage undelete' brings it back while its objects exist"
        )
    incarnations = sorted({(each.cluster_id, each.topic_id) for each in there})
    if len(incarnations) > 1:
        shown = ", ".join(f"{topic_id} of cluster {cluster_id}" for cluster_id, topic_id in incarnations)
        raise ConfigurationError(f"{query.topic} had several incarnations: choose one by its topic id: {shown}")


def _planned(
    partition: TopicIdPartition,
    state: PartitionState,
    segments: Sequence[RemoteLogSegmentMetadata],
    storage: RemoteStorageManager,
    query: TableQuery,
) -> TablePartition:
    coverage = Coverage.of(segments, state.lineage)
    start = state.log_start_offset or 0
    every = list(_without_overlaps(coverage, start))
    log_start = max(start, every[0].start_offset) if every else start
    log_end = every[-1].end_offset + 1 if every else start
    transactions = StoredTransactions(every, storage) if query.rows.committed_only else None
    undecided = None if transactions is None else transactions.first_undecided()
    decided_end = log_end if undecided is None else undecided
    decided = [each for each in every if each.end_offset < decided_end]
    reached = _reached(decided, storage if query.rows.over_at is not None else None)
    ranges: list[TableRange] = []
    gaps: list[tuple[int, int]] = []
    undecidable: set[tuple[int, int]] = set()
    if not query.is_empty:
        begin = max(start, query.first_offset or 0)
        end = decided_end if query.end_offset is None else min(decided_end, query.end_offset)
        chosen = _Chosen.of(every, begin, end, storage, query)
        lost = frozenset(() if transactions is None else transactions.lost_in_gaps())
        ranges = list(_taken(every, chosen, transactions, lost))
        # Without a known log start, offsets before the first segment are unknown.
        known_from = begin if state.log_start_offset is not None else max(begin, log_start)
        hiding = {each.last_offset for part in ranges for each in part.aborted if each in lost}
        gaps = [
            gap
            for gap in coverage.missing(known_from, log_end - 1)
            if gap[1] in hiding or (gap[0] < end and chosen.may_have_had(gap, every))
        ]
        undecidable.update((each.first_offset, each.last_offset) for each in lost)
    lacking = tuple(coverage.missing(log_start, log_end - 1))
    spans = tuple(sorted(undecidable))
    return TablePartition(
        partition, tuple(ranges), tuple(gaps), log_start, log_end, decided_end, reached, lacking, spans
    )


def _reached(decided: Sequence[RestoredSegment], storage: RemoteStorageManager | None) -> int:
    """Return the largest timestamp of the segments whose timestamps are all earlier than their copies.

    The last segments, if they have later ones, count by their smallest timestamps, from their manifests in `storage`;
    without `storage` they do not count.
    """
    sound = [number for number, each in enumerate(decided) if not _is_ahead(each, each.metadata.max_timestamp)]
    reached = max((decided[number].metadata.max_timestamp for number in sound), default=-1)
    ahead = decided[sound[-1] + 1 :] if sound else decided
    if storage is None:
        return reached
    for each in list(reversed(ahead))[:AHEAD_READ_AT_MOST]:
        try:
            begin = _begin(each, storage)
        except (RemoteObjectCorruptError, LaterVersionError):
            continue
        if begin is not None and begin != NO_TIMESTAMP and not _is_ahead(each, begin):
            return max(reached, begin)
    return reached


def _is_ahead(segment: RestoredSegment, timestamp: int) -> bool:
    return timestamp > segment.metadata.event_timestamp


def _without_overlaps(coverage: Coverage, global_log_start: int) -> Iterator[RestoredSegment]:
    """Yield the ranges that end at the global log start or after it, each offset in only one range."""
    reached = 0
    for covered in coverage.ranges:
        start = max(covered.start_offset, reached)
        reached = covered.end_offset + 1
        if start <= covered.end_offset and covered.end_offset >= global_log_start:
            yield RestoredSegment(covered.segment, start, covered.end_offset)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which segments, by number, have what a query requests of the offsets [`begin`, `end`)."""

    begin: int
    end: int
    numbers: tuple[int, ...]
    too_old: frozenset[int]
    too_late: frozenset[int]

    @classmethod
    def of(
        cls, every: Sequence[RestoredSegment], begin: int, end: int, storage: RemoteStorageManager, query: TableQuery
    ) -> _Chosen:
        """Choose by offsets, by largest timestamps, and by manifests if the query limits the disorder."""
        within = [n for n, each in enumerate(every) if each.end_offset >= begin and each.start_offset < end]
        first = query.rows.first_timestamp
        old = frozenset() if first is None else {n for n in within if every[n].metadata.max_timestamp < first}
        new = [number for number in within if number not in old]
        late = _too_late(new, every, storage, query.rows.latest_begin)
        return cls(begin, end, tuple(n for n in new if n not in late), frozenset(old), late)

    def may_have_had(self, gap: tuple[int, int], every: Sequence[RestoredSegment]) -> bool:
        """Return whether missing offsets may be needed: not between two segments that are too old, or two too late."""
        after = next((n for n, each in enumerate(every) if each.start_offset > gap[1]), None)
        if after is None:
            return True
        if after in self.too_old:
            return after > 0 and after - 1 not in self.too_old and every[after - 1].end_offset >= self.begin
        return not (after - 1 in self.too_late and after in self.too_late)


def _taken(
    every: Sequence[RestoredSegment],
    chosen: _Chosen,
    transactions: StoredTransactions | None,
    lost: frozenset[AbortedTxn],
) -> Iterator[TableRange]:
    def aborted(number: int) -> tuple[AbortedTxn, ...]:
        return () if transactions is None else (*transactions.aborted_in(number), *lost)

    for number, transactions_here in zip(chosen.numbers, concurrent_map(aborted, chosen.numbers), strict=True):
        each = every[number]
        whole = TableRange(each.metadata, each.start_offset, each.end_offset, transactions_here)
        taken = whole.within(chosen.begin, chosen.end - 1)
        if taken is not None:
            yield taken


def _too_late(
    numbers: Sequence[int], every: Sequence[RestoredSegment], storage: RemoteStorageManager, latest_begin: int | None
) -> frozenset[int]:
    """Return the segments that begin too late, by their manifests."""
    if latest_begin is None:
        return frozenset()

    begins = zip(numbers, concurrent_map(lambda number: _begin(every[number], storage), numbers), strict=True)
    return frozenset(number for number, first in begins if first is not None and first >= latest_begin)


def _begin(segment: RestoredSegment, storage: RemoteStorageManager) -> int | None:
    """Return the first timestamp in the segment's manifest, -1 if it has none; None: unknown."""
    raw = index_of(segment, IndexKind.MANIFEST, storage)
    return None if raw is None else Manifest.parse(raw, str(segment.metadata.segment_id)).first_timestamp


def unknown_partitions(plan: TablePlan) -> list[int]:
    """Return the requested partition numbers of which nothing was ever copied."""
    if plan.query.partitions is None:
        return []
    return sorted(plan.query.partitions - {each.topic_id_partition.partition for each in plan.partitions})
