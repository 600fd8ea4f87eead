"""A leader epoch in a batch's header, which no checksum covers, is compared with the segment's on every ranged read."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    ORDERS_0,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    copy,
    records,
    rewrite_segment,
    segments_of,
)
from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, EpochEntry
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.batch_epochs import WrongEpoch, wrong_epoch
from tiered_storage.remote_log.lineage import epoch_at
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import plan_table
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.remote_log.tables.reading import BrokenBytes, read_range

WRONG = 7


def batches(remote_log: RemoteLogManager) -> None:
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        for fetched in reader.batches(ORDERS_0, 10):
            assert WRONG not in fetched.table.partition_leader_epoch


def segment_bytes(remote_log: RemoteLogManager) -> None:
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        list(reader.segment_bytes(ORDERS_0, segments_of(remote_log)[1].segment_id.id))


def fetch(remote_log: RemoteLogManager) -> None:
    PlainReader(remote_log).open(ORDERS_0).fetch(17)


def fetch_remote(remote_log: RemoteLogManager) -> None:
    list(PlainReader(remote_log).open(ORDERS_0).fetch_remote(10))


def tables(remote_log: RemoteLogManager) -> None:
    rows(remote_log)


def rows(remote_log: RemoteLogManager, on_broken: Callable[[BrokenBytes], None] | None = None) -> list[int]:
    query, taken = TableQuery("orders"), TableColumns(["offset"])
    found: Iterable[pa.RecordBatch] = (
        batch
        for each in plan_table(remote_log.context.segments, remote_log.context.storage, query).ranges()
        for batch in read_range(each, query.rows, remote_log.context.storage, taken, on_broken=on_broken)
    )
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def with_epochs(path: Path, epoch: int) -> None:
    """Write another epoch into the header of every batch of a segment."""
    rewrite_segment(path, [each[:12] + struct.pack(">i", epoch) + each[16:] for each in batches_in(path)])


def with_epoch(path: Path, epoch: int) -> None:
    """Write another epoch into the header of a segment's second batch."""
    first, second = batches_in(path)
    rewrite_segment(path, [first, second[:12] + struct.pack(">i", epoch) + second[16:]])


@pytest.mark.parametrize("epoch", [WRONG, -1, -2, -(2**31)])
@pytest.mark.parametrize("read", [batches, segment_bytes, fetch, fetch_remote, tables])
def test_a_wrong_epoch_in_a_header_is_not_served(
    tmp_path: Path, read: Callable[[RemoteLogManager], None], epoch: int
) -> None:
    files = a_copied_remote_log(tmp_path)
    for segment in files.local_segments()[:3]:
        segment.log_path.unlink()
    stored = files.objects(".log")[1]
    with_epoch(stored, epoch)
    with files.open() as remote_log, pytest.raises(RemoteObjectCorruptError) as error:
        read(remote_log)

    for part in (
        "orders-0: ",
        stored.name,
        f"at byte {BATCH_BYTES}: ",
        f"the batch at offset 15 is of leader epoch {epoch}",
    ):
        assert part in str(error.value)
    assert re.search(r"the segment has epoch 0 there\b", str(error.value))


@pytest.mark.parametrize("read", [batches, segment_bytes, fetch, fetch_remote, tables])
def test_batches_of_a_log_without_epochs_are_read(tmp_path: Path, read: Callable[[RemoteLogManager], None]) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / LEADER_EPOCH_CHECKPOINT).unlink()
    for segment in files.local_segments():
        with_epochs(segment.log_path, -1)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert segments_of(remote_log)[1].leader_epochs == ()
    for segment in files.local_segments()[:3]:
        segment.log_path.unlink()
    with files.open() as remote_log:
        read(remote_log)


def test_a_table_that_takes_broken_batches_has_all_other_rows(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with_epoch(files.objects(".log")[1], WRONG)
    broken: list[BrokenBytes] = []
    with files.open() as remote_log:
        assert rows(remote_log, broken.append) == [each.offset for each in records(0, 15) + records(20, 30)]
    assert [(each.position, each.first_offset, each.last_offset) for each in broken] == [(BATCH_BYTES, 15, 19)]
    assert "leader epoch 7" in broken[0].reason


epochs = st.integers(-3, 4)
entries = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=4, unique_by=(lambda each: each[0], lambda each: each[1])
)


@given(st.lists(st.tuples(st.integers(1, 5), epochs), max_size=12), st.integers(0, 10), entries)
def test_the_first_wrong_epoch_is_that_of_each_batch_by_itself(
    steps: list[tuple[int, int]], start: int, of_lineage: list[tuple[int, int]]
) -> None:
    found_epochs, starts = sorted(epoch for epoch, _ in of_lineage), sorted(offset for _, offset in of_lineage)
    lineage = [EpochEntry(epoch, offset) for epoch, offset in zip(found_epochs, starts, strict=True)]
    table, expected = BatchTable.allocate(len(steps)), None
    for row, (count, epoch) in enumerate(steps):
        table.base_offset[row], table.partition_leader_epoch[row], table.position[row] = start, epoch, 100 * row
        true = epoch_at(lineage, start)
        known = -1 if true is None else true
        if expected is None and (epoch < -1 or (known >= 0 and epoch != known)):
            expected = WrongEpoch(100 * row, start, epoch, known)
            assert ("which no broker writes" in str(expected)) == (known == -1)
        start += count

    assert wrong_epoch(table, lineage) == expected
