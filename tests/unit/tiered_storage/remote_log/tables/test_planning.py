from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import a_step
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    copy,
    held_by,
    move_log_start,
    partition_of,
    segments_of,
    topic_id,
    unsynced,
)
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentState,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import (
    TablePlan,
    TableRange,
    TableSplit,
    plan_splits,
    plan_table,
    unknown_partitions,
)
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery
from tiered_storage.remote_log.tables.reading import read_split
from unit.tiered_storage.remote_log.modelled_logs import (
    ABORT,
    COMMIT,
    ROLL,
    Ended,
    ModelledLog,
    Sent,
    Step,
    a_copied_topic,
)

ANY_TIME = replace(LOG_CONFIG, message_timestamp_after_max_ms=10**15)
"""Takes records of producers whose clocks are years ahead."""


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1, ("payments", 0): 1})


@pytest.fixture
def remote_log(files: RemoteLogFiles) -> Iterator[RemoteLogManager]:
    with unsynced(), files.open() as remote_log:
        yield remote_log


def plan(remote_log: RemoteLogManager, query: TableQuery) -> TablePlan:
    return plan_table(remote_log.context.segments, remote_log.context.storage, query)


def ranges(plan: TablePlan) -> list[tuple[int, int, int]]:
    """Partition, first and last offset of each range."""
    return [(each.segment.topic_id_partition.partition, each.start_offset, each.end_offset) for each in plan.ranges()]


def offsets(remote_log: RemoteLogManager, planned: TablePlan) -> list[int]:
    columns = TableColumns(["offset"])
    split = TableSplit(tuple(planned.ranges()), planned.query.rows)
    return [
        offset
        for batch in read_split(split, remote_log.context.storage, columns)
        for offset in batch.column(0).to_pylist()
    ]


def test_partitions_and_offsets_choose_segments(remote_log: RemoteLogManager) -> None:
    assert ranges(plan(remote_log, TableQuery("orders"))) == [(0, 0, 9), (0, 10, 19), (0, 20, 29), (1, 0, 9)]
    some = TableQuery("orders", partitions=frozenset({0, 5}), first_offset=13, end_offset=21)
    assert ranges(plan(remote_log, some)) == [(0, 13, 19), (0, 20, 20)]
    assert unknown_partitions(plan(remote_log, some)) == [5]
    assert ranges(plan(remote_log, TableQuery("orders", first_offset=5, end_offset=5))) == []


def test_times_choose_segments_by_metadata_and_manifests(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    kept = ObjectRemoteStorageManager.fetch_index

    def fetch_index(storage: ObjectRemoteStorageManager, metadata: object, kind: IndexKind) -> bytes:
        assert kind is IndexKind.MANIFEST
        fetched.append(metadata.start_offset)  # type: ignore[attr-defined]
        return kept(storage, metadata, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", fetch_index)
    only = TableQuery("orders", partitions=frozenset({0}))
    times = RowFilter(first_timestamp=NOW + 10_000, end_timestamp=NOW + 20_000)
    assert ranges(plan(remote_log, replace(only, rows=times))) == [(0, 10, 19), (0, 20, 29)]
    assert fetched == []
    in_order = replace(times, disorder_ms=0)
    assert ranges(plan(remote_log, replace(only, rows=in_order))) == [(0, 10, 19)]
    assert sorted(fetched) == [10, 20]
    much = replace(times, disorder_ms=1)
    assert ranges(plan(remote_log, replace(only, rows=much))) == [(0, 10, 19), (0, 20, 29)]


def test_nothing_below_the_global_log_start_is_given(remote_log: RemoteLogManager) -> None:
    move_log_start(remote_log, 14, held_by(remote_log, "test"))
    planned = plan(remote_log, TableQuery("orders", partitions=frozenset({0})))
    assert ranges(planned) == [(0, 14, 19), (0, 20, 29)]
    assert planned.partitions[0].log_start_offset == 14
    assert offsets(remote_log, planned) == list(range(14, 30))


def test_records_that_a_later_leader_truncated_are_not_returned(remote_log: RemoteLogManager) -> None:
    """A leader of epoch 9 began at offset 12: of the old leader's segments only what lies below is true."""
    lineage = (EpochEntry(0, 0), EpochEntry(9, 12))
    remote_log.context.segments.put_lineage(ORDERS_0, lineage, held_by(remote_log, "test"))
    planned = plan(remote_log, TableQuery("orders", partitions=frozenset({0})))
    assert ranges(planned) == [(0, 0, 9), (0, 10, 11)]
    assert offsets(remote_log, planned) == list(range(12))


def test_gaps_are_reported(remote_log: RemoteLogManager) -> None:
    [_, segment, *_] = segments_of(remote_log)
    going = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
    remote_log.context.segments.update_remote_log_segment_metadata(going, held_by(remote_log, "test"))
    planned = plan(remote_log, TableQuery("orders"))
    assert [each.gaps for each in planned.partitions] == [((10, 19),), ()]
    with pytest.raises(RemoteObjectNotFoundError, match=r"orders-0: offsets 10 to 19\b"):
        planned.ensure_no_gaps()
    plan(remote_log, TableQuery("orders", first_offset=20)).ensure_no_gaps()
    assert offsets(remote_log, planned) == [*range(10), *range(20, 30), *range(10)]


@pytest.mark.parametrize(
    ("lost", "first", "end", "has_gap"),
    [
        (1, 10_000, 20_000, True),  # the very segment
        (1, 12_000, 15_000, True),
        (1, 20_000, 25_000, True),  # between one that is too old and one that is wanted
        (1, 0, 5_000, True),  # between one that is wanted and one that is too late
        (1, 31_000, 40_000, False),  # between two that are too old
        (0, 0, 5_000, True),  # before the first one: the global log start shows the gap
        (0, 22_000, 25_000, False),
        (1, -20_000, -10_000, False),  # between two that are too late
    ],
)
def test_a_gap_counts_unless_all_around_it_is_too_old_or_too_late(
    remote_log: RemoteLogManager, lost: int, first: int, end: int, *, has_gap: bool
) -> None:
    segment = segments_of(remote_log)[lost]
    going = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
    remote_log.context.segments.update_remote_log_segment_metadata(going, held_by(remote_log, "test"))
    rows = RowFilter(NOW + first, NOW + end, disorder_ms=0)
    planned = plan(remote_log, TableQuery("orders", partitions=frozenset({0}), rows=rows))
    expected = ((10 * lost, 10 * lost + 9),) if has_gap else ()
    assert planned.partitions[0].gaps == expected


@pytest.mark.parametrize(
    ("query", "has_gap"),
    [
        (TableQuery("orders", end_offset=6, rows=RowFilter(committed_only=True)), True),
        (TableQuery("orders", rows=RowFilter(NOW, NOW + 10, committed_only=True, disorder_ms=0)), True),
        (TableQuery("orders", end_offset=6), False),
        (TableQuery("orders", end_offset=5, rows=RowFilter(committed_only=True)), False),
    ],
)
def test_a_gap_that_swallowed_the_end_of_a_transaction_counts_wherever_it_is(
    tmp_path: Path, query: TableQuery, *, has_gap: bool
) -> None:
    """Offset 5 is of a transaction; whether it was committed stood at offset 7, which is lost."""
    steps: list[Step] = [Sent([0], producer=1), ROLL, Sent([50_000]), ROLL, Ended(1, COMMIT), ROLL, Sent([50_000])]
    files, _ = a_copied_topic(tmp_path, steps)
    with unsynced(), files.open() as remote_log:
        [lost] = [each for each in segments_of(remote_log) if each.start_offset == 7]
        going = a_step(lost, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(going, held_by(remote_log, "test"))
        assert plan(remote_log, query).partitions[0].gaps == (((7, 7),) if has_gap else ())


def reached(files: RemoteLogFiles, rows: RowFilter | None = None) -> int:
    """How far orders-0 reaches after NOW (ms)."""
    query = TableQuery("orders", rows=RowFilter(NOW, NOW + 10_000) if rows is None else rows)
    with unsynced(), files.open() as remote_log:
        return plan(remote_log, query).partitions[0].reached_timestamp - NOW


def test_a_record_of_a_clock_that_is_ahead_ends_no_interval(files: RemoteLogFiles) -> None:
    """What is copied with it may be from long before the copy: its segment begins with offset 30, ends with 39."""
    files.append(2)
    files.clock = ManualClock(NOW + 32_500)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
        query = TableQuery("orders", rows=RowFilter(NOW, NOW + 10_000))
        [partition, _] = plan(remote_log, query).partitions
    assert partition.log_end_offset == 40
    assert partition.has_all(RowFilter(NOW, NOW + 30_000))
    assert not partition.has_all(RowFilter(NOW, NOW + 30_001))
    assert not partition.has_all(RowFilter(NOW, NOW + 30_000, disorder_ms=1))
    assert not partition.has_all(RowFilter(NOW))


def test_a_plan_without_an_end_time_reads_no_manifest(files: RemoteLogFiles) -> None:
    """Nothing needs the end then; it may be too low, never too high."""
    files.append(2)
    files.clock = ManualClock(NOW + 32_500)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert reached(files, RowFilter()) == 29_000
    assert reached(files) == 30_000


DAY_MS = 86_400_000
YEARS_MS = 3_000 * DAY_MS


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([[1_000, YEARS_MS]], 1_000),
        ([[1_000, YEARS_MS], [DAY_MS]], DAY_MS),  # the next one shows it
        ([[DAY_MS], [1_000, YEARS_MS]], DAY_MS),  # a begin that is earlier takes nothing back
        ([[2_000], [YEARS_MS]], 2_000),  # nothing shows it
        ([[2_000], [3_000, YEARS_MS], [YEARS_MS]], 3_000),
        ([[2_000], [3_000, YEARS_MS], *[[YEARS_MS]] * 3], 3_000),
        ([[2_000], [3_000, YEARS_MS], *[[YEARS_MS]] * 4], 2_000),  # more manifests than are asked
        ([[YEARS_MS]], -NOW - 1),
        ([[4_000, 10 * DAY_MS]], 10 * DAY_MS),  # not later than the copy
    ],
)
def test_timestamps_of_a_clock_ahead_do_not_move_the_reached_time(
    tmp_path: Path, segments: list[list[int]], expected: int
) -> None:
    """A backlog of ten days, copied at its end."""
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, ANY_TIME, clock=lambda: NOW + 10 * DAY_MS) as writer:
        log = writer.log("orders", 0)
        log.roll()
        ModelledLog(log).write([step for times in segments for step in (Sent(times), ROLL)])
    files.clock = ManualClock(NOW + 10 * DAY_MS)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, segments_of(remote_log)[1].start_offset, lease)
        remote_log.context.leases.release(lease)
    assert reached(files) == expected


@pytest.mark.parametrize("error", [RemoteObjectNotFoundError("lost"), RemoteObjectCorruptError("broken")], ids=str)
def test_a_segment_without_its_manifest_has_no_known_times(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    files.append(2)
    files.clock = ManualClock(NOW + 32_500)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole

    def lost(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", lost)
    assert reached(files) == 29_000


def test_decided_offsets_may_pass_an_interval_whose_end_is_undecided(tmp_path: Path) -> None:
    """If transactions overlap without a break, the copied offsets always end inside some."""
    steps: list[Step] = [Sent([0]), ROLL, Sent([50_000]), ROLL, Sent([90_000], producer=1), ROLL, Ended(1, COMMIT)]
    files, _ = a_copied_topic(tmp_path, steps)
    with unsynced(), files.open() as remote_log:
        marker = segments_of(remote_log)[-1]
        going = a_step(marker, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(going, held_by(remote_log, "test"))
        [committed] = plan(remote_log, TableQuery("orders", rows=RowFilter(committed_only=True))).partitions
        [every] = plan(remote_log, TableQuery("orders")).partitions
    assert committed.decided_end_offset < committed.log_end_offset
    assert (committed.reached_timestamp, every.reached_timestamp) == (NOW + 50_000, NOW + 90_000)


def test_a_partition_on_its_way_out_is_left_out(remote_log: RemoteLogManager) -> None:
    for number in (1, 0):
        partition = partition_of(number=number)
        marked = RemotePartitionDeleteMetadata(partition, PartitionDeleteState.MARKED, NOW)
        lease = held_by(remote_log, "test", partition)
        remote_log.context.segments.put_remote_partition_delete_metadata(marked, lease)
        if number:
            planned = plan(remote_log, TableQuery("orders"))
            assert {partition for partition, _, _ in ranges(planned)} == {0}
            [left_out] = planned.notices
            assert left_out.partition == "orders-1"
            assert "being deleted" in left_out.message
    with pytest.raises(ConfigurationError, match=r"orders.*deleted"):
        plan(remote_log, TableQuery("orders"))


def test_a_query_means_the_incarnation_that_is_not_deleted(remote_log: RemoteLogManager) -> None:
    earlier = replace(ORDERS_0, topic_id=topic_id("an earlier incarnation"))
    lease = held_by(remote_log, "test", earlier)
    begun = replace(
        segments_of(remote_log)[0],
        segment_id=RemoteLogSegmentId(earlier, topic_id("its segment")),
        state=SegmentState.COPY_SEGMENT_STARTED,
    )
    remote_log.context.segments.add_remote_log_segment_metadata(begun, lease)
    with pytest.raises(ConfigurationError, match=r"several .*topic id"):
        plan(remote_log, TableQuery("orders"))
    assert plan(remote_log, TableQuery("orders", earlier.topic_id)).topic_id == earlier.topic_id
    marked = RemotePartitionDeleteMetadata(earlier, PartitionDeleteState.MARKED, NOW)
    remote_log.context.segments.put_remote_partition_delete_metadata(marked, lease)
    planned = plan(remote_log, TableQuery("orders"))
    assert (planned.topic_id, planned.notices) == (ORDERS_0.topic_id, ())
    assert {partition for partition, _, _ in ranges(planned)} == {0, 1}


def test_an_unknown_topic_is_refused_and_no_other_one_named(remote_log: RemoteLogManager) -> None:
    """Who asks by a form may not see the others."""
    with pytest.raises(ConfigurationError, match="'shipments'") as error:
        plan(remote_log, TableQuery("shipments"))
    assert "orders" not in str(error.value)


def test_splits_are_of_one_size_and_have_each_offset_once(remote_log: RemoteLogManager) -> None:
    planned = plan(remote_log, TableQuery("orders"))
    whole = list(planned.ranges())
    for split_bytes in (1, 250, 700, 1 << 20):
        splits = list(plan_splits(whole, RowFilter(), split_bytes))
        found = [
            (part.segment.segment_id, offset)
            for split in splits
            for part in split.ranges
            for offset in range(part.start_offset, part.end_offset + 1)
        ]
        expected = [
            (each.segment.segment_id, offset)
            for each in whole
            for offset in range(each.start_offset, each.end_offset + 1)
        ]
        assert found == expected
    assert len(splits) == 1
    with pytest.raises(ConfigurationError, match="splits of 0 bytes"):
        list(plan_splits(whole, RowFilter(), 0))


def test_the_intersection_with_a_disjoint_range_is_none(remote_log: RemoteLogManager) -> None:
    [segment, *_] = segments_of(remote_log)
    assert TableRange(segment, 0, 9).within(10, 12) is None
    assert partition_of() == segment.topic_id_partition


@pytest.mark.parametrize("rolls", [10, 20])
def test_each_index_is_read_once_though_some_transaction_is_always_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolls: int
) -> None:
    """Two producers in turn: at the end of each segment a transaction is open that began in it."""
    steps: list[Step] = [Sent([0], producer=1)]
    for number in range(rolls):
        mine, other = 1 + number % 2, 2 - number % 2
        steps += [ROLL, Sent([0], producer=other), Ended(mine, COMMIT)]
    steps.append(Ended(1 + rolls % 2, ABORT))
    files, _ = a_copied_topic(tmp_path, steps)
    asked: Counter[tuple[str, IndexKind]] = Counter()
    fetch = ObjectRemoteStorageManager.fetch_index

    def counted(self: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        asked[segment.segment_id.id, kind] += 1
        return fetch(self, segment, kind)

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", counted)
    with unsynced(), files.open() as remote_log:
        found = plan(remote_log, TableQuery("orders", rows=RowFilter(committed_only=True)))
        there = len(list(segments_of(remote_log)))
    transactions = [count for (_, kind), count in asked.items() if kind is IndexKind.TRANSACTION]
    assert len(transactions) >= rolls
    # Several threads may read the same index at the same moment.
    assert sum(transactions) <= 3 * there
    assert [number for number, each in enumerate(found.ranges()) if each.aborted] == [there - 1]
