"""Access to a SQL database: short read or write transactions, with every failure as an error of ours.

What differs between databases is in a subclass (sqlite_database.py, postgres_database.py) and in the functions at the
end. Both let one transaction write at a time, so what holds on one of them holds on the other.

Connections must not cross a fork: all that are idle are closed before one.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    Executable,
    Row,
    Table,
    any_,
    bindparam,
    event,
    exc,
)

from tiered_storage.errors import MetadataUnavailableError, RemoteMetadataError

Rows = Sequence[Mapping[str, Any]]

_DATABASE = "_remote_log_database"
"""The attribute of an error that names its database."""

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Database(ABC):
    """An open database; `where` names it in messages. Threads may share it; between calls nothing is locked."""

    BEGIN_TO_READ: ClassVar[str] = "BEGIN"
    BEGIN_TO_WRITE: ClassVar[str]
    EXISTS_WITHOUT_TABLES: ClassVar[bool] = False
    """Whether the database exists before the first run creates our tables in it, as one on a server does."""

    def __init__(self, engine: Engine, where: str) -> None:
        """`engine` has its driver begin no transactions: the statements above do."""
        self.where = where
        event.listen(engine, "begin", _begin)
        event.listen(engine, "handle_error", self._own)
        self._engine = engine
        self._check_write: Callable[[Connection], None] | None = None
        self._reader = engine.execution_options(begin=self.BEGIN_TO_READ)
        self._writer = engine.execution_options(begin=self.BEGIN_TO_WRITE)
        _open_engines.add(engine)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the database and changes nothing."""
        self.check_place()
        with self._explained(), self._begun(self._reader) as connection:
            yield connection

    def first(self, statement: Executable, values: Mapping[str, Any]) -> Row[Any] | None:
        """Return the first row of a single statement, which sees one state of the database."""
        with self.reading() as connection:
            return connection.execute(statement, values).first()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end, or rolled back on an error; others wait until it ends.

        If the connection is lost in the commit, it is unknown whether it was made: every change may be repeated.
        """
        self.check_place()
        with self._explained(), self._begun(self._writer) as connection:
            if self._check_write is not None:
                self._check_write(connection)
            yield connection
            connection.commit()

    def guard_writes(self, check: Callable[[Connection], None]) -> None:
        """Call `check` at the beginning of every write transaction from now on; what it raises refuses the write."""
        self._check_write = check

    def check_use(self, connection: Connection) -> None:
        """Call what guards writes, in a read transaction whose answer would be wrong in a database out of use."""
        if self._check_write is not None:
            self._check_write(connection)

    def _begun(self, engine: Engine) -> Connection:
        """Return a connection of `engine` whose transaction has begun; closing it rolls that back."""
        connection = engine.connect()
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    def prepare(self) -> None:
        """Prepare for use a database that is known to be a metadata store; a foreign one must stay as it is."""
        return

    @abstractmethod
    def keep_transaction(self, connection: Connection) -> None:
        """Let the transaction of `connection` last as long as it takes, for a copy of everything."""

    @abstractmethod
    def check_place(self) -> None:
        """Raise MetadataUnavailableError if the database is no longer the one that was opened."""

    @abstractmethod
    def place(self) -> str:
        """Return an id that distinguishes this database from its copies and stays the same while it is used."""

    @abstractmethod
    def is_at(self, place: str | None) -> bool:
        """Return whether `place`, from an earlier call of `place`, is that of this database."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Read the whole database. Raises MetadataCorruptError if its structure is corrupt."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise what a write would raise for missing rights or a lock; wait for other writers, and write nothing."""

    @abstractmethod
    def keep_copy(self, suffix: str) -> str:
        """Write a copy of the committed content, with `suffix` after its name, replacing an earlier one; return its
        path.

        Durable on return. May be called within `writing`; the copy excludes that transaction.
        """

    @abstractmethod
    def copy_to(self, target: Path) -> None:
        """Write a copy of what is committed to the new file `target`, durably.

        Raises ConfigurationError if there is such a file.
        """

    @abstractmethod
    def explain(self, error: exc.DBAPIError) -> RemoteMetadataError:
        """Return our error for `error` of this kind of database, naming `where` and what to do."""

    def spend_reserve(self) -> None:
        """Let this process's writes use the reserved room; do nothing if none is reserved."""
        return

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own(self, context: ExceptionContext) -> None:
        if context.sqlalchemy_exception is not None:
            setattr(context.sqlalchemy_exception, _DATABASE, self)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            if getattr(error, _DATABASE, self) is not self:
                raise  # of another database, which is read within a transaction of this one
            raise self.explain(error) from error
        except exc.TimeoutError as error:
            raise MetadataUnavailableError(
                f"{self.where}: all connections of this process are in use: try again, or use fewer threads"
            ) from error


def insert_missing(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert the rows whose key is missing."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), rows)


def insert_or_replace(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert the rows, replacing those with the same key."""
    insert = _insert(connection, table)
    key = [column.name for column in table.primary_key]
    replaced = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=replaced), rows)


def is_among(dialect: str, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that `column` is one of the values in the parameter `name`, a list.

    In PostgreSQL the list is one array: a parameter of its own for each value costs more than the search for it.
    """
    if dialect == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(column.type)))
    return column.in_(bindparam(name, expanding=True))


def execute_for_rows(connection: Connection, each: Executable, together: Executable, rows: Rows) -> None:
    """Run `each` for every row; in PostgreSQL `together` once, which takes a list of all rows' values for each name.

    There a row of its own costs as much as the update itself.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(together, {name: [row[name] for row in rows] for name in rows[0]})
    else:
        connection.execute(each, rows)


def _insert(connection: Connection, table: Table) -> Any:
    # Standard SQL has no such insert; SQLite and PostgreSQL share one, each in its own module of SQLAlchemy.
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)


def _begin(connection: Connection) -> None:
    begin = connection.get_execution_options().get("begin")
    if begin is not None:
        connection.exec_driver_sql(begin)


def _close_idle_connections() -> None:
    for engine in list(_open_engines):
        engine.dispose()


os.register_at_fork(before=_close_idle_connections)
