from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import remote_logs
from support.command_line import mentions
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
from tiered_storage.errors import (
    ConfigurationError,
    LeaseHeldError,
    LeaseLostError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.remote_log.copy.copier import CopySizes
from tiered_storage.remote_log.jobs import groups
from tiered_storage.remote_log.jobs.throttle import Quota, QuotaLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.model import Lease, SegmentState
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tables import export_job
from tiered_storage.remote_log.tables import exports as remote_log_tables
from tiered_storage.remote_log.tables.export_job import (
    ExportJob,
    ExportJobDescription,
    ExportOutcome,
    ExportRequest,
    ExportTask,
    run_export_groups,
)
from tiered_storage.remote_log.tables.exports import BegunExport, ExportReport
from tiered_storage.remote_log.tables.layout import Interval, TableFolder
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery

INTERVAL = Interval(NOW + 3_000, NOW + 24_000)
"""Record n has the timestamp NOW + n seconds: offsets 3 to 23."""
FOLDER = "interval=2023-11-14T22-13-23Z_2023-11-14T22-13-44Z"


def request(files: RemoteLogFiles, **changes: Any) -> ExportRequest:
    """The export of INTERVAL of orders, in blocks of 8 offsets."""
    usual = ExportRequest(TableQuery("orders"), INTERVAL, target(files).as_uri(), block_offsets=8)
    return replace(usual, **changes)


def target(files: RemoteLogFiles) -> Path:
    return files.root / "exports"


def interval_folder(files: RemoteLogFiles) -> Path:
    return target(files) / "orders" / FOLDER


def work(export: BegunExport, folder: str = "runs/export/1") -> ExportReport:
    """Do all of a begun export in this thread."""
    job = export.write_job(folder)
    for number in range(job.groups):
        run_export_groups(export.context.access(job.files), [number])
    return export.commit(list(job.outcomes()))


def export(files: RemoteLogFiles, owner: str = "run", **changes: Any) -> ExportReport:
    with unsynced(), files.open() as remote_log, remote_log.tables.export(request(files, **changes), owner) as begun:
        return work(begun)


def offsets(files: RemoteLogFiles, partition: int = 0) -> list[int]:
    """The offsets of one partition in all files that a reader of *.parquet finds, in the order of their names."""
    found: list[int] = []
    for path in sorted(interval_folder(files).glob(f"{partition:05d}-*.parquet")):
        table = pq.read_table(path)
        assert table.column("partition").unique().to_pylist() == [partition]
        found += table.column("offset").to_pylist()
    return found


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


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
    """All is copied once more, in other chunks, beside what was copied before: no record comes twice."""
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
    """The store was damaged since: nobody would find the records any more that are here."""
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


def test_a_broken_batch_is_a_dead_letter_and_all_around_it_is_exported(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[100] ^= 1
    data.write_bytes(raw)
    report = export(files)
    assert (report.dead_letters, report.rows) == (1, 16)
    assert offsets(files) == [*range(3, 10), *range(15, 24)]
    [letter] = (interval_folder(files) / "_dead_letters.jsonl").read_text().splitlines()
    assert f'"object":"{data.relative_to(files.store)}","position":0,' in letter
    assert '"first_offset":10,"last_offset":14' in letter
    assert "CRC" in letter
    # A batch that two blocks share is one letter.
    assert export(files, block_offsets=4).dead_letters == 1
    # Repaired by hand: the letter goes, the records come.
    raw[100] ^= 1
    data.write_bytes(raw)
    assert export(files).dead_letters == 0
    assert not (interval_folder(files) / "_dead_letters.jsonl").exists()
    assert offsets(files) == list(range(3, 24))


@pytest.mark.parametrize(("position", "bit"), [(22, 0x20), (35, 0x80), (46, 1)], ids=["control", "timestamp", "id"])
def test_a_broken_header_leaves_no_batch_out_in_silence(files: RemoteLogFiles, position: int, bit: int) -> None:
    """It says that the batch is a marker, or of another time: the checksum shows that this is wrong."""
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[position] ^= bit
    data.write_bytes(raw)
    report = export(files)
    assert (report.dead_letters, report.rows) == (1, 16)
    assert '"first_offset":10,"last_offset":14' in (interval_folder(files) / "_dead_letters.jsonl").read_text()


@pytest.mark.parametrize("position", [8, 22, 100], ids=["length", "attributes", "record"])
def test_bytes_broken_in_transit_are_no_dead_letter(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    fetch, broken = ObjectRemoteStorageManager.fetch_log_segment, []

    def breaking(storage: Any, metadata: Any, *place: int) -> Any:
        content = bytearray(b"".join(fetch(storage, metadata, *place)))
        if (key := (metadata.segment_id.id, place)) not in broken:
            broken.append(key)
            content[position] ^= 0x20
        return iter((bytes(content),))

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_log_segment", breaking)
    report = export(files)
    assert (report.dead_letters, report.rows) == (0, 21)
    assert len(broken) > 4
    assert offsets(files) == list(range(3, 24))


def test_a_chunk_whose_headers_are_broken_is_a_dead_letter_to_its_end(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[8:12] = b"\xff\xff\xff\xff"
    data.write_bytes(raw)
    report = export(files)
    assert report.dead_letters == 1
    assert set(offsets(files)) <= {*range(3, 10), *range(15, 24)}
    assert {*range(3, 10), *range(20, 24)} <= set(offsets(files))


def test_a_block_with_too_many_broken_batches_is_not_exported(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_job, "MOST_BROKEN", 1)
    for data in files.objects(".log"):
        raw = bytearray(data.read_bytes())
        for position in (100, len(raw) - 10):
            raw[position] ^= 1
        data.write_bytes(raw)
    report = export(files, block_offsets=100)
    [failed] = report.failures
    assert failed.failure is not None
    assert mentions(failed.failure.message, "more than 1 batches", "decoded")
    assert not failed.failure.retriable
    assert not list(interval_folder(files).glob("*.parquet"))


class Killed(BaseException):
    """As a process that is gone: nothing handles it."""


CHANGES = ("put", "move", "create", "delete_many")


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> Callable[[], int]:
    """Let the process die before or after its call of that number that changes anything where exports go."""
    calls = 0

    def dying(kept: Any) -> Any:
        def call(client: LocalDirectory, *arguments: Any, **named: Any) -> Any:
            nonlocal calls
            if not client.root.endswith("exports"):
                return kept(client, *arguments, **named)
            calls += 1
            if calls - 1 == step and not after:
                raise Killed
            done = kept(client, *arguments, **named)
            if calls - 1 == step:
                raise Killed
            return done

        return call

    for name in CHANGES:
        monkeypatch.setattr(LocalDirectory, name, dying(getattr(LocalDirectory, name)))
    return lambda: calls


@pytest.mark.parametrize(("after", "had_another"), [(False, False), (True, True)])
def test_an_export_that_is_killed_anywhere_is_made_whole_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool, had_another: bool
) -> None:
    whole = a_copied_remote_log(tmp_path / "whole")
    export(whole, block_offsets=12)
    expected = files_in(target(whole))
    step, ended = 0, False
    while not ended:
        files = a_copied_remote_log(tmp_path / f"{step}")
        if had_another:  # with another file of the same name, and two that go
            export(files, codec="gzip")
        with monkeypatch.context() as patch:
            killed_at(patch, step, after=after)
            try:
                export(files, block_offsets=12)
                ended = True
            except Killed:
                assert_whole_or_not_said_to_be(files)
        export(files, block_offsets=12)
        assert files_in(target(files)) == expected, step
        step += 1
    assert step > 10


def assert_whole_or_not_said_to_be(files: RemoteLogFiles) -> None:
    """What says that it is whole has every record, once."""
    if (interval_folder(files) / "_SUCCESS").exists():
        assert offsets(files) == list(range(3, 24))


def test_the_later_of_two_concurrent_attempts_commits(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as zombie, files.open() as successor:
        with zombie.tables.export(request(files), "run") as first:
            job = first.write_job("runs/export/1")
            run_export_groups(zombie.context.access(job.files), [0])
            with successor.tables.export(request(files), "run") as second:
                for number in range(job.groups):
                    run_export_groups(zombie.context.access(job.files), [number])
                with pytest.raises(LeaseLostError):
                    first.commit(list(job.outcomes()))
                assert not list(interval_folder(files).glob("*.parquet"))
                assert work(second, "runs/export/2").rows == 21
        assert not [name for name in files_in(interval_folder(files)) if "_temporary" in name]
    assert offsets(files) == list(range(3, 24))


def taken_over_at(monkeypatch: pytest.MonkeyPatch, step: int, files: RemoteLogFiles) -> Callable[[], int]:
    """Let a successor export other files, while an attempt waits for the answer to its check of that number."""
    check, asked = SqlLeases.check, 0

    def late(leases: SqlLeases, lease: Lease) -> None:
        nonlocal asked
        asked += 1
        if asked - 1 == step:
            monkeypatch.setattr(SqlLeases, "check", check)
            assert export(files, codec="gzip", block_offsets=12).changed
        check(leases, lease)

    monkeypatch.setattr(SqlLeases, "check", late)
    return lambda: asked


def test_an_attempt_that_is_taken_over_at_any_step_changes_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[dict[str, bytes]] = []
    step, ended = 0, False
    while not ended:
        files = a_copied_remote_log(tmp_path / f"{step}")
        with monkeypatch.context() as patch:
            asked = taken_over_at(patch, step, files)
            try:
                export(files)
                ended = asked() <= step
            except LeaseLostError:
                results.append(files_in(target(files)))
                assert offsets(files) == list(range(3, 24))
        step += 1
    assert len(results) > 8
    assert all(found == results[0] for found in results)


def test_files_of_a_late_attempt_are_never_reported_complete(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was taken over stood between its check and its change, and continues while another commits."""
    move = LocalDirectory.move
    moved: list[str] = []

    def then_late(client: LocalDirectory, name: str, to: str) -> None:
        move(client, name, to)
        if not moved:
            (target(files) / to).write_bytes(b"of the late one")
        moved.append(to)

    monkeypatch.setattr(LocalDirectory, "move", then_late)
    with pytest.raises(RemoteStorageError, match="has other files") as raised:
        export(files)
    assert raised.value.retriable
    assert not (interval_folder(files) / "_SUCCESS").exists()
    assert export(files).changed
    assert offsets(files) == list(range(3, 24))


def test_an_export_made_since_the_plan_is_not_undone(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the plan of an export and its lease more is copied, and another run exports it."""
    later = Interval(NOW + 20_000, NOW + 60_000)
    export(files, interval=later)
    claim = TableFolder.claim

    def meanwhile(folder: TableFolder) -> None:
        monkeypatch.setattr(TableFolder, "claim", claim)
        files.append(8)
        with unsynced(), files.open() as remote_log:
            assert copy(remote_log).is_whole
        assert export(files, "another run", interval=later).rows == 40
        claim(folder)

    monkeypatch.setattr(TableFolder, "claim", meanwhile)
    late = export(files, interval=later)
    assert (late.changed, late.rows, late.not_reached) == (False, 40, ())


def test_another_run_waits_for_the_first(files: RemoteLogFiles) -> None:
    with files.open() as remote_log, remote_log.tables.export(request(files), "run"):
        with pytest.raises(LeaseHeldError), remote_log.tables.export(request(files), "another"):
            pass
        elsewhere = request(files, interval=Interval(NOW, NOW + 3_000))
        with remote_log.tables.export(elsewhere, "another"):
            pass


def test_a_block_that_fails_leaves_all_as_it_was(files: RemoteLogFiles) -> None:
    export(files)
    before = files_in(target(files))
    files.objects(".log")[1].unlink()
    report = export(files, codec="gzip")
    errors = [outcome.failure.error for outcome in report.failures if outcome.failure]
    assert errors == ["RemoteObjectNotFoundError"] * 2
    assert {name: digest for name, digest in files_in(target(files)).items() if "_temporary" not in name} == before


def test_a_worker_that_died_is_reported(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as remote_log, remote_log.tables.export(request(files), "run") as begun:
        job = begun.write_job("runs/export/1")
        report = begun.commit(list(job.outcomes()))
    for outcome in report.failures:
        assert outcome.failure is not None
        assert (outcome.failure.error, "worker" in outcome.failure.message) == ("", True)
    assert len(report.failures) == len(begun.tasks)


def two_jobs_in_one_folder(files: RemoteLogFiles, remote_log: RemoteLogManager, folder: str) -> tuple[ExportJob, str]:
    """Lay two exports out in the same folder; return the first one's job, and where the second one's files go."""
    elsewhere = request(files, interval=Interval(NOW, NOW + 3_000))
    with (
        remote_log.tables.export(request(files), "a") as first,
        remote_log.tables.export(elsewhere, "b") as second,
    ):
        return first.write_job(folder), second.write_job(folder).attempt


def test_files_of_another_export_in_a_jobs_folder_are_refused(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as remote_log:
        job, others = two_jobs_in_one_folder(files, remote_log, "runs/export/1")
        with closing(open_object_client(target(files).as_uri(), remote_log.context.options)) as client:
            description = job.files.description(ExportJobDescription)
            with pytest.raises(ConfigurationError, match=f"runs/export/1.*{others}") as raised:
                job.run_group(0, remote_log.context.storage, client, description)
        assert job.attempt in str(raised.value)
        with pytest.raises(ConfigurationError, match=f"{others}"):
            list(job.outcomes())


def test_a_worker_refuses_tasks_that_are_not_of_its_job(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as remote_log:
        job, _ = two_jobs_in_one_folder(files, remote_log, "runs/export/1")
        other, _ = two_jobs_in_one_folder(files, remote_log, "runs/export/2")
        other.files.write_tasks(0, job.files.tasks(0, ExportTask), ExportTask)
        with pytest.raises(ConfigurationError, match="runs/export/2"):
            run_export_groups(remote_log.context.access(other.files), [0])
        assert not job.files.results(0, ExportOutcome)
    assert not list(target(files).rglob("*.part"))


def test_results_of_an_earlier_attempt_are_none(files: RemoteLogFiles) -> None:
    with unsynced(), files.open() as remote_log:
        with remote_log.tables.export(request(files), "run") as first:
            job = first.write_job("runs/export/1")
            run_export_groups(remote_log.context.access(job.files), [0])
        with remote_log.tables.export(request(files), "run") as second:
            outcomes = list(second.write_job("runs/export/1").outcomes())
            assert second.commit(outcomes).failures
            assert work(second).rows == 21
    assert {each.failure.retriable for each in outcomes if each.failure is not None} == {True}
    assert len(outcomes) == len(second.tasks)


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


def test_intervals_that_overlap_are_refused(files: RemoteLogFiles) -> None:
    export(files)
    with pytest.raises(ConfigurationError, match="overlaps"):
        export(files, interval=Interval(NOW, NOW + 4_000))
    assert export(files, interval=Interval(NOW, NOW + 3_000)).rows == 3


@pytest.mark.parametrize("after", [False, True])
def test_beside_a_commit_that_was_killed_no_interval_is_committed_that_overlaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """Whatever the killed one had done already; and its retry is not kept from its end by what was refused."""
    overlapping = Interval(NOW, NOW + 4_000)
    refused, step, ended = 0, 0, False
    while not ended:
        files = a_copied_remote_log(tmp_path / f"{step}")
        with monkeypatch.context() as patch:
            killed_at(patch, step, after=after)
            try:
                export(files)
                ended = True
            except Killed:
                pass
        try:
            export(files, "another", interval=overlapping)
        except ConfigurationError as error:
            refused += 1
            assert FOLDER in str(error)
            assert ("unfinished" in str(error)) != (interval_folder(files) / "_SUCCESS").exists()
        assert_each_offset_once(files)
        if (target(files) / "orders" / overlapping.folder / "_SUCCESS").exists():
            assert not list(interval_folder(files).glob("*.parquet"))
        else:
            export(files)
            assert offsets(files) == list(range(3, 24))
        step += 1
    assert refused > 6


def assert_each_offset_once(files: RemoteLogFiles) -> None:
    paths = sorted((target(files) / "orders").rglob("*.parquet"))
    found = [offset for path in paths for offset in pq.ParquetFile(path).read(["offset"]).column("offset").to_pylist()]
    assert len(found) == len(set(found))


def test_leftovers_of_a_late_attempt_block_overlapping_intervals(files: RemoteLogFiles) -> None:
    late = target(files) / "orders" / Interval(NOW, NOW + 4_000).folder / "00000-00000000000000000000-000.parquet"
    export(files)
    late.parent.mkdir()
    late.write_bytes(b"of a late attempt")
    with pytest.raises(ConfigurationError, match="unfinished"):
        export(files, codec="gzip")
    late.unlink()
    assert export(files, codec="gzip").changed


def test_one_of_two_concurrent_overlapping_intervals_is_refused(files: RemoteLogFiles) -> None:
    day = request(files, interval=Interval(NOW, NOW + 60_000))
    with (
        unsynced(),
        files.open() as remote_log,
        remote_log.tables.export(request(files), "hour") as first,
        remote_log.tables.export(day, "day") as second,
    ):
        assert work(first).changed
        with pytest.raises(ConfigurationError, match="overlaps"):
            work(second, "runs/export/2")
    assert [path.name for path in (target(files) / "orders").glob("interval=*") if list(path.glob("*.parquet"))] == [
        FOLDER
    ]


def test_a_commit_waits_for_that_of_another_interval(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log_tables, "WAIT_SECONDS", 0.0)
    elsewhere = request(files, interval=Interval(NOW, NOW + 3_000))
    with (
        unsynced(),
        files.open() as remote_log,
        remote_log.tables.export(request(files), "a") as first,
        remote_log.tables.export(elsewhere, "b") as second,
    ):
        with first._table_lease(), pytest.raises(LeaseHeldError):
            work(second)
        assert work(second, "runs/export/2").rows == 3


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
