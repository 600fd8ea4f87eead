"""One check for all who read chunks: a reader of records and a reader of tables find the same damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import BATCH_BYTES, ORDERS_0, a_copied_remote_log, records
from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import plan_table
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.remote_log.tables.reading import BrokenBytes, read_range

CHECKSUM, BASE_OFFSET, EPOCH = 17, 7, 15
"""Where a batch's header has the lowest byte of each."""


def read_batches(remote_log: RemoteLogManager) -> None:
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        list(reader.batches(ORDERS_0, 10))


def read_table(remote_log: RemoteLogManager, broken: list[BrokenBytes] | None = None) -> list[int]:
    query, columns = TableQuery("orders"), TableColumns(["offset"])
    take = None if broken is None else broken.append
    return [
        offset
        for each in plan_table(remote_log.context.segments, remote_log.context.storage, query).ranges()
        for rows in read_range(each, query.rows, remote_log.context.storage, columns, on_broken=take)
        for offset in rows.column("offset").to_pylist()
    ]


def damage(stored: Path, place: int) -> None:
    """Flip a bit in the header of the segment's second batch."""
    raw = bytearray(stored.read_bytes())
    raw[BATCH_BYTES + place] ^= 64
    stored.write_bytes(raw)


@pytest.mark.parametrize("place", [CHECKSUM, BASE_OFFSET, EPOCH])
def test_records_and_tables_report_the_same_damage(tmp_path: Path, place: int) -> None:
    files = a_copied_remote_log(tmp_path)
    for segment in files.local_segments()[:3]:
        segment.log_path.unlink()
    stored = files.objects(".log")[1]
    damage(stored, place)
    with files.open() as remote_log:
        with pytest.raises(RemoteObjectCorruptError, match=stored.name) as of_reader:
            read_batches(remote_log)
        with pytest.raises(RemoteObjectCorruptError, match=stored.name) as of_table:
            read_table(remote_log)
    assert str(of_table.value) == str(of_reader.value)
    assert "tiered-storage repair --deep" in str(of_table.value)


@pytest.mark.parametrize("place", [CHECKSUM, EPOCH])
def test_a_reader_around_damage_loses_only_the_damaged_batch(tmp_path: Path, place: int) -> None:
    files = a_copied_remote_log(tmp_path)
    damage(files.objects(".log")[1], place)
    broken: list[BrokenBytes] = []
    with files.open() as remote_log:
        assert read_table(remote_log, broken) == [each.offset for each in records(0, 15) + records(20, 30)]
    assert [(each.position, each.first_offset, each.last_offset) for each in broken] == [(BATCH_BYTES, 15, 19)]
