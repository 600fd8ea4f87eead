"""Lets all SQLite stores of a process share the statements that SQLAlchemy compiled.

Each store has an engine of its own, and an engine compiles every statement once. With a store for each test, that takes
a quarter of all their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from tiered_storage.remote_log.metadata.sql.database import sqlite_database

registry.register("sqlite.shared", __name__, "SharedDialect")
_COMPILED: dict[Any, Any] = {}


class SharedDialect(SQLiteDialect_pysqlite):
    """SQLite's dialect, equal to each other one: a statement is cached with its dialect."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedDialect)

    def __hash__(self) -> int:
        return hash(SharedDialect)


@contextmanager
def shared_statements() -> Iterator[None]:
    """Make the engines of all stores that are opened meanwhile share what they compile."""
    with mock.patch.object(sqlite_database, "create_engine", _sharing):
        yield


def _sharing(url: str, **options: Any) -> Engine:
    """Make an engine as create_engine does; SQLAlchemy takes the dialect from its URL."""
    shared = url.replace("sqlite:", "sqlite+shared:", 1)
    return create_engine(shared, execution_options={"compiled_cache": _COMPILED}, **options)
