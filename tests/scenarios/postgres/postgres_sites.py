"""Sites with their metadata in PostgreSQL, for tests that look into its databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servers.postgres import the_server
from support.remote_logs import RemoteLogFiles

URL = "rlmm.config.url"


def tables_of(database: str) -> list[tuple[Any, ...]]:
    return the_server().execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)


def with_metadata_at(files: RemoteLogFiles, url: str) -> RemoteLogFiles:
    return replace(files, properties={**files.properties, URL: url})


def sqlite_url(files: RemoteLogFiles, name: str = "remote_log_metadata.db") -> str:
    return f"sqlite:///{files.root / 'state' / name}"
