"""The SQL databases that metadata may be in, by the scheme of their URLs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sqlalchemy import URL, exc, make_url

from tiered_storage.errors import ConfigurationError, MetadataMissingError
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.postgres_database import (
    is_postgres_store,
    open_postgres,
    postgres_url,
    shown,
)
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import open_sqlite

Fill: TypeAlias = Callable[[Database], None]
"""Writes tables and identity into an empty database."""


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """How databases of one kind are named, found and opened, by their URLs. All raise ConfigurationError for another
    kind's URL.

    `opens` waits so many ms for locks, and fills a database that is not there yet. `is_there` also finds a remainder
    of a store. `where` names it in messages, without secrets.
    """

    opens: Callable[[str, int, Fill], Database]
    is_there: Callable[[str], bool]
    where: Callable[[str], str]


def sqlite_path(url: str) -> Path:
    """Return the file in `url`, sqlite:///path/of/a/file. Raises ConfigurationError for another URL."""
    parsed = _parsed(url)
    hidden = parsed.render_as_string(hide_password=True)
    if parsed.drivername != "sqlite":
        raise ConfigurationError(
            f"{hidden}: metadata are kept in SQLite or PostgreSQL: write sqlite:///path/of/a/file or "
            "postgresql://user@host:5432/database"
        )
    if parsed.database in (None, "", ":memory:") or parsed.host or parsed.query:
        raise ConfigurationError(
            f"{hidden}: does not name a file that all processes share: write sqlite:///path/of/a/file and nothing more"
        )
    return Path(str(parsed.database)).expanduser().absolute()


def local_file(url: str) -> Path | None:
    """Return the file of a SQLite URL; None for a database on a server. Raises ConfigurationError."""
    return None if _parsed(url).drivername == "postgresql" else sqlite_path(url)


def database_kind(url: str) -> DatabaseKind:
    """Return the kind of database that `url` names; an unknown scheme counts as an invalid SQLite URL."""
    return _POSTGRESQL if _parsed(url).drivername == "postgresql" else _SQLITE


def no_metadata(where: str) -> MetadataMissingError:
    """Return the error for a database without a metadata store."""
    return MetadataMissingError(
        f"{where}: there are no metadata: correct rlmm.config.url, put their backup back with 'tiered-storage "
        "metadata restore', or rebuild them with 'tiered-storage rebuild-metadata'. If nothing was ever copied, "
        "'tiered-storage topics enable' creates them"
    )


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except exc.ArgumentError as error:
        # Not shown: an invalid URL may still contain a password.
        raise ConfigurationError(
            "the metadata store's URL is invalid: write sqlite:///path/of/a/file or "
            "postgresql://user@host:5432/database"
        ) from error


def _is_sqlite_there(url: str) -> bool:
    path = sqlite_path(url)
    return path.exists() or path.with_name(f"{path.name}-wal").exists()


_SQLITE = DatabaseKind(
    opens=lambda url, busy_timeout_ms, fill: open_sqlite(sqlite_path(url), busy_timeout_ms, fill),
    is_there=_is_sqlite_there,
    where=lambda url: str(sqlite_path(url)),
)
_POSTGRESQL = DatabaseKind(
    opens=open_postgres,
    is_there=is_postgres_store,
    where=lambda url: shown(postgres_url(url)),
)
