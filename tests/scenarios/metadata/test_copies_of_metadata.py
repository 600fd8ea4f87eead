"""Recovery and bad input: copies, mixtures and losses of the metadata, and the ways out that a person has."""

from __future__ import annotations

import io
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, a_remote_log, assert_clean, topic_id
from tiered_storage.cli.main import LazyCommand, app
from tiered_storage.clock import as_date
from tiered_storage.remote_log.metadata.sql.database import sqlite_database
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.storage.documents.object_names import STORE_GENERATION, STORE_IDENTITY

DELETABLE = {**ENABLED, "retention.bytes": 1000, "local.retention.bytes": 0}
READING = [
    ("read", "orders", 0, "--offset", 0),
    ("offsets", "orders", 0),
    ("segments", "--topics", "orders"),
    ("plan",),
    ("audit",),
    ("expire", "--dry-run"),
    ("retain", "--dry-run"),
    ("topics", "list"),
    ("failed-deletions",),
]
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "read": ("orders", 0, "--offset", 0),
    "offsets": ("orders", 0),
    "delete-records": ("orders", 0, "--before", 20),
    "delete-topic": ("orders",),
    "undelete": ("orders",),
    "leases end": ("orders", 0, "--yes"),
    **{f"topics {name}": ("orders",) for name in ("enable", "disable", "pause", "resume")},
    **{f"topics {name}": ("orders",) for name in ("allow-deletion", "forbid-deletion")},
    "topics set": ("orders", "retention.ms=1"),
    "metadata backup": ("BACKUP",),
    "metadata move": ("sqlite:///TARGET.db",),
    "metadata take-over": ("--yes",),
    "metadata trust-clock": ("--yes",),
    "restore": ("orders", "--to-directory", "TARGET"),
}
"""What a command needs beside its name."""

WITHOUT_METADATA = {"version", "dump", "rebuild-metadata", "metadata restore"}
"""The commands that open no metadata: the last two make them again."""


def leaves(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each command of the program, as it is called."""
    assert isinstance(group, TyperGroup)
    for name, lazy in group.commands.items():
        command = lazy.loaded if isinstance(lazy, LazyCommand) else lazy
        if isinstance(command, TyperGroup):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


ALL = [path for path in leaves(get_command(app)) if " ".join(path) not in WITHOUT_METADATA]
EVERY = list(
    dict.fromkeys(
        [*READING, *((*path, *ARGUMENTS.get(" ".join(path), ())) for path in ALL), ("stop-deletions", "--lift")]
    )
)
"""Every command that opens the metadata, also one that is new."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteLogFiles:
    monkeypatch.chdir(tmp_path)  # ARGUMENTS name files by relative paths
    files = a_copied_remote_log(tmp_path / "live", {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files


def database_of(files: RemoteLogFiles) -> Path:
    return files.root / "state" / "remote_log_metadata.db"


def remove_metadata(files: RemoteLogFiles) -> None:
    for path in database_of(files).parent.glob("remote_log_metadata.db*"):
        path.unlink()


def copied_to(files: RemoteLogFiles, root: Path) -> RemoteLogFiles:
    """Return a test system on copies of the local logs and of the metadata, with the live system's store."""
    shutil.copytree(files.log_directory, root / "logs")
    (root / "state").mkdir()
    shutil.copy(database_of(files), root / "state")
    url = str(files.properties.get("rsm.config.url", files.store))
    return replace(files, root=root, properties={**files.properties, "rsm.config.url": url})


def everything(files: RemoteLogFiles) -> set[str]:
    return {str(path) for path in (*files.log_directory.rglob("*.log"), *files.objects())}


def refused(files: RemoteLogFiles, *command: object) -> CommandResult:
    before = everything(files)
    done = run_on(files, *command)
    assert everything(files) == before
    assert done.exit_code == 1, done
    return done


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


def named(command: tuple[object, ...]) -> str:
    return " ".join(map(str, command))


def keep_marks(_: RemoteLogFiles) -> None:
    """Let the store say whose it is."""


def lose_marks(files: RemoteLogFiles) -> None:
    """Leave nothing in the store that says whose it is."""
    (files.store / STORE_IDENTITY).unlink()
    shutil.rmtree(files.store / STORE_GENERATION)


def test_every_command_of_the_program_is_tried() -> None:
    tried = {" ".join(path) for path in ALL}

    assert {"topics set", "leases end", "metadata backup"} <= tried
    assert not ARGUMENTS.keys() - tried
    assert {" ".join(path) for path in leaves(get_command(app))} >= WITHOUT_METADATA


@pytest.mark.parametrize("marks", [keep_marks, lose_marks])
@pytest.mark.parametrize("command", EVERY, ids=named)
def test_missing_metadata_of_a_used_store_are_an_error_and_are_not_made(
    site: RemoteLogFiles, command: tuple[object, ...], marks: Callable[[RemoteLogFiles], None]
) -> None:
    marks(site)
    remove_metadata(site)
    assert_names_the_rebuild(site, command)
    assert not database_of(site).exists()


@pytest.mark.parametrize("marks", [keep_marks, lose_marks])
@pytest.mark.parametrize("command", EVERY, ids=named)
def test_empty_metadata_of_a_used_store_are_an_error(
    site: RemoteLogFiles, command: tuple[object, ...], marks: Callable[[RemoteLogFiles], None]
) -> None:
    marks(site)
    remove_metadata(site)
    with open_metadata_store(f"sqlite:///{database_of(site)}", site.clock):
        pass
    assert_names_the_rebuild(site, command)


def test_a_store_that_lost_its_marks_and_its_metadata_has_a_way_out(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_marks(site)
    remove_metadata(site)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    asked = refused(site, "rebuild-metadata")
    assert mentions(" ".join(asked.err.split()), site.store, "metadata")

    assert run_on(site, "rebuild-metadata", "--yes").exit_code == 0

    assert run_on(site, "copy").exit_code == 0
    assert run_on(site, "audit").exit_code == 0
    with site.open() as remote_log:
        assert_clean(remote_log)


def occupy_the_work_area(files: RemoteLogFiles) -> None:
    (files.root / "occupied").write_text("no directory")
    files.properties["work.url"] = str(files.root / "occupied")


def of_a_later_release(files: RemoteLogFiles) -> None:
    files.store.mkdir(exist_ok=True)
    (files.store / STORE_IDENTITY).write_text('{"format_version": 99}')


def no_directory(files: RemoteLogFiles) -> None:
    files.store.write_text("no directory")


def lost_marks(files: RemoteLogFiles) -> None:
    (files.store / "a-cluster" / f"orders-{topic_id('orders')}" / "0" / "state").mkdir(parents=True)
    (files.store / "a-cluster" / f"orders-{topic_id('orders')}" / "0" / "state" / f"{5:020}.json").write_text("{}")


@pytest.mark.parametrize("damage", [occupy_the_work_area, of_a_later_release, no_directory, lost_marks])
@pytest.mark.parametrize("command", EVERY, ids=named)
def test_a_command_that_fails_at_the_beginning_leaves_no_metadata(
    tmp_path: Path, command: tuple[object, ...], damage: Callable[[RemoteLogFiles], None]
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1}, topics={"orders": DELETABLE})
    remove_metadata(files)
    damage(files)

    result = run_on(files, *command)

    assert result.exit_code == 1 or command == ("doctor",)
    assert not list(database_of(files).parent.glob("remote_log_metadata.db*"))


def assert_names_the_rebuild(site: RemoteLogFiles, command: tuple[object, ...]) -> None:
    files = {name: site.root / name.lower() for name in ("BACKUP", "TARGET")}
    is_marked = (site.store / STORE_IDENTITY).exists()
    result = refused(site, *(files.get(str(each), each) for each in command))
    assert "rebuild-metadata" in result.out + result.err, result
    assert not any(path.exists() for path in files.values())
    assert (site.store / STORE_IDENTITY).exists() == is_marked


@pytest.mark.parametrize(
    "command", [("read", "orders", 0, "--offset", 0), ("audit",), ("expire",), ("segments", "--topics", "orders")]
)
def test_only_the_commands_that_somebody_begins_with_make_metadata(tmp_path: Path, command: tuple[object, ...]) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    database_of(files).unlink()

    result = run_on(files, *command)

    assert result.exit_code == 1
    assert "there are no metadata" in result.err
    assert not database_of(files).exists()
    assert run_on(files, "topics", "enable", "orders").exit_code == 0
    assert database_of(files).exists()


def test_rebuilt_metadata_take_the_place_of_missing_ones(site: RemoteLogFiles) -> None:
    remove_metadata(site)

    assert run_on(site, "rebuild-metadata", "--yes").exit_code == 0

    assert run_on(site, "audit").exit_code == 0
    assert run_on(site, "plan").exit_code == 0


def test_a_rebuild_beside_live_metadata_asks_first(site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    other = site.root / "other.db"
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))

    result = run_on(site, "rebuild-metadata", "--into", other)

    assert result.exit_code == 1
    assert mentions(" ".join(result.err.split()), "remote_log_metadata.db", as_date(site.clock.now))
    assert not other.exists()
    assert run_on(site, "copy").exit_code == 0
    assert run_on(site, "rebuild-metadata", "--into", other, "--yes").exit_code == 0
    assert mentions(refused(site, "copy").err, "remote_log_metadata.db", "made again")


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 64])
def test_a_damaged_store_identity_has_a_way_out(site: RemoteLogFiles, content: bytes) -> None:
    (site.store / STORE_IDENTITY).write_bytes(content)
    result = refused(site, "copy")
    assert "metadata take-over" in result.err

    assert run_on(site, "metadata", "take-over", "--yes").exit_code == 0

    assert run_on(site, "copy").exit_code == 0
    assert run_on(site, "audit").exit_code == 0


def test_a_damaged_store_identity_without_metadata_has_a_way_out(site: RemoteLogFiles) -> None:
    (site.store / STORE_IDENTITY).write_bytes(b"{")
    remove_metadata(site)
    assert "rebuild-metadata" in refused(site, "copy").err

    assert run_on(site, "rebuild-metadata", "--yes").exit_code == 0

    assert run_on(site, "audit").exit_code == 0


def test_a_damaged_generation_has_a_way_out(site: RemoteLogFiles) -> None:
    [only] = (site.store / STORE_GENERATION).iterdir()
    only.write_bytes(b"{")
    assert "metadata take-over" in refused(site, "expire").err

    assert run_on(site, "metadata", "take-over", "--yes").exit_code == 0

    assert run_on(site, "copy").exit_code == 0


def test_a_first_copy_killed_after_it_marked_the_store_continues_and_has_a_way_out_without_metadata(
    tmp_path: Path,
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    assert run_on(files, "plan").exit_code == 0
    remove_metadata(files)
    assert "rebuild-metadata" in refused(files, "copy").err

    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0

    assert run_on(files, "copy").exit_code == 0
    assert run_on(files, "audit").exit_code == 0


def test_metadata_of_another_store_do_not_take_over(site: RemoteLogFiles, tmp_path: Path) -> None:
    other = a_remote_log(tmp_path / "other", {("orders", 0): 3})
    remove_metadata(other)
    with other.open() as remote_log:
        remote_log.context.bind_store()
    site.properties["rsm.config.url"] = str(other.store)

    result = run_on(site, "metadata", "take-over", "--yes")

    assert result.exit_code == 1
    assert "belongs to the metadata" in result.err


def test_the_database_of_a_running_process_is_not_restored_as_a_backup(site: RemoteLogFiles) -> None:
    copied = site.root / "copied.db"
    copied.write_bytes(database_of(site).read_bytes())
    copied.with_name("copied.db-wal").write_bytes(b"commits")
    remove_metadata(site)

    result = run_on(site, "metadata", "restore", copied)

    assert result.exit_code == 1
    assert "copied.db-wal lies beside it" in result.err
    assert not database_of(site).exists()


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
