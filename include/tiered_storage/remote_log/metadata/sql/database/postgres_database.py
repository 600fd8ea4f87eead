"""A PostgreSQL database, for the processes of many hosts.

A write transaction first takes an advisory lock of the store, so that one writes at a time, as in SQLite: no two can
deadlock or contradict one another. Each of its statements sees everything that was committed before it. A read
transaction sees one state of the database and never waits.

A transaction that cannot begin because the server is away, or is just starting, waits for it as long as for the lock.
A transaction whose connection is lost halfway is rolled back; the error is retriable.

The tables are in the first schema of the connection's search path (`?options=-csearch_path%3Dname` in the URL).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, Connection, Engine, MetaData, Table, exc, inspect, make_url, text
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from tiered_storage.errors import ConfigurationError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.postgres_connections import (
    LONGEST_STATEMENT_MS,
    allow_longest_statement,
    postgres_engine,
)
from tiered_storage.remote_log.metadata.sql.database.postgres_errors import explained, is_worth_waiting, state_of
from tiered_storage.remote_log.metadata.sql.database.row_copies import copy_rows, ensure_same_rows
from tiered_storage.remote_log.metadata.sql.database.schema import (
    DROPPED_TABLES,
    VERSION_TABLE,
    metadata,
)
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import migrated_since, schema_version, upgrade
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import write_new_file, writing_copy

OLDEST_SERVER = 130_000
"""The oldest server version that is supported, as server_version_num has it."""

_LOOK_TIMEOUT_MS = 2_000

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('remote log metadata in ' || current_schema(), 0))"

_PLACE = """
SELECT 'PostgreSQL ' || system_identifier || ' database ' || oid || ' table ' || to_regclass('generation')::oid
FROM pg_control_system(), pg_database WHERE datname = current_database()
"""


class _NothingWritten(Exception):  # noqa: N818 -- no error: it rolls a transaction back
    """Rolls back a trial transaction that succeeded."""


class PostgresDatabase(Database):
    """The PostgreSQL database at `url`. A write waits `busy_timeout_ms` for its turn, or for the server."""

    # One message to the server each.
    EXISTS_WITHOUT_TABLES: ClassVar[bool] = True
    BEGIN_TO_READ: ClassVar[str] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    BEGIN_TO_WRITE: ClassVar[str] = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_LOCK}"

    def __init__(self, url: str, busy_timeout_ms: int) -> None:
        """Raises ConfigurationError for an invalid URL; connects only when it is used."""
        parsed = postgres_url(url)
        super().__init__(postgres_engine(parsed, busy_timeout_ms), shown(parsed))
        self._busy_timeout_ms = busy_timeout_ms

    def _begun(self, engine: Engine) -> Connection:
        """Wait for a server that is away for a moment; pooled connections do not survive its restart."""
        waiting = Retrying(
            retry=retry_if_exception(is_worth_waiting),
            stop=stop_after_delay(self._busy_timeout_ms / 1000),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            reraise=True,
        )
        return waiting(super()._begun, engine)

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """Open a connection without a transaction, which would hide what is read-only by default."""
        with self._explained(), self._engine.connect() as connection:
            yield connection

    def keep_transaction(self, connection: Connection) -> None:
        """As Database.keep_transaction; a single statement of it may take an hour."""
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        connection.execute(text(f"SET LOCAL statement_timeout = {LONGEST_STATEMENT_MS}"))
        allow_longest_statement(connection)

    def check_place(self) -> None:
        """Do nothing: a connection leads to the server that it was opened to."""

    def place(self) -> str:
        """Return the ids of server, database and table: a restored dump has another table, database or server.

        A copy of the server's files has the same ids, as a promoted replica has.
        """
        with self.looking() as connection:
            found: str = connection.execute(text(_PLACE)).scalar_one()
        return found

    def is_at(self, place: str | None) -> bool:
        """As Database.is_at."""
        return place == self.place()

    def check_integrity(self) -> None:
        """Read every value of every table; the server finds damage by the checksums of its pages, if it has them."""
        with self.reading() as connection:
            for table in metadata.sorted_tables:
                connection.execute(text(f"SELECT sum(length(row_.*::text)) FROM {table.name} AS row_"))  # noqa: S608

    def check_writable(self) -> None:
        """As Database.check_writable."""
        with suppress(_NothingWritten), self.writing() as connection:
            connection.execute(text("UPDATE generation SET number = number"))
            raise _NothingWritten

    def keep_copy(self, suffix: str) -> str:
        """Copy the tables to others beside them, with `suffix` before their names; see Database.keep_copy.

        Their indexes and constraints are copied too: renamed, they are the store again (docs/upgrading.md).
        """
        prefix = re.sub(r"\W", "_", suffix)
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
        with self._explained(), self._begun(self._engine.execution_options(begin=begin)) as connection:
            self.keep_transaction(connection)
            for table in _tables(connection):
                _copy_table(connection, table, prefix)
            connection.commit()
        return f"{self.where}, in tables whose names begin with {prefix}_,"

    def copy_to(self, target: Path) -> None:
        """Write one state of the database to a SQLite file, and compare both row by row; see Database.copy_to."""

        def fill(file: Database) -> None:
            with self.reading() as source, file.writing() as copied:
                upgrade(copied, file.where)
                copy_rows(source, copied)
                ensure_same_rows(source, copied, str(target))

        with writing_copy(target):
            write_new_file(target, self._busy_timeout_ms, fill)

    def explain(self, error: exc.DBAPIError) -> RemoteMetadataError:
        """Translate the server's SQLSTATE, and libpq's text where it has none."""
        if state_of(error) in ("42P01", "42703") and (migrated := migrated_since(self._engine, self.where)):
            return migrated
        return explained(error, self.where, self._busy_timeout_ms)


def open_postgres(url: str, busy_timeout_ms: int, fill: Callable[[Database], None]) -> PostgresDatabase:
    """Open the database at `url`; if it has no metadata store, let `fill` write one: of two processes, one does.

    Raises ConfigurationError for an invalid URL, and for a server or database that cannot hold metadata.
    """
    database = PostgresDatabase(url, busy_timeout_ms)
    try:
        with database.reading() as connection:
            _ensure_suitable(connection, database.where)
            is_there = schema_version(connection) is not None
        if not is_there:
            fill(database)
    except BaseException:
        database.close()
        raise
    return database


def is_postgres_store(url: str) -> bool:
    """Return whether the database at `url` has a metadata store. Raises what reading it raises."""
    with PostgresDatabase(url, _LOOK_TIMEOUT_MS) as database, database.reading() as connection:
        return schema_version(connection) is not None


def _ensure_suitable(connection: Connection, where: str) -> None:
    version, encoding = connection.execute(
        text("SELECT current_setting('server_version_num')::int, current_setting('server_encoding')")
    ).one()
    if version < OLDEST_SERVER:
        raise ConfigurationError(
            f"{where}: the server is PostgreSQL {version // 10_000}: use {OLDEST_SERVER // 10_000} or later"
        )
    if encoding != "UTF8":
        raise ConfigurationError(f"{where}: the database has encoding {encoding}: create one with encoding UTF8")


def postgres_url(url: str) -> URL:
    """Return `url`, postgresql://user@host:port/database, parsed. Raises ConfigurationError for another one."""
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        # Not shown: an invalid URL may still contain a password.
        raise ConfigurationError(
            "rlmm.config.url is invalid: write it as postgresql://user@host:5432/database"
        ) from error
    if parsed.drivername != "postgresql" or not parsed.database:
        raise ConfigurationError(
            f"{shown(parsed)}: does not name a database: write postgresql://user@host:5432/database"
        )
    return parsed.set(drivername="postgresql+psycopg")


def with_login(url: str, given: Mapping[str, str | int | None], source: str) -> str:
    """Return `url` with what it leaves out of user, password, host, port and database, from `given`, by these names.

    Raises ConfigurationError if `source`, where that is from, names another server, database or user than the URL: its
    password must reach nobody else.
    """
    parsed = make_url(url)
    for name, value in given.items():
        own = getattr(parsed, name)
        if name in ("host", "port") and not own:
            own = ",".join(_listed(parsed.query.get("host")))
        if value and not own:
            parsed = parsed.set(**{name: value})  # type: ignore[arg-type]
        elif value and name != "password" and str(own) != str(value):
            raise ConfigurationError(
                f"{source} has {name} {value}, and rlmm.config.url {own}: name the same server, database and user in "
                "both, or leave them out of one"
            )
    return parsed.render_as_string(hide_password=False)


def shown(url: URL) -> str:
    """Return `url` for messages: without its password and options, but with all hosts that they name."""
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database).render_as_string()
    hosts, ports = (_listed(url.query.get(name)) for name in ("host", "port"))
    if len(ports) == len(hosts):
        hosts = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
    start, _, database = plain.rpartition("/")
    return f"{start}{',' if url.host and hosts else ''}{','.join(hosts)}/{database}"


def _listed(value: str | tuple[str, ...] | None) -> list[str]:
    values = (value,) if isinstance(value, str) else value or ()
    return [part for each in values for part in each.split(",")]


def _tables(connection: Connection) -> list[str]:
    """Return the names of the store's tables, in the schema of whichever version it has."""
    ours = {*metadata.tables, *DROPPED_TABLES, VERSION_TABLE}
    return sorted(ours.intersection(inspect(connection).get_table_names()))


def _copy_table(connection: Connection, table: str, prefix: str) -> None:
    # PostgreSQL would name the copied indexes, by rules of its own.
    copied = f"{prefix}_{table}"
    connection.execute(text(f'DROP TABLE IF EXISTS "{copied}"'))
    connection.execute(text(f'CREATE TABLE "{copied}" (LIKE "{table}" INCLUDING ALL EXCLUDING INDEXES)'))
    connection.execute(text(f'INSERT INTO "{copied}" SELECT * FROM "{table}"'))  # noqa: S608 -- our own names
    found = Table(table, MetaData(), autoload_with=connection)
    if found.primary_key.name is not None:
        key = ", ".join(f'"{column.name}"' for column in found.primary_key)
        name = f"{prefix}_{found.primary_key.name}"
        connection.execute(text(f'ALTER TABLE "{copied}" ADD CONSTRAINT "{name}" PRIMARY KEY ({key})'))
    for index in found.indexes:
        key = ", ".join(f'"{column.name}"' for column in index.columns)
        connection.execute(text(f'CREATE INDEX "{prefix}_{index.name}" ON "{copied}" ({key})'))
