"""A SQLite metadata store for unit tests, and its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import sqlite_store
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store's file is, or will be."""
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqlMetadataStore]:
    with sqlite_store(tmp_path, clock) as opened:
        yield opened
