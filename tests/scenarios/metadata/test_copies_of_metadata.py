"""Recovery and bad input: copies and mixtures of the metadata change nothing, until a person lets one take over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scenarios.bound_sites import DELETABLE
from scenarios.metadata.refusals import copied_to, everything, refused
from support.command_line import mentions, run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import RemoteLogFiles, a_copied_remote_log, a_remote_log, assert_clean
from tiered_storage.remote_log.metadata.sql.database import sqlite_database


@pytest.mark.parametrize(
    "command", [("expire",), ("retain",), ("copy",), ("delete-records", "orders", 0, "--before", 20)]
)
def test_a_copy_of_the_metadata_changes_nothing_though_it_comes_first(
    site: RemoteLogFiles, tmp_path: Path, command: tuple[object, ...]
) -> None:
    test_system = copied_to(site, tmp_path / "test")
    objects = set(site.objects())

    result = refused(test_system, *command)

    assert mentions(result.err, "copy of the metadata", "metadata take-over")
    assert "rsm.config.url" in result.err
    assert set(site.objects()) == objects
    assert run_on(site, "expire").exit_code == 0


def test_the_same_disk_on_another_machine_is_a_copy_until_it_takes_over(
    site: RemoteLogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is copied block by block has the same files, down to the inode and the time of birth."""
    machine_id = tmp_path / "machine-id"
    machine_id.write_text("1" * 32)
    monkeypatch.setattr(sqlite_database, "MACHINE_ID", machine_id)
    assert run_on(site, "topics", "pause", "orders").exit_code == 0
    assert run_on(site, "topics", "resume", "orders").exit_code == 0
    machine_id.write_text("2" * 32)

    result = refused(site, "expire")

    assert mentions(result.err, "copy of the metadata", "metadata take-over")
    assert run_on(site, "segments").exit_code == 0
    assert run_on(site, "metadata", "take-over", "--yes").exit_code == 0
    assert run_on(site, "expire").exit_code == 0
    machine_id.write_text("1" * 32)
    refused(site, "expire")


def test_a_copy_that_takes_over_fences_the_original_off(site: RemoteLogFiles, tmp_path: Path) -> None:
    moved = copied_to(site, tmp_path / "moved")

    assert run_on(moved, "metadata", "take-over", "--yes").exit_code == 0

    assert "older than the store" in refused(site, "expire").err
    assert run_on(moved, "expire").exit_code == 0


def test_an_old_database_beside_a_newer_write_ahead_log_is_noticed(site: RemoteLogFiles) -> None:
    database = database_of(site)
    assert run_on(site, "topics", "pause", "orders").exit_code == 0
    yesterday = database.read_bytes()
    assert run_on(site, "topics", "forbid-deletion", "orders").exit_code == 0
    # The log of a process that was killed: a run renewed the generation, and no checkpoint followed.
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with site.open() as remote_log:
            remote_log.context.guard.renew("a copy run")
        log = database.with_name(f"{database.name}-wal").read_bytes()
    with database.open("r+b") as file:
        file.write(yesterday)
        file.truncate(len(yesterday))
    database.with_name(f"{database.name}-wal").write_bytes(log)

    result = refused(site, "expire")

    assert "not those of generation" in result.err
    assert "rebuild-metadata" in result.err
    for command in (("retain",), ("copy",), ("topics", "allow-deletion", "orders")):
        assert "not those of generation" in refused(site, *command).err
    assert run_on(site, "metadata", "take-over", "--yes").exit_code == 0
    [topic] = run_on(site, "topics", "list", "--json").rows
    assert (topic["local_deletion_allowed"], topic["remote_deletion_allowed"]) == (False, False)


def test_metadata_that_a_person_lets_take_over_lose_every_right(site: RemoteLogFiles) -> None:
    backup = site.root / "yesterday.db"
    assert run_on(site, "metadata", "backup", backup).exit_code == 0
    assert run_on(site, "topics", "pause", "orders").exit_code == 0
    remove_metadata(site)
    restored = run_on(site, "metadata", "restore", backup)
    assert restored.exit_code == 0
    assert mentions(restored.err, "note: ", "metadata take-over", "rebuild-metadata")
    assert "'tiered-storage rebuild-metadata'" in restored.err
    assert "'tiered-storage metadata take-over'" in restored.err
    refused(site, "expire")
    refused(site, "copy")

    result = run_on(site, "metadata", "take-over", "--yes")

    assert result.exit_code == 0
    assert "topics allow-deletion" in result.err
    before = everything(site)
    assert run_on(site, "expire").exit_code == run_on(site, "retain").exit_code == 0
    assert everything(site) == before
    assert run_on(site, "topics", "allow-deletion", "orders").exit_code == 0
    site.append(4)
    assert run_on(site, "copy").exit_code == 0
    assert run_on(site, "expire").exit_code == 0
    with site.open() as remote_log:
        assert_clean(remote_log)


def test_metadata_of_another_store_do_not_take_over(site: RemoteLogFiles, tmp_path: Path) -> None:
    other = a_remote_log(tmp_path / "other", {("orders", 0): 3})
    remove_metadata(other)
    with other.open() as remote_log:
        remote_log.context.bind_store()
    site.properties["rsm.config.url"] = str(other.store)

    result = run_on(site, "metadata", "take-over", "--yes")

    assert result.exit_code == 1
    assert "belongs to the metadata" in result.err


def test_marks_that_an_undelete_took_back_delete_nothing_though_old_pages_bring_them_back(site: RemoteLogFiles) -> None:
    site.properties["remote.log.deletion.grace.ms"] = 3_600_000
    assert run_on(site, "expire").exit_code == 0
    marked = database_of(site).read_bytes()
    assert run_on(site, "undelete", "orders").exit_code == 0
    remove_metadata(site)
    database_of(site).write_bytes(marked)
    with site.open(outdated=True) as remote_log:
        # The generation is the one part that is not of yesterday.
        remote_log.context.guard.claim("a write-ahead log of today")
    site.properties["remote.log.deletion.grace.ms"] = 0

    for command in ("expire", "retain"):
        result = refused(site, command)
        assert "of different times" in result.err, result.err


def test_such_marks_delete_nothing_of_several_partitions_at_once(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}, topics={"orders": DELETABLE})
    files.properties["remote.log.deletion.grace.ms"] = 3_600_000
    assert run_on(files, "expire").exit_code == 0
    marked = database_of(files).read_bytes()
    assert run_on(files, "undelete", "orders").exit_code == 0
    remove_metadata(files)
    database_of(files).write_bytes(marked)
    with files.open(outdated=True) as remote_log:
        remote_log.context.guard.claim("a write-ahead log of today")
    files.properties["remote.log.deletion.grace.ms"] = 0
    before = files.objects()

    with files.open() as remote_log:
        report = remote_log.deletions.delete_marked("expire")

    assert report.deleted == ()
    assert all("of different times" in failure.message for failure in report.failures)
    assert len(report.failures) == 2
    assert files.objects() == before


def test_metadata_of_another_store_take_no_decision(site: RemoteLogFiles, tmp_path: Path) -> None:
    other = a_remote_log(tmp_path / "other", {("orders", 0): 3})
    remove_metadata(other)
    with other.open() as remote_log:
        remote_log.context.bind_store()
    site.properties["rsm.config.url"] = str(other.store)

    for command in (
        ("stop-deletions", "--reason", "why"),
        ("topics", "forbid-deletion", "orders"),
        ("read", "orders", 0, "--offset", 0),
    ):
        assert "belongs to the metadata" in refused(site, *command).err


def test_metadata_take_back_a_store_that_a_rebuild_elsewhere_took(site: RemoteLogFiles) -> None:
    other = site.root / "other.db"
    assert run_on(site, "rebuild-metadata", "--into", other, "--yes").exit_code == 0
    refused(site, "copy")

    assert run_on(site, "metadata", "take-over", "--yes").exit_code == 0

    assert run_on(site, "copy").exit_code == 0
    assert run_on(site, "audit").exit_code == 0
