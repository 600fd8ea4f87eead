"""What an export writes, what it leaves as it is, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import remote_logs
from support.files import files_in
from support.metadata_stores import a_step
from support.remote_logs import (
    NOW,
    RemoteLogFiles,
    a_copied_remote_log,
    copy,
    held_by,
    move_log_start,
    records,
    segments_of,
    unsynced,
)
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.copy.copier import CopySizes
from tiered_storage.remote_log.jobs import groups
from tiered_storage.remote_log.jobs.throttle import Quota, QuotaLimit
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.tables import export_job
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery
from unit.tiered_storage.remote_log.tables.exported_tables import INTERVAL, export, interval_folder, offsets, target


def test_an_interval_is_exported_by_blocks_of_offsets(files: RemoteLogFiles) -> None:
    report = export(files)
    assert (report.changed, report.rows, report.dead_letters, report.not_reached) == (True, 21, 0, ())
    assert [path.name for path in sorted(interval_folder(files).rglob("*")) if path.is_file()] == [
        "00000-00000000000000000000-000.parquet",
        "00000-00000000000000000008-000.parquet",
        "00000-00000000000000000016-000.parquet",
        "_SUCCESS",
        "_manifest.json",
    ]
    assert offsets(files) == list(range(3, 24))
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(interval_folder(files).glob("*.parquet"))])
    written = records(3, 24)
    assert rows.column("value").to_pylist() == [each.value for each in written]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [1000 * each.timestamp for each in written]


def test_the_workers_of_an_export_share_the_limit_of_reads_and_every_byte_counts(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Counted] = []

    class Counted(QuotaLimit):
        def __init__(self, quota: Quota) -> None:
            super().__init__(quota)
            self.spent = 0
            limits.append(self)

        def spend(self, size: int) -> None:
            self.spent += size

    monkeypatch.setattr(groups, "GROUP_TASKS", 1)
    monkeypatch.setattr(export_job, "QuotaLimit", Counted)
    files.properties["remote.log.manager.fetch.max.bytes.per.second"] = 8 << 20

    everything = Interval(NOW, NOW + 60_000)
    assert export(files, interval=everything).rows == 30

    assert len(limits) == 4
    assert sum(each.bytes_per_second for each in limits) == pytest.approx(8 << 20)
    with files.open() as remote_log:
        assert sum(each.spent for each in limits) >= sum(each.size for each in segments_of(remote_log))


def test_a_second_export_touches_nothing(files: RemoteLogFiles) -> None:
    export(files)
    before, times = files_in(target(files)), {path: path.stat().st_mtime_ns for path in target(files).rglob("*.*")}
    again = export(files, "another run")
    assert (again.changed, again.rows) == (False, 21)
    assert files_in(target(files)) == before
    assert {path: path.stat().st_mtime_ns for path in target(files).rglob("*.*")} == times


def test_files_are_the_same_whatever_segments_and_chunks_hold_the_records(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is copied again, in other chunks, beside the first copies: no record is exported twice."""
    export(files)
    before = files_in(interval_folder(files))
    shutil.rmtree(target(files))
    files.append(4)
    with unsynced(), files.open() as remote_log:
        for segment in segments_of(remote_log)[1:]:
            held = remote_log.context.leases.acquire(segment.segment_id.topic_id_partition, "test", 60_000)
            remote_log.context.segments.update_remote_log_segment_metadata(
                a_step(segment, SegmentState.DELETE_SEGMENT_STARTED), held
            )
            remote_log.context.leases.release(held)
        monkeypatch.setattr(remote_logs, "SIZES", CopySizes(64 << 10, 100, 1 << 20))
        assert copy(remote_log).is_whole
        assert len(segments_of(remote_log)) > 4
    assert export(files).rows == 21
    assert files_in(interval_folder(files)) == before


def test_later_copies_are_in_the_next_export(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    later = Interval(NOW + 20_000, NOW + 60_000)
    first = export(files, interval=later)
    assert (first.rows, first.not_reached) == (10, (0,))
    files.append(8)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    second = export(files, interval=later)
    assert (second.changed, second.rows, second.not_reached) == (True, 40, ())


def test_records_that_expired_since_stay_exported(files: RemoteLogFiles) -> None:
    export(files)
    before = files_in(target(files))
    with unsynced(), files.open() as remote_log:
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, 12, lease)
        remote_log.context.leases.release(lease)
    for codec in ("zstd", "gzip"):
        again = export(files, codec=codec)
        assert (again.changed, again.rows) == (False, 21)
        assert again.kept is not None
        assert "partition 0 below offset 12" in again.kept
        assert files_in(target(files)) == before
    # An interval that nobody exported before gets what is left.
    assert export(files, interval=Interval(NOW, NOW + 3_000)).rows == 0


def test_an_incomplete_interval_whose_records_expired_is_refused(files: RemoteLogFiles) -> None:
    """A commit was killed, and the records that it had exported have expired since."""
    export(files)
    with unsynced(), files.open() as remote_log:
        move_log_start(remote_log, 12, held_by(remote_log, "test"))
    success = interval_folder(files) / "_SUCCESS"
    success.unlink()
    with pytest.raises(RemoteObjectCorruptError, match="is incomplete"):
        export(files)
    success.touch()
    file = next(interval_folder(files).glob("*.parquet"))
    file.write_bytes(file.read_bytes() + b".")
    with pytest.raises(RemoteObjectCorruptError, match="is incomplete"):
        export(files)


def test_no_export_takes_the_place_of_one_with_more_partitions(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3})
    assert export(files, query=TableQuery("orders", partitions=frozenset({1}))).rows == 21
    assert export(files).rows == 42
    before = files_in(target(files))
    with pytest.raises(ConfigurationError, match=r"\b21 .*partition 0 .*\b0 now"):
        export(files, query=TableQuery("orders", partitions=frozenset({1})))
    assert {name: digest for name, digest in files_in(target(files)).items() if "_temporary" not in name} == before


def test_no_export_takes_the_place_of_one_with_more_records(files: RemoteLogFiles) -> None:
    """The store was damaged since: only the export still has these records."""
    export(files)
    before = files_in(target(files))
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[100] ^= 1
    data.write_bytes(raw)
    lenient = TableQuery("orders", rows=RowFilter(disorder_ms=60_000))
    for query in (TableQuery("orders"), lenient):
        with pytest.raises(ConfigurationError, match=r"\b21 .*partition 0 .*\b16 now"):
            export(files, query=query)
    assert {name: digest for name, digest in files_in(target(files)).items() if "_temporary" not in name} == before


def test_a_block_that_fails_leaves_all_as_it_was(files: RemoteLogFiles) -> None:
    export(files)
    before = files_in(target(files))
    files.objects(".log")[1].unlink()
    report = export(files, codec="gzip")
    errors = [outcome.failure.error for outcome in report.failures if outcome.failure]
    assert errors == ["RemoteObjectNotFoundError"] * 2
    assert {name: digest for name, digest in files_in(target(files)).items() if "_temporary" not in name} == before


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"query": TableQuery("payments")}, "topic 'payments' .*'tiered-storage topics list'"),
    ({"query": TableQuery("orders", "no-such-id")}, "with the id no-such-id"),
    ({"query": TableQuery("orders", partitions=frozenset({0, 7}))}, "of its partitions 7"),
    ({"query": TableQuery("orders", first_offset=7, end_offset=7)}, "offsets from 7 to 7"),
    ({"query": TableQuery("orders", partitions=frozenset())}, "partitions is empty"),
    ({"codec": "brotli9"}, "codec 'brotli9'"),
    ({"block_offsets": 0}, "blocks of 0 offsets"),
    ({"url": "ftp://somewhere"}, "cannot be opened"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_REQUESTS, ids=[message for _, message in BAD_REQUESTS])
def test_an_invalid_request_is_refused(files: RemoteLogFiles, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        export(files, **changes)


def test_an_empty_interval_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="from 2023-11-14T22-13-20Z to 2023-11-14T22-13-20Z"):
        Interval(NOW, NOW)
    with pytest.raises(ConfigurationError, match="outside the calendar"):
        _ = Interval(0, 1 << 62).folder


def test_a_place_that_is_not_ours_is_left_alone(files: RemoteLogFiles, tmp_path: Path) -> None:
    foreign = target(files) / "orders" / "payroll.csv"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("theirs")
    with pytest.raises(ConfigurationError, match="it has orders/payroll"):
        export(files)
    assert files_in(target(files)).keys() == {"orders/payroll.csv"}
    foreign.unlink()
    export(files)
    table = target(files) / "orders" / "_table.json"
    table.write_text(table.read_text().replace('"topic_id": "', '"topic_id": "x'))
    before = files_in(target(files))
    with pytest.raises(ConfigurationError, match=r"orders .*id x"):
        export(files)
    assert files_in(target(files)) == before
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigurationError, match="absolute path"):
        export(files, url=(tmp_path / "a file").as_uri())


def test_missing_offsets_are_an_error_unless_allowed(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as remote_log:
        [_, segment, _] = segments_of(remote_log)
        held = remote_log.context.leases.acquire(segment.segment_id.topic_id_partition, "test", 60_000)
        remote_log.context.segments.update_remote_log_segment_metadata(
            a_step(segment, SegmentState.DELETE_SEGMENT_STARTED), held
        )
        remote_log.context.leases.release(held)
    with pytest.raises(RemoteObjectNotFoundError, match="orders-0: offsets 10 to 19"):
        export(files)
    assert export(files, allow_gaps=True).rows == 11


def test_folders_of_intervals_tell_them() -> None:
    for interval in (INTERVAL, Interval(-1, 1), Interval(NOW + 1, NOW + 86_400_000)):
        assert Interval.of_folder(interval.folder) == interval
    for name in ("interval=x_y", "interval=2023-11-14T22-13-23Z_2023-11-14T22-13-23Z", "orders"):
        assert Interval.of_folder(name) is None
