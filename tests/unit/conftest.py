"""No unit test waits for the disk: what reaches it matters only when a machine crashes, and it takes most of the time.

Tests of what is synced, and when, note the calls themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from unittest import mock

import pytest
from sqlalchemy import Connection, create_engine

from support.remote_logs import unsynced
from tiered_storage.remote_log.metadata.sql import store
from tiered_storage.remote_log.metadata.sql.database import sqlite_database
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import upgrade
from unit.shared_statements import shared_statements

AS_SHIPPED = sqlite_database.SYNCHRONOUS


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    with unsynced(), mock.patch.object(sqlite_database, "SYNCHRONOUS", "OFF"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    with shared_statements():
        yield


@pytest.fixture(scope="session", autouse=True)
def _migrated_once() -> Iterator[None]:
    """Write the tables of a new SQLite store as the first migration left them: that takes four times as long."""
    with mock.patch.object(store, "upgrade", _create_tables):
        yield


def _create_tables(connection: Connection, where: str) -> None:
    if connection.dialect.name != "sqlite":
        upgrade(connection, where)
        return
    for statement in _migrated():
        connection.exec_driver_sql(statement)


@cache
def _migrated() -> tuple[str, ...]:
    """The statements that make what the migrations make."""
    with create_engine("sqlite://").connect() as connection:
        upgrade(connection, "a database in memory")
        driver = connection.connection.driver_connection
        assert driver is not None
        return tuple(each for each in driver.iterdump() if not re.match("BEGIN|COMMIT", each))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite wait for the disk, as it does for users."""
    monkeypatch.setattr(sqlite_database, "SYNCHRONOUS", AS_SHIPPED)
