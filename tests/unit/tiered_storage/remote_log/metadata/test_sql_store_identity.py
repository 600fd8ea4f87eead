"""The metadata store's own UUID and the object store it is bound to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import sqlite_store, sqlite_url
from tiered_storage.errors import MetadataCorruptError, StoreMismatchError
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store


def test_a_new_store_has_a_uuid_that_stays(tmp_path: Path, clock: ManualClock) -> None:
    with open_metadata_store(sqlite_url(tmp_path), clock, new_uuid=lambda: "its own uuid") as store:
        assert store.identity.metadata_uuid == "its own uuid"

    with open_metadata_store(sqlite_url(tmp_path), clock, new_uuid=lambda: "another one") as store:
        assert store.identity.metadata_uuid == "its own uuid"


def test_every_store_has_another_uuid(tmp_path: Path, clock: ManualClock) -> None:
    with sqlite_store(tmp_path / "one", clock) as one, sqlite_store(tmp_path / "two", clock) as two:
        assert one.identity.metadata_uuid != two.identity.metadata_uuid


def test_a_store_is_bound_to_no_object_store_at_first(store: SqlMetadataStore) -> None:
    assert store.identity.bound_store_uuid() is None


def test_a_store_is_bound_for_good(store: SqlMetadataStore, tmp_path: Path, clock: ManualClock) -> None:
    store.identity.bind_store("object-store-1")
    store.identity.bind_store("object-store-1")

    with sqlite_store(tmp_path, clock) as other:
        with pytest.raises(StoreMismatchError, match=r"object-store-1.*object-store-2"):
            other.identity.bind_store("object-store-2")
        assert other.identity.bound_store_uuid() == "object-store-1"


def test_a_store_that_lost_its_uuid_is_reported(store: SqlMetadataStore, path: Path) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute("DELETE FROM store_identity")
    database.close()

    with pytest.raises(MetadataCorruptError, match=f"{path}.*UUID"):
        store.identity.bind_store("object-store-1")
