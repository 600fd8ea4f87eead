"""A store and its metadata know one another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, StoreMismatchError
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import StoredObject, temporary_name
from tiered_storage.remote_log.storage.documents.object_names import store_generation_name
from tiered_storage.remote_log.storage.documents.store_identity import (
    StoreIdentity,
    ensure_store_identity,
    read_store_identity,
    rebind_store,
)


@pytest.fixture
def client(tmp_path: Path) -> LocalDirectory:
    return LocalDirectory(tmp_path / "store")


def test_a_store_without_identity_is_marked_once(client: LocalDirectory) -> None:
    assert read_store_identity(client) is None
    uuid = ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1")
    assert uuid == "store-1"
    assert ensure_store_identity(client, "metadata-1") == "store-1"
    assert ensure_store_identity(client, "metadata-1", known_store_uuid="store-1") == "store-1"
    assert read_store_identity(client) == StoreIdentity("store-1", "metadata-1")


def test_the_identity_is_json_with_documented_keys(client: LocalDirectory, tmp_path: Path) -> None:
    ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1")
    assert json.loads((tmp_path / "store" / "store.json").read_bytes()) == {
        "format_version": 1,
        "store_uuid": "store-1",
        "metadata_uuid": "metadata-1",
    }


def test_a_take_over_removes_what_a_killed_one_left(client: LocalDirectory, tmp_path: Path) -> None:
    ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1")
    (tmp_path / "store" / temporary_name("store.json", "0" * 16)).write_bytes(b"half")
    taken: list[str] = []

    rebind_store(client, "metadata-2", taken.append)

    assert taken == ["store-1"]
    assert [found.name for found in client.list()] == ["store.json"]


def test_a_store_of_other_metadata_is_refused(client: LocalDirectory) -> None:
    ensure_store_identity(client, "metadata-1")
    with pytest.raises(StoreMismatchError, match=r"metadata-1.*metadata-2"):
        ensure_store_identity(client, "metadata-2")


def test_another_store_than_the_metadata_know_is_refused(client: LocalDirectory) -> None:
    ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1")
    with pytest.raises(StoreMismatchError, match=r"store-1.*store-2"):
        ensure_store_identity(client, "metadata-1", known_store_uuid="store-2")


def test_an_empty_store_is_not_marked_where_one_is_known(client: LocalDirectory) -> None:
    with pytest.raises(StoreMismatchError, match="the disk mounted"):
        ensure_store_identity(client, "metadata-1", known_store_uuid="store-1")
    assert list(client.list()) == []


SEGMENT = f"a-cluster/orders-{'A' * 22}/0/{0:020}-{'A' * 22}.log"
DOCUMENT = f"a-cluster/orders-{'A' * 22}/0/state/{5:020}.json"


@pytest.mark.parametrize("used", [SEGMENT, DOCUMENT, store_generation_name(1)])
def test_a_used_store_that_lost_its_identity_is_not_marked_again(client: LocalDirectory, used: str) -> None:
    client.create(used, b"{}")
    with pytest.raises(StoreMismatchError, match=r"store\.json .*'tiered-storage rebuild-metadata'"):
        ensure_store_identity(client, "metadata-1")
    assert [found.name for found in client.list()] == [used]


def test_objects_of_others_are_no_sign_of_use(client: LocalDirectory) -> None:
    client.create("somebody/else's/data", b"")
    assert ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1") == "store-1"


def test_a_store_that_another_process_marks_and_uses_meanwhile_is_the_same_store(tmp_path: Path) -> None:
    class Raced(LocalDirectory):
        def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
            ensure_store_identity(LocalDirectory(tmp_path), "metadata-1", new_uuid=lambda: "store-1")
            self.create(SEGMENT, b"")
            return super().list(folder, after)

    assert ensure_store_identity(Raced(tmp_path), "metadata-1") == "store-1"


def test_the_leftover_of_a_process_killed_while_marking_the_store_is_deleted(
    client: LocalDirectory, tmp_path: Path
) -> None:
    ensure_store_identity(client, "metadata-1", new_uuid=lambda: "store-1")
    (tmp_path / "store" / temporary_name("store.json", "0123456789abcdef")).write_bytes(b"{")
    assert ensure_store_identity(client, "metadata-1") == "store-1"
    assert [found.name for found in client.list()] == ["store.json"]


def test_one_of_two_concurrent_claims_gets_the_store(client: LocalDirectory) -> None:
    def ensure(metadata_uuid: str) -> str | None:
        try:
            return ensure_store_identity(client, metadata_uuid)
        except StoreMismatchError:
            return None

    with ThreadPoolExecutor(8) as threads:
        won = [uuid for uuid in threads.map(ensure, [f"metadata-{i}" for i in range(8)]) if uuid]
    assert len(won) == 1


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"format_version":1,"store_uuid":"x"}', b'{"format_version":2}'])
def test_a_broken_identity_is_neither_taken_nor_replaced(client: LocalDirectory, raw: bytes) -> None:
    client.create("store.json", raw)
    with pytest.raises((RemoteObjectCorruptError, LaterVersionError), match=r"store\.json: "):
        ensure_store_identity(client, "metadata-1")
    assert client.get_range("store.json", 0, len(raw)) == raw
