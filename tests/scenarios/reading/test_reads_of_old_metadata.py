"""Bad input: metadata older than the store are not read; a renewal under way or a store out of reach stops no read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.command_line import CommandResult, run_on
from support.metadata_files import database_of, put_back, remove_metadata
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, a_remote_log, copy
from support.simulated_crashes import Died, die
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.storage.documents.store_generation import StoreGenerations

DELETABLE = {**ENABLED, "retention.bytes": -1, "local.retention.bytes": 0}
READ = ("read", "orders", 0, "--offset", 0)
READING = {
    "read": READ,
    "offsets": ("offsets", "orders", 0),
    "segments": ("segments", "--topics", "orders"),
    "plan": ("plan",),
    "expire": ("expire", "--dry-run"),
    "retain": ("retain", "--dry-run"),
    "topics": ("topics", "list"),
    "restore": ("restore", "orders", "--to-directory", "restored"),
}


def backed_up(files: RemoteLogFiles) -> Path:
    backup = files.root / "backup.db"
    assert run_on(files, "metadata", "backup", backup).exit_code == 0
    return backup


def copy_and_trim(files: RemoteLogFiles) -> None:
    """Copy what is closed, and let local retention remove it, so that only the store has it."""
    with files.open() as remote_log:
        assert copy(remote_log).committed
    assert run_on(files, "retain").exit_code == 0


@pytest.fixture
def before_the_first_copy(tmp_path: Path) -> RemoteLogFiles:
    """A site whose metadata are those of right after `topics enable`: the same UUID, and no rows."""
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    backup = backed_up(files)
    copy_and_trim(files)
    put_back(files, backup.read_bytes())
    return files


@pytest.fixture
def before_the_last_copy(tmp_path: Path) -> RemoteLogFiles:
    """A site whose metadata lack the last copy."""
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    copy_and_trim(files)
    backup = backed_up(files)
    files.append(4)
    copy_and_trim(files)
    put_back(files, backup.read_bytes())
    return files


def refused(files: RemoteLogFiles, *command: object) -> CommandResult:
    result = run_on(files, *command)
    assert result.exit_code == 1, result
    assert "older than the store" in result.err, result
    assert "rebuild-metadata" in result.err
    assert "metadata restore" in result.err
    return result


@pytest.mark.parametrize("command", READING)
def test_metadata_from_before_the_first_copy_are_not_read(
    before_the_first_copy: RemoteLogFiles, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(before_the_first_copy.root)
    assert refused(before_the_first_copy, *READING[command]).out == ""
    assert not Path("restored").exists()


@pytest.mark.parametrize("command", READING)
def test_metadata_from_before_the_last_copy_are_not_read(
    before_the_last_copy: RemoteLogFiles, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(before_the_last_copy.root)
    refused(before_the_last_copy, *READING[command])


def test_metadata_from_before_the_first_copy_have_ways_out(before_the_first_copy: RemoteLogFiles) -> None:
    assert "older than the store" in " ".join(run_on(before_the_first_copy, "doctor").out.split())
    result = run_on(before_the_first_copy, "audit")
    assert result.exit_code == 1
    assert "older than the store" in result.out
    database_of(before_the_first_copy).unlink()

    assert run_on(before_the_first_copy, "rebuild-metadata", "--yes").exit_code == 0

    assert '"offset": 0' in run_on(before_the_first_copy, *READ, "--json").out
    assert run_on(before_the_first_copy, "audit").exit_code == 0


@pytest.fixture
def site(tmp_path: Path) -> RemoteLogFiles:
    files = a_copied_remote_log(tmp_path / "live", {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files


@pytest.mark.parametrize("step", [(StoreGenerations, "publish"), (SqlGeneration, "confirm")])
@pytest.mark.parametrize("command", [READ, READING["offsets"], ("plan",), ("audit",)])
def test_a_renewal_that_was_killed_stops_no_read_and_is_published_by_none(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], command: tuple[object, ...]
) -> None:
    with site.open() as remote_log, monkeypatch.context() as killed, pytest.raises(Died):
        killed.setattr(*step, die)
        remote_log.context.guard.renew("a copy run")
    before = {path: path.read_bytes() for path in site.store.rglob("*") if path.is_file()}

    assert run_on(site, *command).exit_code == 0

    assert {path: path.read_bytes() for path in site.store.rglob("*") if path.is_file()} == before


def test_a_run_that_renews_between_two_looks_stops_no_read(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = StoreGenerations.newest

    def and_renewed(self: StoreGenerations) -> object:
        monkeypatch.setattr(StoreGenerations, "newest", newest)
        found = newest(self)
        with site.open() as other:
            other.context.guard.renew("a copy run")
            other.context.guard.renew("an expiry")
        return found

    monkeypatch.setattr(StoreGenerations, "newest", and_renewed)
    assert run_on(site, *READ).exit_code == 0


def unmount(files: RemoteLogFiles) -> None:
    files.store.rename(files.root / "elsewhere")


def lose_identity(files: RemoteLogFiles) -> None:
    (files.store / "store.json").unlink()


def damage_identity(files: RemoteLogFiles) -> None:
    (files.store / "store.json").write_bytes(b"{")


def lose_generation(files: RemoteLogFiles) -> None:
    shutil.rmtree(files.store / "store.generation")


def damage_generation(files: RemoteLogFiles) -> None:
    for path in (files.store / "store.generation").iterdir():
        path.write_bytes(path.read_bytes()[:20])


LOSSES = {each.__name__: each for each in (unmount, lose_identity, damage_identity, lose_generation, damage_generation)}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_store_that_is_away_or_lost_its_marks_stops_no_read_of_what_is_there(site: RemoteLogFiles, loss: str) -> None:
    LOSSES[loss](site)

    assert run_on(site, *READ).exit_code == 0
    assert run_on(site, "copy").exit_code == 1


def test_a_backup_of_this_generation_is_read_wherever_it_is(site: RemoteLogFiles) -> None:
    backup = backed_up(site)
    remove_metadata(site)
    assert run_on(site, "metadata", "restore", backup).exit_code == 0

    assert run_on(site, *READ).exit_code == 0
    assert "is a copy" in run_on(site, "copy").err


def test_metadata_are_not_read_any_more_once_a_rebuild_took_their_store(site: RemoteLogFiles) -> None:
    assert run_on(site, "rebuild-metadata", "--into", site.root / "other.db", "--yes").exit_code == 0

    refused(site, *READ)


def test_an_open_remote_log_checks_again_whether_its_metadata_are_outdated(
    site: RemoteLogFiles, tmp_path: Path
) -> None:
    def looks(remote_log: RemoteLogManager) -> None:
        remote_log.context.guard.ensure_readable()

    with site.open() as remote_log:
        looks(remote_log)
        assert run_on(site, "rebuild-metadata", "--into", tmp_path / "other.db", "--yes").exit_code == 0
        with pytest.raises(Exception, match="older"):
            looks(remote_log)
