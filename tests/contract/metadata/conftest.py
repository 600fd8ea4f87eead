"""An empty metadata store of each implementation, with its clock and a lease."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from contract.metadata_stores import METADATA_STORES, TOPIC, MetadataStoreOpener
from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, topic_store
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import Lease


@pytest.fixture(params=METADATA_STORES)
def opener(request: pytest.FixtureRequest) -> MetadataStoreOpener:
    """Each implementation's function that opens a store in a folder."""
    if request.param == TOPIC:
        return partial(topic_store, request.getfixturevalue("real_kafka").bootstrap_servers)
    implementation: MetadataStoreOpener = request.param
    return implementation


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(opener: MetadataStoreOpener, tmp_path: Path, clock: ManualClock) -> Iterator[MetadataStore]:
    with opener(tmp_path, clock) as opened:
        yield opened


@pytest.fixture
def lease(store: MetadataStore) -> Lease:
    return store.leases.acquire(ORDERS_0, "run-1", 60_000)
