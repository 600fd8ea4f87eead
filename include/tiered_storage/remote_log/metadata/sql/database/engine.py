"""Access to a SQL database: short read or write transactions, with every failure as an error of ours.

What differs between databases is in a subclass (sqlite_database.py) and in the two functions at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from sqlalchemy import Connection, Engine, Table, exc

from tiered_storage.errors import MetadataUnavailableError, RemoteMetadataError

Rows = Sequence[Mapping[str, Any]]


class Database(ABC):
    """An open database; `where` names it in messages. Threads may share it; between calls nothing is locked."""

    BEGIN_TO_WRITE: ClassVar[str] = "BEGIN"

    def __init__(self, engine: Engine, where: str) -> None:
        self.where = where
        self._engine = engine
        self._writer = engine.execution_options(begin=self.BEGIN_TO_WRITE)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the database and changes nothing."""
        self.check_place()
        with self._explained(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end, or rolled back on an error."""
        self.check_place()
        with self._explained(), self._writer.begin() as connection:
            yield connection

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

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
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


def _insert(connection: Connection, table: Table) -> Any:
    # Standard SQL has no such insert; SQLite and PostgreSQL share one, each in its own module of SQLAlchemy.
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
