"""A metadata store in PostgreSQL that is brought to this version's schema, and back again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, MetaData, insert, inspect, select

from integration.metadata.metadata_calls import dump_all, fill
from servers.postgres import postgres_url, the_server
from support.clocks import ManualClock
from support.command_line import mentions
from support.metadata_stores import ORDERS_0, sqlite_store
from support.processes import PATIENCE_SECONDS, in_processes
from tiered_storage.errors import RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.postgres_database import PostgresDatabase, open_postgres
from tiered_storage.remote_log.metadata.sql.database.row_copies import ensure_same_rows
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION, VERSION_TABLE, clock_readings
from tiered_storage.remote_log.metadata.sql.database.schema import metadata as newest
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import (
    REVISIONS,
    bring_up_to_date,
    schema_version,
    upgrade,
)
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

KEPT = f"before_{SCHEMA_VERSION}_"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[SqlMetadataStore]:
    """A store of this version's schema, which holds what the older one holds."""
    with sqlite_store(tmp_path, ManualClock()) as store:
        fill(store)
        yield store


@pytest.fixture
def older(request: pytest.FixtureRequest, url: str, reference: SqlMetadataStore, tmp_path: Path) -> str:
    """The version of the store that is now at `url`, filled: the one before, unless the test names another."""
    version: str = getattr(request, "param", "0008")
    fill_older(url, version, reference, tmp_path / "older revisions")
    return version


def fill_older(url: str, version: str, reference: SqlMetadataStore, revisions: Path) -> None:
    """Write the rows of `reference` to `url`, in the schema of `version`."""
    shutil.copytree(REVISIONS, revisions)
    for file in (revisions / "versions").glob("v*.py"):
        if file.name[1:5] > version:
            file.unlink()

    def write(database: Database) -> None:
        with database.writing() as written, reference._database.reading() as read:
            upgrade(written, database.where, revisions)
            older = MetaData()
            older.reflect(written)
            for table in older.sorted_tables:
                source = clock_readings if table.name == "clock_reading" else newest.tables.get(table.name)
                if source is not None:
                    written.execute(table.delete())
                    written.execute(
                        insert(table),
                        [
                            {"id": 1, **row._mapping} if table.name == "clock_reading" else _common(row._mapping, table)
                            for row in read.execute(select(source))
                        ],
                    )

    open_postgres(url, 1_000, write).close()


def _common(row: Any, table: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in table.columns}


def rows_at(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with PostgresDatabase(url, 1_000) as database, database.reading() as connection:
        return dump_all(connection)


def shape(connection: Connection, prefix: str = "") -> dict[str, Any]:
    """Return keys, indexes, checks and types of all tables whose names begin with `prefix`, without it."""
    found = inspect(connection)

    def of(table: str) -> Any:
        columns = [(column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(table)]
        key = found.get_pk_constraint(table)
        indexes = [(str(each["name"]).removeprefix(prefix), each["column_names"]) for each in found.get_indexes(table)]
        checks = [(each["name"], each["sqltext"]) for each in found.get_check_constraints(table)]
        named = (str(key["name"]).removeprefix(prefix) if key["name"] else None, key["constrained_columns"])
        return columns, named, indexes, checks

    return {
        name.removeprefix(prefix): of(name)
        for name in found.get_table_names()
        if name.startswith(prefix) and (prefix or not name.startswith(KEPT))
    }


@pytest.mark.parametrize("older", ["0007", "0008", "0009"], indirect=True)
def test_an_older_store_is_migrated_with_all_it_holds(
    older: str, url: str, reference: SqlMetadataStore, tmp_path: Path
) -> None:
    new = postgres_url(tmp_path / "new")
    open_metadata_store(new, ManualClock()).close()
    with PostgresDatabase(new, 1_000) as database, database.reading() as connection:
        of_a_new_store = shape(connection)

    with open_metadata_store(url, ManualClock(), create=False) as store:
        with store._database.reading() as connection, reference._database.reading() as expected:
            ensure_same_rows(expected, connection, "the migrated store")
            assert shape(connection) == of_a_new_store
        assert store.leases.acquire(ORDERS_0, "run-1", 60_000).fencing_number == 2


def test_the_store_as_it_was_is_kept_before_a_migration(older: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """With its version, and the table that a revision drops."""
    with PostgresDatabase(url, 1_000) as database, database.reading() as connection:
        before, shaped = dump_all(connection), shape(connection)
    assert {"clock_reading", VERSION_TABLE} < before.keys()
    assert all(before.values()), "a table without rows would prove nothing"
    the_server().execute(f"CREATE TABLE {KEPT}leases (of_an_earlier_attempt TEXT)", url.rpartition("/")[2])
    the_server().execute(f"ALTER TABLE {KEPT}leases OWNER TO remote_log", url.rpartition("/")[2])
    the_server().execute("CREATE TABLE of_somebody_else (note TEXT)", url.rpartition("/")[2])
    the_server().execute("GRANT SELECT ON of_somebody_else TO remote_log", url.rpartition("/")[2])

    with PostgresDatabase(url, 1_000) as database:
        bring_up_to_date(database)
        with database.reading() as connection:
            assert shape(connection, KEPT) == shaped

    kept = {name.removeprefix(KEPT): rows for name, rows in rows_at(url).items() if name.startswith(KEPT)}
    assert kept == before
    assert mentions(caplog.text, f" {KEPT}, is a copy")


@pytest.mark.parametrize("older", ["0007", "0008", "0009"], indirect=True)
def test_the_copy_can_be_put_back_and_migrated_again(older: str, url: str, reference: SqlMetadataStore) -> None:
    """By the statements of docs/upgrading.md."""
    with PostgresDatabase(url, 1_000) as database, database.reading() as connection:
        before, shaped = dump_all(connection), shape(connection)
    open_metadata_store(url, ManualClock()).close()

    page = (PROJECT_ROOT / "docs" / "upgrading.md").read_text()
    [put_back] = re.findall(r"```sql\n(DROP TABLE clock_readings, .*?)```", page, re.DOTALL)
    with psycopg.connect(url) as session:
        session.execute(put_back.encode())
    with PostgresDatabase(url, 1_000) as database, database.reading() as connection:
        assert dump_all(connection) == before
        assert shape(connection) == shaped
        assert schema_version(connection) == older

    ensure_holds(url, reference)


def test_only_one_of_many_processes_migrates(older: str, url: str, reference: SqlMetadataStore) -> None:
    assert in_processes(2, migrate, url) == [reference.identity.metadata_uuid] * 2

    ensure_holds(url, reference)


def ensure_holds(url: str, reference: SqlMetadataStore) -> None:
    with (
        open_metadata_store(url, ManualClock()) as store,
        store._database.reading() as connection,
        reference._database.reading() as expected,
    ):
        ensure_same_rows(expected, connection, "the migrated store")


def migrate(_number: int, barrier: Barrier, url: str) -> str:
    """Open the store at the same moment as the other processes; return its UUID."""
    barrier.wait(PATIENCE_SECONDS)
    with open_metadata_store(url, ManualClock()) as store:
        return store.identity.metadata_uuid


def test_a_migration_that_breaks_off_leaves_the_store_as_it_was(older: str, url: str, tmp_path: Path) -> None:
    before = rows_at(url)
    revisions = tmp_path / "broken"
    shutil.copytree(REVISIONS, revisions)
    [last] = (revisions / "versions").glob(f"v{SCHEMA_VERSION}*.py")
    last.write_text(f"{last.read_text()}    op.execute('INSERT INTO nowhere VALUES (1)')\n")  # noqa: S608

    with PostgresDatabase(url, 1_000) as database:
        with pytest.raises(RemoteMetadataError, match="nowhere"):
            bring_up_to_date(database, revisions=revisions)
        assert {name: rows for name, rows in rows_at(url).items() if not name.startswith(KEPT)} == before
        bring_up_to_date(database)

    assert rows_at(url)[VERSION_TABLE] == [(SCHEMA_VERSION,)]


def test_without_the_copy_nothing_is_migrated(older: str, url: str) -> None:
    before = rows_at(url)
    the_server().execute(f"CREATE VIEW {KEPT}leases AS SELECT 1", url.rpartition("/")[2])

    with PostgresDatabase(url, 1_000) as database, pytest.raises(RemoteMetadataError):
        bring_up_to_date(database)

    assert rows_at(url) == before
