"""Exports that are killed, taken over or beside one another commit each record once, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.files import files_in
from support.remote_logs import NOW, RemoteLogFiles, a_copied_remote_log, copy, unsynced
from support.simulated_crashes import Died
from tiered_storage.errors import ConfigurationError, LeaseHeldError, LeaseLostError, RemoteStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.model import Lease
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.tables import exports as remote_log_tables
from tiered_storage.remote_log.tables.export_job import (
    ExportJob,
    ExportJobDescription,
    ExportOutcome,
    ExportTask,
    run_export_groups,
)
from tiered_storage.remote_log.tables.layout import Interval, TableFolder
from unit.tiered_storage.remote_log.tables.exported_tables import (
    FOLDER,
    export,
    interval_folder,
    offsets,
    request,
    target,
    work,
)

CHANGES = ("put", "move", "create", "delete_many")


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> Callable[[], int]:
    """Kill the process before or after its nth call that changes anything in the exports' folder."""
    calls = 0

    def dying(kept: Any) -> Any:
        def call(client: LocalDirectory, *arguments: Any, **named: Any) -> Any:
            nonlocal calls
            if not client.root.endswith("exports"):
                return kept(client, *arguments, **named)
            calls += 1
            if calls - 1 == step and not after:
                raise Died
            done = kept(client, *arguments, **named)
            if calls - 1 == step:
                raise Died
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
            except Died:
                assert_whole_or_not_said_to_be(files)
        export(files, block_offsets=12)
        assert files_in(target(files)) == expected, step
        step += 1
    assert step > 10


def assert_whole_or_not_said_to_be(files: RemoteLogFiles) -> None:
    """An export that is marked complete has every record once."""
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


def test_results_of_an_earlier_attempt_are_ignored(files: RemoteLogFiles) -> None:
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
            except Died:
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
