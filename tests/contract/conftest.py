"""Every store that the contract suites run against: directories, S3 and Azure over HTTP, HDFS, a store of your own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.object_stores import KINDS, Stores, StoreUnderTest, hdfs_store, running_stores
from servers.hdfs import RealHdfs
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

HDFS = "hdfs"


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with running_stores(tmp_path_factory.mktemp("buckets")) as stores:
        yield stores


@pytest.fixture(scope="session")
def hdfs_url(real_hdfs: RealHdfs) -> Iterator[str]:
    with real_hdfs.slow_way() as way:
        yield way.url


@pytest.fixture(params=[*KINDS, HDFS])
def store(request: pytest.FixtureRequest, tmp_path: Path, stores: Stores) -> StoreUnderTest:
    """An empty store of each kind."""
    if request.param == HDFS:
        return hdfs_store(request.getfixturevalue("hdfs_url"))
    return stores.empty(request.param, tmp_path)


@pytest.fixture
def client(store: StoreUnderTest) -> Iterator[ObjectClient]:
    """The client of an empty store of each kind."""
    client = store.open(store.url, store.options)
    yield client
    client.close()


@pytest.fixture
def storage(client: ObjectClient) -> ObjectRemoteStorageManager:
    """The RemoteStorageManager over an empty store of each kind."""
    return ObjectRemoteStorageManager(client)
