"""Copy all rows of a metadata store into another database, and compare both row by row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select

from tiered_storage.errors import RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.schema import metadata, store_identity

ROWS_AT_ONCE = 1000
"""Rows held in memory."""

_MARKS = {store_identity.c.moved_to, store_identity.c.arrives_from}
"""The columns that a move changes."""


def copy_rows(source: Connection, target: Connection) -> None:
    """Replace the rows of `target` by those of `source`, both of this version's schema, inside their transactions."""
    for table in metadata.sorted_tables:
        target.execute(delete(table))
        rows = _rows(source, table)
        while batch := [row._asdict() for row in islice(rows, ROWS_AT_ONCE)]:
            target.execute(insert(table), batch)


def ensure_same_rows(source: Connection, target: Connection, where: str) -> None:
    """Raise RemoteMetadataError, naming table and key, for the first row that differs; `where` names the target.

    The marks of a move are not compared.
    """
    for table in metadata.sorted_tables:
        for expected, found in zip_longest(_rows(source, table), _rows(target, table)):
            if expected is None or found is None or _compared(table, expected) != _compared(table, found):
                named = _key(table, found if expected is None else expected)
                raise RemoteMetadataError(
                    f"{where}: table {table.name} has another row {named} than its source: nothing was changed at the "
                    "source; make sure that nobody else writes there, then try again"
                )


def _rows(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    """Yield the rows in the order of their keys, which is the same in every database: texts sort by their bytes."""
    statement = select(table).order_by(*table.primary_key.columns)
    yield from connection.execute(statement.execution_options(yield_per=ROWS_AT_ONCE))


def _compared(table: Table, row: Row[Any]) -> list[Any]:
    return [row._mapping[column] for column in table.columns if column not in _MARKS]


def _key(table: Table, row: Row[Any]) -> str:
    return ", ".join(f"{column.name} {row._mapping[column]}" for column in table.primary_key.columns)
