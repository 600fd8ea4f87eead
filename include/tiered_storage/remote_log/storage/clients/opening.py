"""Open an object store by its URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, StoreReserve
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions


def _open_directory(url: str, _: ObjectStoreOptions, reserve: StoreReserve | None) -> ObjectClient:
    parsed = urlsplit(url)
    if parsed.netloc not in {"", "localhost"} or parsed.query or parsed.fragment or not parsed.path.strip("/"):
        raise ConfigurationError(f"{url} names no directory: use file:///absolute/path")
    return LocalDirectory(Path(unquote(parsed.path)), reserve=reserve)


def _open_bucket(url: str, options: ObjectStoreOptions, _: StoreReserve | None) -> ObjectClient:
    from tiered_storage.remote_log.storage.clients.object_store import ObjectStore  # noqa: PLC0415 -- starts threads of its own

    return ObjectStore(url, options)


def _open_hdfs(url: str, options: ObjectStoreOptions, _: StoreReserve | None) -> ObjectClient:
    from tiered_storage.remote_log.storage.clients.hdfs import Hdfs  # noqa: PLC0415 -- its library is large

    return Hdfs(url, options)


OBJECT_CLIENTS: dict[str, Callable[[str, ObjectStoreOptions, StoreReserve | None], ObjectClient]] = {
    "file": _open_directory,
    "s3": _open_bucket,
    "gs": _open_bucket,
    "az": _open_bucket,
    "hdfs": _open_hdfs,
}
"""The function that opens a store, by the scheme of its URL."""


def open_object_client(url: str, options: ObjectStoreOptions, *, reserve: StoreReserve | None = None) -> ObjectClient:
    """Open the store at `url`: file:///absolute/path, s3://bucket/prefix, az://container/prefix, hdfs://host:port/folder.

    With `reserve` a directory keeps some room for documents on a full disk (LocalDirectory).
    Raises ConfigurationError for another URL, and if URL and options make no store. Nothing is read or written yet.
    """
    scheme = urlsplit(url).scheme
    if scheme not in OBJECT_CLIENTS:
        raise ConfigurationError(
            f"a store at {scheme or 'a URL without scheme'}:… cannot be opened: use file:///absolute/path, "
            "s3://bucket/prefix, az://container/prefix, hdfs://host:port/folder or gs://bucket/prefix (untested)"
        )
    return OBJECT_CLIENTS[scheme](url, options, reserve)
