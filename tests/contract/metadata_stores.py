"""The implementations that the contract suites of metadata run against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.metadata import MemoryMetadata
from servers.postgres import postgres_store
from support.metadata_stores import sqlite_store
from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore


def memory_store(directory: Path, clock: Clock) -> MetadataStore:
    """Open the example of CONTRIBUTING.md's recipe, which uses no SQL, by the name of `directory`."""
    configs = {"space": str(directory)}
    return MemoryMetadata.open("memory://metadata", clock, busy_timeout_ms=0, create=True, configs=configs)


MetadataStoreOpener = Callable[[Path, Clock], MetadataStore]
TOPIC = "topic"
"""The store whose segments are in a topic: its opener needs a broker."""
METADATA_STORES = [
    pytest.param(sqlite_store, id="sqlite"),
    pytest.param(postgres_store, id="postgresql"),
    pytest.param(memory_store, id="memory"),
    pytest.param(TOPIC, id=TOPIC),
]
"""Another implementation joins the contract suites as one more line here."""
