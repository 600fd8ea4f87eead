"""Metadata in SQLite under a name in place of a path, as an example of a kind of metadata store."""

from __future__ import annotations

from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.remote_log.context import MetadataKind
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.sql.store import is_there, open_metadata_store


def named_metadata(folder: Path) -> MetadataKind:
    """Return the kind whose URLs are named://name, each a file of SQLite in `folder`."""

    def sqlite_url(url: str) -> str:
        return f"sqlite:///{folder / url.removeprefix('named://')}.db"

    def opens(url: str, clock: Clock, *, busy_timeout_ms: int, create: bool) -> MetadataStore:
        return open_metadata_store(sqlite_url(url), clock, busy_timeout_ms=busy_timeout_ms, create=create)

    return MetadataKind(opens, lambda url: is_there(sqlite_url(url)))
