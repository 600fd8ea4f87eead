from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.files import files_in
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    copy,
    held_by,
    move_log_start,
    partition_of,
    unsynced,
)
from support.tables import carry_out
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.late_data import IncompleteInterval, LateIntervals
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery

OWN = Interval(NOW + 900_000, NOW + 960_000)
"""The interval of the run that looks at the others."""
TAIL = Interval(NOW + 20_000, NOW + 40_000)
"""Its first half is copied: record n has the timestamp NOW + n seconds, and 0 to 29 are."""


def request(files: RemoteLogFiles, interval: Interval = TAIL, query: TableQuery | None = None) -> ExportRequest:
    return ExportRequest(query or TableQuery("orders"), interval, files.settings().export_url, block_offsets=8)


def table(files: RemoteLogFiles) -> Path:
    return files.root / "state" / "exports" / "orders"


def export(files: RemoteLogFiles, interval: Interval = TAIL, **changes: object) -> tuple[int, ...]:
    """Export an interval; return the partitions that it did not reach."""
    with unsynced(), files.open() as remote_log:
        return carry_out(remote_log, replace(request(files, interval), **changes)).not_reached  # type: ignore[arg-type]


def append_and_copy(files: RemoteLogFiles, batches: int, number: int = 0) -> None:
    files.append(batches, number=number)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole


def late(files: RemoteLogFiles, own: Interval = OWN, query: TableQuery | None = None) -> LateIntervals:
    with files.open() as remote_log:
        asked = request(files, own, query)
        return remote_log.tables.late_intervals(asked, remote_log.tables.plan(asked.table_query))


def waiting(*intervals: Interval) -> LateIntervals:
    """Return what is found if none of `intervals` is due."""
    reason = "no records past its end are copied yet"
    return LateIntervals(incomplete=tuple(IncompleteInterval(each, reason) for each in intervals))


def due(files: RemoteLogFiles) -> list[Interval]:
    return [each.interval for each in late(files).due]


def test_an_interval_waits_until_what_is_copied_continues_after_it(files: RemoteLogFiles) -> None:
    assert export(files) == (0,)
    assert late(files) == waiting(TAIL)
    append_and_copy(files, 2)  # to 39, which is in it
    assert late(files) == waiting(TAIL)
    append_and_copy(files, 2)
    assert due(files) == [TAIL]
    assert export(files) == ()
    assert late(files) == LateIntervals()


def test_a_late_export_has_the_bytes_of_a_first_export_made_then(files: RemoteLogFiles) -> None:
    export(files, codec="gzip", query=TableQuery("orders", rows=RowFilter(committed_only=True, disorder_ms=10_000)))
    append_and_copy(files, 4)
    assert late(files).due == ()  # 49 is closer to the end than records may be out of order
    append_and_copy(files, 2)
    elsewhere = (files.root / "elsewhere").as_uri()
    with unsynced(), files.open() as remote_log:
        asked = request(files, OWN)
        [found] = remote_log.tables.late_intervals(asked, remote_log.tables.plan(asked.table_query)).due
        again = carry_out(remote_log, found)
        assert (again.changed, again.rows, again.not_reached) == (True, 20, ())
        carry_out(remote_log, replace(found, url=elsewhere))
    assert files_in(table(files)) == files_in(files.root / "elsewhere" / "orders")
    assert '"codec": "gzip"' in (table(files) / TAIL.folder / "_manifest.json").read_text()


def test_late_intervals_of_several_partitions_come_the_latest_first(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3})
    later = Interval(NOW + 40_000, NOW + 50_000)
    assert (export(files), export(files, later)) == ((0, 1), (0, 1))
    append_and_copy(files, 4, 1)
    assert due(files) == [TAIL]
    assert export(files) == (0,)
    assert late(files) == waiting(later, TAIL)
    append_and_copy(files, 6, 0)
    assert due(files) == [later, TAIL]
    assert late(files, own=later).due[0].interval == TAIL


def test_a_partition_that_comes_later_is_looked_at_where_it_may_have_records(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 0})
    before = Interval(NOW - 60_000, NOW)
    within = Interval(NOW, NOW + 10_000)
    assert (export(files, before), export(files, within)) == ((), ())
    assert late(files) == LateIntervals()
    append_and_copy(files, 4, 1)
    assert due(files) == [within]
    assert export(files, within) == ()
    assert late(files) == LateIntervals()


@pytest.mark.parametrize("allow_gaps", [False, True])
def test_gaps_are_allowed_where_they_were_before(files: RemoteLogFiles, *, allow_gaps: bool) -> None:
    export(files, allow_gaps=allow_gaps)
    append_and_copy(files, 4)
    with files.open() as remote_log:
        for asked in (request(files, OWN), replace(request(files, OWN), allow_gaps=True)):
            [found] = remote_log.tables.late_intervals(asked, remote_log.tables.plan(asked.table_query)).due
            assert found.allow_gaps == allow_gaps


def isolated(*, committed_only: bool) -> TableQuery:
    return TableQuery("orders", rows=RowFilter(committed_only=committed_only, disorder_ms=0))


def write_and_copy(files: RemoteLogFiles, *steps: int | str) -> None:
    """Write a record for each time after NOW (ms), or what is named, and copy what is closed and stable."""
    in_transaction: dict[str, Any] = {
        "producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True,
    }  # fmt: skip
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        for step in steps:
            if isinstance(step, int):
                log.append([Record(log.log_end_offset, NOW + step, b"key", b"value")])
            elif step == "roll":
                log.roll()
            elif step == "begin":
                log.append([Record(log.log_end_offset, NOW, b"key", b"value")], **in_transaction)
            else:
                log.append_end_marker(1, 0, ControlRecordType.COMMIT)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole


def test_an_interval_is_exported_again_with_the_isolation_that_it_had(tmp_path: Path) -> None:
    """What is copied ends within a transaction, whose end is in the segment that is still open."""
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    interval = Interval(NOW, NOW + 10_000)
    own, other = isolated(committed_only=True), isolated(committed_only=False)
    write_and_copy(files, 1_000, "roll")
    assert export(files, interval, query=own) == (0,)
    write_and_copy(files, "begin", "roll", 100_000, "roll", "end")
    assert late(files, query=own) == waiting(interval)
    [again] = late(files, query=other).due
    assert again.table_query.rows.committed_only
    write_and_copy(files, "roll", 100_000, "roll")
    assert [each.interval for each in late(files, query=own).due] == [interval]
    assert export(files, interval, query=own) == ()
    assert late(files, query=other) == LateIntervals()


def test_an_interval_whose_commit_was_interrupted_is_due(files: RemoteLogFiles) -> None:
    interval = Interval(NOW, NOW + 10_000)
    export(files, interval)
    (table(files) / interval.folder / "_SUCCESS").unlink()
    assert due(files) == [interval]


def test_an_interval_with_expired_records_stays_as_it_is(files: RemoteLogFiles) -> None:
    export(files)
    append_and_copy(files, 8)
    with unsynced(), files.open() as remote_log:
        move_log_start(remote_log, 25, held_by(remote_log, "test"))
    [kept] = late(files).incomplete
    assert kept.interval == TAIL
    assert "partition 0 below offset 25" in kept.reason
    assert due(files) == []


def test_an_interval_stays_as_it_is_if_its_partition_is_left_out(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3})
    export(files)
    append_and_copy(files, 8, 0)
    one = late(files, query=TableQuery("orders", partitions=frozenset({0})))
    [left_out] = one.incomplete
    assert "partitions 1 " in left_out.reason
    assert due(files) == [TAIL]
    with unsynced(), files.open() as remote_log:
        lease = held_by(remote_log, "test", partition_of(number=1))
        marked = RemotePartitionDeleteMetadata(partition_of(number=1), PartitionDeleteState.MARKED, NOW)
        remote_log.context.segments.put_remote_partition_delete_metadata(marked, lease)
    assert due(files) == []
    assert [each.interval for each in late(files).incomplete] == [TAIL]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "format_version is missing"),
        ('{"format_version": 9', "Invalid JSON"),
        (None, "version 9"),
        ('{"format_version": 9}', "version 9"),
    ],
    ids=["empty", "torn", "later", "later, with other fields"],
)
def test_an_unreadable_manifest_is_reported_and_does_not_affect_other_intervals(
    files: RemoteLogFiles, content: str | None, reason: str
) -> None:
    broken = Interval(NOW, NOW + 10_000)
    export(files, broken)
    export(files)
    manifest = table(files) / broken.folder / "_manifest.json"
    whole = manifest.read_text().replace('"format_version": 1', '"format_version": 9')
    manifest.write_text(whole if content is None else content)
    append_and_copy(files, 4)
    found = late(files)
    assert [each.interval for each in found.due] == [TAIL]
    assert [each.interval for each in found.incomplete] == [broken]
    assert reason in found.incomplete[0].reason


def test_a_manifest_that_does_not_tell_the_partitions_is_due_once(files: RemoteLogFiles) -> None:
    interval = Interval(NOW + 28_100, NOW + 28_900)
    export(files, interval)
    manifest = table(files) / interval.folder / "_manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: text.index(',\n "partitions"')] + "\n}")
    assert due(files) == [interval]
    export(files, interval)
    assert manifest.read_text() == text
    assert late(files) == LateIntervals()


def test_nothing_is_reported_of_a_foreign_place(files: RemoteLogFiles) -> None:
    assert late(files) == LateIntervals()
    assert not table(files).exists()
    export(files)
    described = table(files) / "_table.json"
    described.write_text(described.read_text().replace('"topic_id": "', '"topic_id": "x'))
    assert late(files) == LateIntervals()


@pytest.mark.parametrize("error", [RemoteObjectNotFoundError("lost"), RemoteObjectCorruptError("broken")], ids=str)
def test_a_partition_that_does_not_tell_may_begin_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 0})
    before = Interval(NOW - 60_000, NOW)
    export(files, before)
    append_and_copy(files, 4, 1)
    assert late(files) == LateIntervals()
    fetch = ObjectRemoteStorageManager.fetch_index

    def lost(storage: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        if kind is IndexKind.MANIFEST:
            raise error
        return fetch(storage, metadata, kind)

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", lost)
    assert due(files) == [before]
