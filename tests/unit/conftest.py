"""No unit test waits for the disk: what reaches it matters only when a machine crashes, and it takes most of the time.

Tests of what is synced, and when, note the calls themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from support.remote_logs import unsynced
from tiered_storage.remote_log.metadata.sql.database import sqlite_database

AS_SHIPPED = sqlite_database.SYNCHRONOUS


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    with unsynced(), mock.patch.object(sqlite_database, "SYNCHRONOUS", "OFF"):
        yield


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite wait for the disk, as it does for users."""
    monkeypatch.setattr(sqlite_database, "SYNCHRONOUS", AS_SHIPPED)
