"""Attacks on the pair of metadata and store: lost, old, foreign and damaged marks, kills, and many at once."""

from __future__ import annotations

import io
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scenarios.bound_sites import DELETABLE
from support.command_line import CommandResult, mentions, run_on
from support.metadata_files import database_of, put_back
from support.remote_logs import RemoteLogFiles, a_copied_remote_log, a_remote_log
from support.simulated_crashes import Died, die
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration, StoreGenerations
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

READ = ("read", "orders", 0, "--offset", 0)
WRITING = [("copy",), ("expire",), ("retain",), ("delete-records", "orders", 0, "--before", 20), ("repair",)]


def a_second_installation(tmp_path: Path, site: RemoteLogFiles) -> RemoteLogFiles:
    """Return one with new metadata of its own, whose settings name the store of `site`."""
    second = a_remote_log(tmp_path / "second", {("payments", 0): 3}, topics={"payments": DELETABLE})
    database_of(second).unlink()
    with open_metadata_store(f"sqlite:///{database_of(second)}", second.clock):
        pass
    second.properties["rsm.config.url"] = str(site.store)
    return second


def generations_of(files: RemoteLogFiles) -> Path:
    return files.store / "store.generation"


def renew(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        remote_log.context.guard.renew("a copy run")


def everything(files: RemoteLogFiles) -> dict[str, bytes]:
    paths = (*files.log_directory.rglob("*.log"), *files.store.rglob("*"))
    return {str(path): path.read_bytes() for path in paths if path.is_file() and ".reserve" not in path.name}


def refused(files: RemoteLogFiles, *command: object) -> CommandResult:
    """Run a command that must fail by a message for people, and change neither log nor store."""
    before = everything(files)
    done = run_on(files, *command)
    assert everything(files) == before
    assert done.exit_code == 1, done
    assert "Traceback" not in done.err + done.out
    return done


def assert_taken_over(files: RemoteLogFiles) -> None:
    """Let the metadata take over, and see that nothing was lost."""
    assert run_on(files, "metadata", "take-over", "--yes").exit_code == 0
    assert run_on(files, *READ).exit_code == 0
    assert run_on(files, "audit").exit_code == 0
    assert run_on(files, "copy").exit_code == 0


# ------------------------------------------------------------------------------------------------- marks of the store


def lose_all(files: RemoteLogFiles) -> None:
    shutil.rmtree(generations_of(files))


def lose_the_newest(files: RemoteLogFiles) -> None:
    [newest] = generations_of(files).iterdir()
    content = newest.read_bytes()
    renew(files)
    shutil.rmtree(generations_of(files))
    newest.parent.mkdir()
    newest.write_bytes(content)


def empty(files: RemoteLogFiles) -> None:
    for path in generations_of(files).iterdir():
        path.write_bytes(b"")


def cut(files: RemoteLogFiles) -> None:
    for path in generations_of(files).iterdir():
        path.write_bytes(path.read_bytes()[:30])


def add_garbage_under_the_next_number(files: RemoteLogFiles) -> None:
    (generations_of(files) / f"{2:020}.json").write_bytes(b"\x00\xff" * 40)


def rename_to_a_later_number(files: RemoteLogFiles) -> None:
    [only] = generations_of(files).iterdir()
    only.rename(only.with_name(f"{77:020}.json"))


def leave_a_gap(files: RemoteLogFiles) -> None:
    foreign = StoredGeneration(900, "a foreign token", "an expiry", 5)
    (generations_of(files) / f"{900:020}.json").write_bytes(foreign.to_bytes())


DAMAGES = {
    each.__name__: each
    for each in (
        lose_all,
        lose_the_newest,
        empty,
        cut,
        add_garbage_under_the_next_number,
        rename_to_a_later_number,
        leave_a_gap,
    )
}


DAMAGED_MARKS: dict[str, Callable[[RemoteLogFiles], object]] = {
    "whole": lambda _: None,
    "no identity": lambda files: (files.store / "store.json").unlink(),
    "damaged identity": lambda files: (files.store / "store.json").write_bytes(b"{"),
    "no generation": lose_all,
    "damaged generation": cut,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_to_the_stores_generation_loses_anything(site: RemoteLogFiles, damage: str) -> None:
    DAMAGES[damage](site)

    for command in WRITING:
        result = refused(site, *command)
        assert "metadata take-over" in result.err + result.out, result

    assert_taken_over(site)


def test_foreign_files_beside_the_generations_are_ignored_and_kept(site: RemoteLogFiles) -> None:
    foreign = [generations_of(site) / name for name in ("notes.txt", "5.json", f"{'9' * 30}.json", "-1.json")]
    for path in foreign:
        path.write_bytes(b"somebody's")
    (generations_of(site) / "deeper").mkdir()
    (generations_of(site) / "deeper" / f"{9:020}.json").write_bytes(b"somebody's")

    assert run_on(site, *READ).exit_code == 0
    assert run_on(site, "expire").exit_code == 0

    assert all(path.exists() for path in foreign)


@pytest.mark.parametrize("command", [("copy",), ("expire",), ("plan",)])
def test_a_second_installation_does_not_take_a_store_whose_mark_is_gone(
    site: RemoteLogFiles, tmp_path: Path, command: tuple[object, ...]
) -> None:
    second = a_second_installation(tmp_path, site)
    (site.store / "store.json").unlink()
    before = everything(site)

    result = run_on(second, *command)

    assert everything(site) == before
    if command != ("plan",):
        assert result.exit_code == 1
        assert "belongs to other metadata" in result.err
    assert_taken_over(site)


@pytest.mark.parametrize("typed", ["n\n", ""])
@pytest.mark.parametrize("mark", ["whole", "no identity", "damaged identity", "no generation", "damaged generation"])
def test_a_rebuild_with_the_store_of_another_installation_names_it_and_asks(
    site: RemoteLogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, typed: str
) -> None:
    renew(site)
    second = a_second_installation(tmp_path, site)
    database_of(second).unlink()
    DAMAGED_MARKS[mark](site)
    before = everything(site)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))

    result = run_on(second, "rebuild-metadata")

    assert result.exit_code == 1
    assert everything(site) == before
    assert not database_of(second).exists()
    said = " ".join(result.err.split())
    assert str(site.store) in said
    assert "rsm.config.url" in said
    if mark == "whole":
        with site.open() as remote_log:
            assert remote_log.context.store.identity.metadata_uuid in said
        assert f"{socket.gethostname()}:{database_of(site)} last used it at " in said
    assert_taken_over(site)


def test_a_store_that_was_taken_by_a_persons_word_comes_back_by_one(site: RemoteLogFiles, tmp_path: Path) -> None:
    second = a_second_installation(tmp_path, site)
    database_of(second).unlink()
    objects = site.objects()

    assert run_on(second, "rebuild-metadata", "--yes").exit_code == 0
    assert str(database_of(second)) not in refused(site, "copy").err
    assert_taken_over(site)

    assert set(objects) <= set(site.objects())
    assert "older than the store" in refused(second, *READ).err


def test_a_take_over_names_who_loses_the_store(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_on(site, "rebuild-metadata", "--into", tmp_path / "other.db", "--yes").exit_code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))

    result = refused(site, "metadata", "take-over")

    assert mentions(" ".join(result.err.split()), "other.db", "made again")


def test_a_take_over_of_an_unmounted_disk_asks_whether_it_is_mounted(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = site.store.rename(site.root / "elsewhere")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))

    result = refused(site, "metadata", "take-over")

    assert mentions(" ".join(result.err.split()), site.store, "disk mounted")
    elsewhere.rename(site.store)
    assert run_on(site, "expire").exit_code == 0


@pytest.mark.parametrize("found", ["nothing", "an empty folder", "another store"])
def test_metadata_do_not_take_over_a_store_that_holds_nothing_they_know(
    site: RemoteLogFiles, tmp_path: Path, found: str
) -> None:
    elsewhere = site.store.rename(site.root / "elsewhere")
    if found == "an empty folder":
        site.store.mkdir()
    if found == "another store":
        other = a_copied_remote_log(tmp_path / "other", {("payments", 0): 3})
        shutil.copytree(other.store / "test-cluster", site.store / "test-cluster")

    result = refused(site, "metadata", "take-over", "--yes")

    assert mentions(" ".join(result.err.split()), site.store, "disk mounted")
    assert not (site.store / "store.json").exists()
    shutil.rmtree(site.store, ignore_errors=True)
    elsewhere.rename(site.store)
    assert run_on(site, "expire").exit_code == 0


def test_no_other_metadata_are_made_of_an_emptied_store_whose_metadata_know_segments(
    site: RemoteLogFiles, tmp_path: Path
) -> None:
    shutil.move(site.store / "test-cluster", tmp_path / "lost")

    result = refused(site, "rebuild-metadata", "--into", tmp_path / "other.db", "--yes")

    assert "holds no partition" in " ".join(result.err.split())
    assert not (tmp_path / "other.db").exists()
    shutil.move(tmp_path / "lost", site.store / "test-cluster")
    assert run_on(site, "expire").exit_code == 0


def test_metadata_that_know_no_segment_take_over_an_empty_store(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    shutil.rmtree(files.store)

    assert run_on(files, "metadata", "take-over", "--yes").exit_code == 0
    assert run_on(files, "copy").exit_code == 0
    assert run_on(files, "audit").exit_code == 0


def test_metadata_that_know_no_store_take_none_over(site: RemoteLogFiles, tmp_path: Path) -> None:
    second = a_second_installation(tmp_path, site)
    for mark in ("whole", "no identity"):
        DAMAGED_MARKS[mark](site)
        before = everything(site)
        result = run_on(second, "metadata", "take-over", "--yes")
        assert result.exit_code == 1, (mark, result)
        assert "rebuild-metadata" in result.err
        assert everything(site) == before
    assert_taken_over(site)


# ------------------------------------------------------------------------------------------- old and mixed metadata


def test_an_old_database_beside_a_newer_log_is_not_read(site: RemoteLogFiles) -> None:
    database = database_of(site)
    assert run_on(site, "topics", "pause", "orders").exit_code == 0
    yesterday = database.read_bytes()
    assert run_on(site, "topics", "forbid-deletion", "orders").exit_code == 0
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        renew(site)
        log = database.with_name(f"{database.name}-wal").read_bytes()
    with database.open("r+b") as file:
        file.write(yesterday)
        file.truncate(len(yesterday))
    database.with_name(f"{database.name}-wal").write_bytes(log)

    assert "not those of generation" in refused(site, *READ).err


def test_a_clone_that_sqlite_made_is_read_until_the_original_continues(site: RemoteLogFiles, tmp_path: Path) -> None:
    root = tmp_path / "clone"
    shutil.copytree(site.log_directory, root / "logs")
    (root / "state").mkdir()
    with (
        closing(sqlite3.connect(database_of(site))) as live,
        closing(sqlite3.connect(root / "state" / "remote_log_metadata.db")) as copy,
    ):
        live.backup(copy)
    clone = replace(site, root=root, properties={**site.properties, "rsm.config.url": str(site.store)})

    for command in WRITING:
        result = refused(clone, *command)
        assert mentions(" ".join((result.err + result.out).split()), root, "copy of the metadata"), result
    assert run_on(clone, *READ).exit_code == 0

    renew(site)
    assert "older than the store" in refused(clone, *READ).err
    assert run_on(site, "expire").exit_code == 0


def test_a_snapshot_that_was_put_back_is_neither_read_nor_believed(site: RemoteLogFiles) -> None:
    snapshot = database_of(site).read_bytes()
    renew(site)
    put_back(site, snapshot)

    for command in (*WRITING, READ):
        result = refused(site, *command)
        assert "older than the store" in " ".join((result.err + result.out).split()), result

    assert_taken_over(site)


# -------------------------------------------------------------------------------------------------- kills, and many


STEPS: dict[str, tuple[type, str]] = {
    "before the next token": (SqlGeneration, "renew"),
    "before the store": (StoreGenerations, "publish"),
    "before the confirmation": (SqlGeneration, "confirm"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_renewal_killed_at_any_step_is_carried_on_by_the_next_run(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with site.open() as remote_log, monkeypatch.context() as killed, pytest.raises(Died):
        killed.setattr(*STEPS[step], die)
        remote_log.context.guard.renew("a copy run")

    assert run_on(site, *READ).exit_code == 0
    assert run_on(site, "copy").exit_code == run_on(site, "expire").exit_code == 0
    assert run_on(site, "audit").exit_code == 0


TAKING: dict[str, tuple[type, str]] = {
    "before the store is bound": (ObjectRemoteStorageManager, "rebind"),
    "before the claim": (SqlGeneration, "claim"),
    "before the store": (StoreGenerations, "publish"),
    "before the confirmation": (SqlGeneration, "confirm"),
}


@pytest.mark.parametrize("step", TAKING)
@pytest.mark.parametrize("command", [("metadata", "take-over", "--yes"), ("rebuild-metadata", "--yes")])
def test_a_killed_take_over_can_be_repeated(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, step: str, command: tuple[object, ...]
) -> None:
    if "rebuild-metadata" in command:
        database_of(site).unlink()
    else:
        lose_all(site)
    with monkeypatch.context() as killed, pytest.raises(Died):
        killed.setattr(*TAKING[step], die)
        run_on(site, *command)
    objects = site.objects()

    assert run_on(site, *command).exit_code == 0

    assert site.objects() == objects
    assert run_on(site, *READ).exit_code == 0
    assert run_on(site, "audit").exit_code == 0
    assert run_on(site, "copy").exit_code == 0


def at_once(files: RemoteLogFiles, work: Sequence[Callable[[RemoteLogManager], object]], times: int) -> None:
    def run(one: Callable[[RemoteLogManager], object]) -> None:
        with files.open() as remote_log:
            for _ in range(times):
                one(remote_log)

    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(run, one) for one in work]:
            done.result()


def assert_agreed(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        known = remote_log.context.store.generation.read()
    # A slow process may create an earlier number after a faster one removed it: the highest number holds.
    newest = max(generations_of(files).glob("*.json"))
    stored = StoredGeneration.parse(newest.read_bytes(), str(newest))
    assert (known.number, known.token, known.next_token) == (stored.number, stored.token, None)


def test_many_that_renew_and_read_at_once_are_all_right(site: RemoteLogFiles) -> None:
    def renewed(remote_log: RemoteLogManager) -> None:
        remote_log.context.guard.renew("a copy run")

    def read(remote_log: RemoteLogManager) -> None:
        remote_log.context.guard.ensure_readable()

    at_once(site, [renewed] * 4 + [read] * 4, 8)

    assert_agreed(site)


def test_many_that_begin_a_store_at_once_agree_on_one_generation(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open():
        pass

    at_once(files, [lambda remote_log: remote_log.context.bind_store()] * 6, 1)

    assert_agreed(files)
