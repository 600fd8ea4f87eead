"""What is particular to Azure: its errors, and an account that is not named."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from servers.azurite import ACCOUNT, CONTAINER, KEY, AzureEndpoint, azurite_server
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageRefusedError,
)
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.storage.clients.object_store import PART_BYTES, ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

NAME = "folder/segment.log"


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureEndpoint]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as endpoint:
        yield endpoint


def put(store: ObjectStore, size: int) -> None:
    store.put(NAME, size, (memoryview(bytes(min(1 << 20, size - at))) for at in range(0, size, 1 << 20)))


def assert_each_call_raises(store: ObjectStore, error: type[RemoteStorageError], mark: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: put(store, 10),
        "put in parts": lambda: put(store, 2 * PART_BYTES),
        "create": lambda: store.create(NAME, b"x"),
        "get_range": lambda: store.get_range(NAME, 0, 1),
        "delete": lambda: delete_object(store, NAME),
        "list": lambda: list(store.list("folder")),
    }
    for name, call in calls.items():
        with pytest.raises(error, match=mark) as raised:
            call()
        assert KEY not in str(raised.value), name


def test_a_container_that_is_missing_is_reported(azure: AzureEndpoint) -> None:
    store = ObjectStore("az://no-such-container/root", azure.options)
    assert_each_call_raises(store, RemoteObjectNotFoundError, r"^az://no-such-container/root.*does not exist")


def test_a_wrong_key_is_refused(azure: AzureEndpoint) -> None:
    wrong = {"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": base64.b64encode(b"wrong").decode()}
    store = ObjectStore(f"az://{CONTAINER}/root", replace(azure.options, properties=wrong))
    assert_each_call_raises(store, RemoteStorageRefusedError, "check credentials and rights")


def test_a_store_without_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigurationError, match=r"^az://container"):
        ObjectStore("az://container", ObjectStoreOptions())
