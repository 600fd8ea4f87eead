"""Metadata in SQLite under a name in place of a path, as an example of a class that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, is_there, open_metadata_store


class NamedMetadata(SqlMetadataStore):
    """Opens named://name, a file of SQLite in the folder that the option `folder` names."""

    @staticmethod
    def open(
        url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]
    ) -> SqlMetadataStore:
        return open_metadata_store(_sqlite_url(url, configs), clock, busy_timeout_ms=busy_timeout_ms, create=create)

    @staticmethod
    def is_there(url: str, configs: Mapping[str, str]) -> bool:
        return is_there(_sqlite_url(url, configs))


def _sqlite_url(url: str, configs: Mapping[str, str]) -> str:
    return f"sqlite:///{Path(configs['folder']) / url.removeprefix('named://')}.db"
