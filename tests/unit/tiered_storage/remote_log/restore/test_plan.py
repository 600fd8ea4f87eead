from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.metadata_stores import a_step
from support.remote_logs import (
    CLUSTER_ID,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    copy,
    held_by,
    records,
    segments_of,
    topic_id,
    unsynced,
)
from tiered_storage.errors import ConfigurationError, LaterVersionError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    SegmentState,
)
from tiered_storage.remote_log.restore.request import RestorePlan, RestoreRequest
from tiered_storage.remote_log.restore.validation import Validation, check_store
from tiered_storage.remote_log.storage.index_bundle import build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

SECOND = 1000


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("orders", 0): 5})


def plan_of(files: RemoteLogFiles, **request: object) -> RestorePlan:
    with files.open() as remote_log:
        return remote_log.restores.plan(RestoreRequest("orders", **request))  # type: ignore[arg-type]


def chosen(files: RemoteLogFiles, **request: object) -> list[tuple[int, int]]:
    """Return first and last offset of each segment that a restore would take."""
    return [(each.start_offset, each.end_offset) for each in plan_of(files, **request).segments()]


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (None, None, [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]),
        (19, 21, [(10, 19), (20, 29)]),
        (20, 30, [(20, 29)]),
        (45, None, [(40, 49)]),
        (None, 1, [(0, 9)]),
        (None, 10, [(0, 9)]),
        (None, 11, [(0, 9), (10, 19)]),
        (50, None, []),
    ],
)
def test_a_range_of_offsets_takes_the_segments_that_hold_them(
    files: RemoteLogFiles, first: int | None, end: int | None, expected: list[tuple[int, int]]
) -> None:
    assert chosen(files, from_offset=first, to_offset=end) == expected


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, 50, [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]),
        (19, 21, [(10, 19), (20, 29)]),
        (20, 30, [(20, 29)]),
        (45, None, [(40, 49)]),
        (None, 10, [(0, 9)]),
        (None, 11, [(0, 9), (10, 19)]),
        (50, None, []),
        (None, -5, []),
    ],
)
def test_a_range_of_times_takes_the_segments_with_such_records(
    files: RemoteLogFiles, first: int | None, end: int | None, expected: list[tuple[int, int]]
) -> None:
    """Record n has the time NOW + n seconds."""
    times = {
        "from_timestamp": None if first is None else NOW + first * SECOND,
        "to_timestamp": None if end is None else NOW + end * SECOND,
    }
    assert chosen(files, **times) == expected


def test_records_out_of_order_are_looked_for_in_the_next_segments(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.roll()
        for seconds in ((5, 6), (100, 9), (8, 101), (102, 103), (7, 8)):
            for each in seconds:
                log.append([Record(0, NOW + each * SECOND, None, b"value")])
            log.roll()
    with files.open() as remote_log:
        copy(remote_log)
    # The segment at 7 reaches the end, that at 9 still has a record before it, and at the one at 11 the search ends.
    assert chosen(files, from_timestamp=NOW + 6 * SECOND, to_timestamp=NOW + 10 * SECOND) == [(5, 6), (7, 8), (9, 10)]


def test_a_range_continues_to_the_end_of_the_transaction_that_it_ends_in(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.append(records(0, 1), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.roll()
        log.append(records(0, 1))
        log.roll()
        log.append_end_marker(7, 0, ControlRecordType.ABORT)
        log.roll()
        log.append(records(0, 1))
        log.roll()
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert chosen(files, to_offset=2) == [(0, 5), (6, 6), (7, 7)]
    assert chosen(files, to_offset=8) == [(0, 5), (6, 6), (7, 7)]
    assert [each.start_offset for each in plan_of(files, to_offset=2).partitions[0].following] == [8]


def test_an_end_before_the_begin_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="from 5 to before 5"):
        RestoreRequest("orders", from_offset=5, to_offset=5)
    with pytest.raises(ConfigurationError, match="times"):
        RestoreRequest("orders", from_timestamp=6, to_timestamp=5)


def test_segments_below_the_global_log_start_stay_away(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 23, held_by(remote_log, "test"))
    [partition] = plan_of(files).partitions
    assert [each.start_offset for each in partition.segments] == [20, 30, 40]
    assert (partition.first_offset, partition.log_start_offset, partition.log_end_offset) == (20, 23, 50)
    assert [each.start_offset for each in partition.lineage] == [23]


def test_offsets_between_the_global_log_start_and_the_first_segment_are_a_gap(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 5, lease)
        for segment in segments_of(remote_log)[:1]:
            step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(step, lease)
    plan = plan_of(files)
    assert [gap.message for gap in plan.gaps] == ["offsets 5 to 9 are missing"]
    assert not plan_of(files, from_offset=10).gaps
    with pytest.raises(RemoteObjectNotFoundError, match=r"orders-0: offsets 5 to 9\b"):
        plan.ensure_possible(allow_gaps=False)
    plan.ensure_possible(allow_gaps=True)


def test_a_partition_that_is_being_deleted_is_refused(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        marked = RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, NOW)
        remote_log.context.segments.put_remote_partition_delete_metadata(marked, held_by(remote_log, "test"))
    plan = plan_of(files)
    assert not plan.partitions
    with pytest.raises(ConfigurationError, match="orders-0"):
        plan.ensure_possible(allow_gaps=True)


def test_one_of_several_incarnations_must_be_named(files: RemoteLogFiles) -> None:
    first = topic_id("orders")
    other = topic_id("orders created again")
    path = files.log_directory / "orders-0" / "partition.metadata"
    path.write_text(path.read_text().replace(first, other))
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    with pytest.raises(ConfigurationError, match="orders had several ") as error:
        plan_of(files)
    assert {f"{each} of cluster {CLUSTER_ID}" in str(error.value) for each in (first, other)} == {True}
    assert plan_of(files, topic_id=other).topic_id == other


def test_a_manifest_of_a_later_version_is_refused(files: RemoteLogFiles) -> None:
    path = files.objects(".indexes")[-1]
    contents = parse_bundle(path.read_bytes(), "test")
    manifest = contents[IndexKind.MANIFEST]
    contents[IndexKind.MANIFEST] = re.sub(rb'("format_version": *)1', rb"\g<1>9", manifest)
    assert contents[IndexKind.MANIFEST] != manifest
    path.write_bytes(build_bundle(contents))
    plan = plan_of(files)
    with files.open() as remote_log, pytest.raises(LaterVersionError, match="version 9"):
        check_store(plan.segments(), remote_log.context.storage, Validation.MANIFEST)
