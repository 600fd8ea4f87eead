"""Bringing a store to this version's schema."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from support.clocks import ManualClock
from support.command_line import mentions
from support.metadata_stores import ORDERS_0, sqlite_store
from tiered_storage.errors import MetadataCorruptError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.schema import (
    DROPPED_TABLES,
    SCHEMA_VERSION,
    VERSION_TABLE,
    metadata,
)
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import REVISIONS, bring_up_to_date, upgrade
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import SqliteDatabase
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store

NEXT_REVISION = """
from alembic import op
import sqlalchemy as sa

revision = "next"
down_revision = "{head}"


def upgrade():
    op.add_column("topics", sa.Column("note", sa.String))
    {more}
"""


@pytest.fixture
def filled(store: SqlMetadataStore, path: Path) -> Path:
    """A store that is in use: the path of its file."""
    store.leases.acquire(ORDERS_0, "run-1", 60_000)
    return path


def revisions_and_one(directory: Path, more: str = "") -> Path:
    """Copy the revisions and append another."""
    copied = directory / "migrations"
    shutil.copytree(REVISIONS, copied)
    (copied / "versions" / "next.py").write_text(NEXT_REVISION.format(head=SCHEMA_VERSION, more=more))
    return copied


def test_the_migrations_make_the_tables_that_the_code_uses(store: SqlMetadataStore, path: Path) -> None:
    with SqliteDatabase(path, 1_000) as database, database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_newest_revision_is_the_version_that_the_code_asks_for() -> None:
    assert ScriptDirectory(str(REVISIONS)).get_heads() == [SCHEMA_VERSION]


def test_every_table_of_every_revision_is_known(tmp_path: Path) -> None:
    """A copy of an older store in PostgreSQL has just those."""
    revisions = tmp_path / "migrations"
    shutil.copytree(REVISIONS, revisions)
    for file in sorted((revisions / "versions").glob("v*.py"), reverse=True):
        engine = create_engine("sqlite://")
        with engine.begin() as connection:
            upgrade(connection, "a database in memory", revisions)
            found = set(inspect(connection).get_table_names())
        assert found <= {*metadata.tables, *DROPPED_TABLES, VERSION_TABLE}, file.name
        file.unlink()


def test_the_tables_can_be_those_of_postgresql_too() -> None:
    for table in metadata.tables.values():
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def test_an_older_store_is_migrated_with_all_it_holds(filled: Path, store: SqlMetadataStore, tmp_path: Path) -> None:
    revisions = revisions_and_one(tmp_path)

    with SqliteDatabase(filled, 1_000) as database:
        bring_up_to_date(database, "next", revisions)
        with database.reading() as connection:
            assert connection.exec_driver_sql("SELECT note FROM topics").all() == []

    assert store.leases.acquire(ORDERS_0, "run-1", 60_000).fencing_number == 2


def test_threads_and_connections_that_migrate_at_once_all_succeed(filled: Path, tmp_path: Path) -> None:
    revisions = revisions_and_one(tmp_path)

    def migrate(_: int) -> None:
        with SqliteDatabase(filled, 30_000) as database:
            bring_up_to_date(database, "next", revisions)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(migrate, range(4))) == [None] * 4


def test_a_migration_that_breaks_off_leaves_the_store_as_it_was(filled: Path, tmp_path: Path) -> None:
    revisions = revisions_and_one(tmp_path, more='op.execute("INSERT INTO nowhere VALUES (1)")')

    with SqliteDatabase(filled, 1_000) as database:
        with pytest.raises(RemoteMetadataError, match="nowhere"):
            bring_up_to_date(database, "next", revisions)
        with database.reading() as connection:
            columns = {row.name for row in connection.exec_driver_sql("PRAGMA table_info(topics)")}
        bring_up_to_date(database)

    assert "note" not in columns


def test_the_store_as_it_was_is_kept_before_a_migration(
    filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    revisions = revisions_and_one(tmp_path)
    filled.chmod(0o640)
    kept = filled.with_name(f"{filled.name}.before-next")
    kept.write_bytes(b"of an earlier migration")

    with SqliteDatabase(filled, 1_000) as database:
        bring_up_to_date(database, "next", revisions)

    assert mentions(caplog.text, f"{filled}: ", SCHEMA_VERSION, "next", kept)
    assert kept.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(SCHEMA_VERSION,)]  # noqa: S608
        assert connection.execute("SELECT owner FROM leases").fetchall() == [("run-1",)]
    with open_metadata_store(f"sqlite:///{kept}", ManualClock()) as restored:
        assert restored.leases.acquire(ORDERS_0, "run-1", 60_000).fencing_number == 2


def test_a_store_that_is_up_to_date_and_a_new_one_are_not_copied(filled: Path, tmp_path: Path) -> None:
    with SqliteDatabase(filled, 1_000) as database:
        bring_up_to_date(database)

    assert list(tmp_path.glob("*.before-*")) == []


def test_without_the_copy_nothing_is_migrated(filled: Path, tmp_path: Path) -> None:
    revisions = revisions_and_one(tmp_path)
    (tmp_path / f"{filled.name}.before-next").mkdir()

    with SqliteDatabase(filled, 1_000) as database:
        with pytest.raises(RemoteMetadataError, match=r"before-next: "):
            bring_up_to_date(database, "next", revisions)
        bring_up_to_date(database)


def test_a_process_older_than_the_schema_gets_an_error_to_upgrade(
    filled: Path, store: SqlMetadataStore, tmp_path: Path
) -> None:
    revisions = revisions_and_one(tmp_path, more='op.rename_table("leases", "holders")')
    with SqliteDatabase(filled, 1_000) as database:
        bring_up_to_date(database, "next", revisions)

    with pytest.raises(MetadataCorruptError, match=r"version next.*upgrade"):
        store.leases.acquire(ORDERS_0, "run-1", 60_000)


def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(
    tmp_path: Path, path: Path, clock: ManualClock
) -> None:
    sqlite_store(tmp_path, clock).close()
    _execute(path, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - our own words
    before = hashlib.sha256(path.read_bytes()).digest()

    with pytest.raises(MetadataCorruptError, match=rf"version 9999\b.*{SCHEMA_VERSION}"):
        sqlite_store(tmp_path, clock)

    assert hashlib.sha256(path.read_bytes()).digest() == before


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE alembic_version (version_num TEXT)", f"CREATE TABLE {VERSION_TABLE} (version_num TEXT)"],
    ids=["another program's", "without a version"],
)
def test_a_database_that_is_no_metadata_store_is_refused(
    tmp_path: Path, path: Path, clock: ManualClock, statement: str
) -> None:
    _execute(path, statement)
    before = path.read_bytes()

    with pytest.raises(MetadataCorruptError, match=f"{path}"):
        sqlite_store(tmp_path, clock)

    assert path.read_bytes() == before


def _execute(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute(statement)
    database.close()
