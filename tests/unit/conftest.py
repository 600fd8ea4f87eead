"""What all unit tests share: statements that SQLAlchemy compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Engine, util
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Compile each statement once, and not once for every store that a test opens: that is a seventh of their time.

    SQLAlchemy keeps them by the engine, under a key with the engine's dialect in it; here all engines keep them
    together, and all dialects of SQLite are alike.
    """
    compiled: util.LRUCache[Any, Any] = util.LRUCache(2000)
    begin = Engine.__init__

    def begin_with_all_compiled(engine: Engine, *arguments: Any, **options: Any) -> None:
        begin(engine, *arguments, **options)
        engine._compiled_cache = compiled

    with (
        mock.patch.object(Engine, "__init__", begin_with_all_compiled),
        mock.patch.object(SQLiteDialect_pysqlite, "__eq__", lambda one, other: type(one) is type(other)),
        mock.patch.object(SQLiteDialect_pysqlite, "__hash__", lambda one: hash(type(one))),
    ):
        yield
