"""Recovery and bad input: every command refuses lost or damaged metadata and marks, and names the way out."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from scenarios.bound_sites import DELETABLE
from scenarios.metadata.refusals import refused
from support.command_line import mentions, run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import RemoteLogFiles, a_remote_log, assert_clean, topic_id
from tiered_storage.cli.main import LazyCommand, app
from tiered_storage.clock import as_date
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.storage.documents.object_names import STORE_GENERATION, STORE_IDENTITY

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
    "follow": ("orders", 0, "--directory", "TARGET"),
    "adopt": ("orders", "--from", "native.yaml"),
}
"""What a command needs beside its name."""


WITHOUT_METADATA = {"version", "dump", "move-partition", "rebuild-metadata", "metadata restore"}
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


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ARGUMENTS name files by relative paths."""
    monkeypatch.chdir(tmp_path)


def named(command: tuple[object, ...]) -> str:
    return " ".join(map(str, command))


def keep_marks(_: RemoteLogFiles) -> None:
    """Keep the store's identity."""


def lose_marks(files: RemoteLogFiles) -> None:
    """Remove the store's identity."""
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
