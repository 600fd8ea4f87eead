"""Recovery: backups of the metadata are made whatever the store says, and restored over nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.metadata.refusals import copied_to, refused
from support.command_line import run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import RemoteLogFiles
from tiered_storage.clock import as_date


def test_a_backup_without_any_run_since_takes_over_with_its_rights(site: RemoteLogFiles) -> None:
    backup = site.root / "now.db"
    assert run_on(site, "metadata", "backup", backup).exit_code == 0
    remove_metadata(site)
    assert run_on(site, "metadata", "restore", backup).exit_code == 0
    assert "is a copy" in refused(site, "expire").err

    result = run_on(site, "metadata", "take-over", "--yes")

    assert "forbidden" not in result.err
    assert run_on(site, "expire").exit_code == 0


@pytest.mark.parametrize("left", ["", "-wal", "-shm", "-journal"])
def test_a_backup_is_not_restored_over_or_beside_what_is_left(site: RemoteLogFiles, left: str) -> None:
    backup = site.root / "backup.db"
    assert run_on(site, "metadata", "backup", backup).exit_code == 0
    remove_metadata(site)
    found = database_of(site).with_name(f"remote_log_metadata.db{left}")
    found.write_bytes(b"left")

    result = run_on(site, "metadata", "restore", backup)

    assert result.exit_code == 1
    assert str(found) in result.err
    assert found.read_bytes() == b"left"


def test_a_file_that_is_no_backup_is_not_restored(site: RemoteLogFiles) -> None:
    remove_metadata(site)
    for content in (b"", b"x" * 8192):
        wrong = site.root / "wrong.db"
        wrong.write_bytes(content)
        assert run_on(site, "metadata", "restore", wrong).exit_code == 1
        assert not database_of(site).exists()
    assert run_on(site, "metadata", "restore", site.root / "nowhere.db").exit_code == 1


def test_a_backup_never_overwrites_a_file(site: RemoteLogFiles) -> None:
    taken = site.root / "taken.db"
    taken.write_bytes(b"mine")

    result = run_on(site, "metadata", "backup", taken)

    assert result.exit_code == 1
    assert str(taken) in result.err
    assert taken.read_bytes() == b"mine"


def test_a_backup_of_metadata_that_are_not_the_stores_is_made_with_a_warning(
    site: RemoteLogFiles, tmp_path: Path
) -> None:
    moved = copied_to(site, tmp_path / "moved")
    sound = run_on(site, "metadata", "backup", tmp_path / "sound.db", "--json")
    of_a_copy = run_on(moved, "metadata", "backup", tmp_path / "copy.db", "--json")
    assert run_on(site, "topics", "pause", "orders").exit_code == 0

    outdated = run_on(moved, "metadata", "backup", tmp_path / "outdated.db", "--json")

    assert (sound.rows[0]["is_current"], sound.err) == (True, "")
    for result, why in ((of_a_copy, "is a copy of the metadata"), (outdated, "older than the store")):
        assert result.exit_code == 0
        assert "keep your earlier backups" in result.err
        assert why in result.err
        assert result.rows[0]["is_current"] is False


def test_a_backup_is_made_while_the_store_is_out_of_reach(site: RemoteLogFiles) -> None:
    site.store.rename(site.store.with_name("elsewhere"))

    result = run_on(site, "metadata", "backup", site.root / "backup.db")

    assert result.exit_code == 0
    assert "warning: " in result.err
    assert (site.root / "backup.db").stat().st_size


def test_the_doctor_names_a_backup_that_lacks_copies(site: RemoteLogFiles) -> None:
    assert "none was ever made" in " ".join(run_on(site, "doctor").out.split())
    assert run_on(site, "metadata", "backup", site.root / "backup.db").exit_code == 0
    assert "last backup" not in " ".join(run_on(site, "doctor").out.split())
    backed_up_at = site.clock.now
    site.clock.now += 60_000
    site.append(4)
    assert run_on(site, "copy").exit_code == 0
    output = " ".join(run_on(site, "doctor").out.split())
    assert "after the last backup" in output
    assert as_date(backed_up_at).removesuffix(" UTC") in output


def test_the_database_of_a_running_process_is_not_restored_as_a_backup(site: RemoteLogFiles) -> None:
    copied = site.root / "copied.db"
    copied.write_bytes(database_of(site).read_bytes())
    copied.with_name("copied.db-wal").write_bytes(b"commits")
    remove_metadata(site)

    result = run_on(site, "metadata", "restore", copied)

    assert result.exit_code == 1
    assert "copied.db-wal lies beside it" in result.err
    assert not database_of(site).exists()
