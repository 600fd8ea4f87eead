"""Metadata move between SQLite and PostgreSQL, whole or not at all, whatever ends the process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from scenarios.postgres.killed_moves import move_until, move_until_point
from scenarios.postgres.postgres_sites import URL, sqlite_url, with_metadata_at
from servers.postgres import PASSWORD, postgres_url, the_server
from support.command_line import mentions, run_on
from support.metadata_stores import dump
from support.processes import killed
from support.remote_logs import RemoteLogFiles, assert_clean, copy
from tiered_storage.errors import MetadataMissingError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database import moving
from tiered_storage.remote_log.metadata.sql.database.moving import move_metadata
from tiered_storage.remote_log.metadata.sql.database.postgres_database import PostgresDatabase
from tiered_storage.remote_log.metadata.sql.database.schema import metadata
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store


def test_metadata_move_to_postgres_and_back(site: RemoteLogFiles, url: str) -> None:
    before = run_on(site, "segments", "--json").rows

    done = run_on(site, "metadata", "move", url)

    assert done.exit_code == 0, done
    assert url in done.err
    moved = with_metadata_at(site, url)
    assert run_on(moved, "segments", "--json").rows == before
    with moved.open() as remote_log:
        assert_clean(remote_log)
    assert run_on(moved, "topics", "pause", "orders").exit_code == 0
    assert run_on(moved, "expire").exit_code == 0
    refused = run_on(site, "segments")
    assert refused.exit_code == 1
    assert f"moved to {url}" in refused.err

    assert run_on(moved, "metadata", "move", sqlite_url(site)).exit_code == 0

    assert run_on(site, "topics", "list", "--json").rows[0]["topic"] == "orders"
    assert run_on(site, "audit").exit_code == 0
    assert "moved to" in run_on(moved, "segments").err


def places(site: RemoteLogFiles, tmp_path: Path, first: str) -> Iterator[str]:
    """Yield URLs of databases without metadata, in turns a SQLite file and a PostgreSQL database."""
    kinds = ("sqlite", "postgresql") if first == "sqlite" else ("postgresql", "sqlite")
    for number, kind in enumerate(cycle(kinds)):
        yield sqlite_url(site, f"{number}.db") if kind == "sqlite" else postgres_url(tmp_path / str(number))


@pytest.mark.parametrize("first", ["postgresql", "sqlite"])
def test_a_move_that_breaks_off_anywhere_leaves_one_place_in_use_and_can_be_repeated(
    site: RemoteLogFiles, tmp_path: Path, first: str
) -> None:
    """Each step breaks off on the way to PostgreSQL and on the way back."""
    source = site.settings().rlmm_config_url.get_secret_value()
    targets = places(site, tmp_path, first)
    steps = ("copy_rows", "ensure_same_rows", "_settle", "ensure_free", "_ensure_of")
    for step, target in zip(steps, targets, strict=False):
        with mock.patch.object(moving, step, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            move_metadata(source, target, site.clock, 1000, lambda _: None)
        ensure_moves_after_all(site, source, target, [] if step == "_settle" else [source])
        source = target
    with with_metadata_at(site, source.replace(f":{quote(PASSWORD, safe='')}@", "@")).open() as remote_log:
        assert_clean(remote_log)


def ensure_moves_after_all(site: RemoteLogFiles, source: str, target: str, usable: list[str]) -> None:
    """Ensure that after a move that broke off, those of both that are `usable` are, and that the next move succeeds."""
    assert [url for url in (source, target) if opens(site, url)] == usable

    assert move_metadata(source, target, site.clock, 10_000, lambda _: None)
    assert move_metadata(source, target, site.clock, 10_000, lambda _: None), "once more does nothing"

    assert [url for url in (source, target) if opens(site, url)] == [target]


@pytest.mark.parametrize("step", ["ensure_same_rows", "_settle"])
def test_a_move_whose_process_is_killed_can_be_repeated(site: RemoteLogFiles, tmp_path: Path, step: str) -> None:
    source = site.settings().rlmm_config_url.get_secret_value()
    for target in islice(places(site, tmp_path, "postgresql"), 2):
        assert killed(move_until, step, source, target) == -signal.SIGKILL
        ensure_moves_after_all(site, source, target, [] if step == "_settle" else [source])
        source = target
    with with_metadata_at(site, source).open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", ["postgresql", "sqlite"])
def test_a_move_whose_process_is_killed_around_any_commit_can_be_repeated(
    site: RemoteLogFiles, tmp_path: Path, first: str
) -> None:
    """At every other point on the way to PostgreSQL, and at those between them on the way back."""
    source = site.settings().rlmm_config_url.get_secret_value()
    for number, target in enumerate(places(site, tmp_path, first), 1):
        ended = killed(move_until_point, number, source, target)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        usable = [url for url in (source, target) if opens(site, url)]
        assert usable in ([source], [], [target]), (number, usable)
        ensure_moves_after_all(site, source, target, usable)
        source = target
    assert number > 20
    assert [url for url in (source, target) if opens(site, url)] == [target]
    with with_metadata_at(site, target.replace(f":{quote(PASSWORD, safe='')}@", "@")).open() as remote_log:
        assert_clean(remote_log)


def test_a_row_that_another_one_replaces_at_the_target_ends_the_move(
    site: RemoteLogFiles, moved: RemoteLogFiles, tmp_path: Path
) -> None:
    """The source stays in use, as it was."""
    source, target = moved.properties[URL], postgres_url(tmp_path / "target")
    with mock.patch.object(moving, "copy_rows", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        move_metadata(str(source), target, site.clock, 1000, lambda _: None)
    database = target.rpartition("/")[2]
    the_server().execute(
        """
        CREATE FUNCTION alter_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.end_offset := NEW.end_offset + (NEW.start_offset = 10)::int; RETURN NEW; END $$;
        CREATE TRIGGER alter_row BEFORE INSERT ON segments FOR EACH ROW EXECUTE FUNCTION alter_row()
        """,
        database,
    )
    before = rows_at(str(source))

    with pytest.raises(RemoteMetadataError, match=r"segments .*segment_id "):
        move_metadata(str(source), target, site.clock, 1000, lambda _: None)

    assert rows_at(str(source)) == before
    assert [url for url in (source, target) if opens(site, str(url))] == [source]
    assert run_on(moved, "topics", "pause", "orders").exit_code == 0
    the_server().execute("DROP TRIGGER alter_row ON segments", database)
    ensure_moves_after_all(site, str(source), target, [str(source)])


def rows_at(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with PostgresDatabase(url, 1000) as opened, opened.reading() as connection:
        return dump(connection, metadata)


def opens(files: RemoteLogFiles, url: str) -> bool:
    try:
        open_metadata_store(url, files.clock, create=False).close()
    except MetadataMissingError:
        return False
    return True


def test_a_process_that_still_has_the_old_metadata_open_writes_nothing_there(site: RemoteLogFiles, url: str) -> None:
    with site.open() as remote_log:
        move_metadata(site.settings().rlmm_config_url.get_secret_value(), url, site.clock, 1000, lambda _: None)

        with pytest.raises(MetadataMissingError, match="moved to"):
            copy(remote_log)


def test_metadata_are_not_moved_while_a_lease_is_held(site: RemoteLogFiles, url: str) -> None:
    with site.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        remote_log.context.leases.acquire(partition, "a copy run", 60_000)

        refused = run_on(site, "metadata", "move", url)

    assert refused.exit_code == 1
    assert "a copy run" in refused.err
    assert run_on(site, "segments").exit_code == 0


def test_a_copy_of_metadata_that_moves_stays_a_copy(site: RemoteLogFiles, moved: RemoteLogFiles, url: str) -> None:
    database = url.rpartition("/")[2]
    the_server().dump_and_restore(database, f"{database}_copy")
    copied = with_metadata_at(site, f"{url}_copy")
    assert mentions(run_on(copied, "expire").err, f"{database}_copy", "copy of the metadata")

    assert run_on(copied, "metadata", "move", sqlite_url(site, "elsewhere.db")).exit_code == 0

    elsewhere = with_metadata_at(site, sqlite_url(site, "elsewhere.db"))
    assert mentions(run_on(elsewhere, "expire").err, "elsewhere.db", "copy of the metadata")
    assert run_on(moved, "expire").exit_code == 0
