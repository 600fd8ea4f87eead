"""Open a store from its URL, or a user's own class by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.object_client import ObjectClient, ObjectStoreOptions, StoreReserve
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

DEFAULT_REMOTE_STORAGE_MANAGER = "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager"

_METHODS = ("copy_log_segment_data", "fetch_log_segment", "fetch_index", "delete_log_segment_data", "close")


def _open_directory(url: str, _: ObjectStoreOptions, reserve: StoreReserve | None) -> ObjectClient:
    parsed = urlsplit(url)
    if parsed.netloc not in {"", "localhost"} or parsed.query or parsed.fragment or not parsed.path.strip("/"):
        raise ConfigurationError(f"{url} names no directory: use file:///absolute/path")
    return LocalDirectory(Path(unquote(parsed.path)), reserve=reserve)


def _open_bucket(url: str, options: ObjectStoreOptions, _: StoreReserve | None) -> ObjectClient:
    from tiered_storage.remote_log.storage.object_store import ObjectStore  # noqa: PLC0415 -- starts threads of its own

    return ObjectStore(url, options)


OBJECT_CLIENTS: dict[str, Callable[[str, ObjectStoreOptions, StoreReserve | None], ObjectClient]] = {
    "file": _open_directory,
    "s3": _open_bucket,
    "gs": _open_bucket,
    "az": _open_bucket,
}
"""The function that opens a store, by the scheme of its URL."""


def open_object_client(url: str, options: ObjectStoreOptions, *, reserve: StoreReserve | None = None) -> ObjectClient:
    """Open the store at `url`: file:///absolute/path, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix.

    With `reserve` a directory keeps some room for documents on a full disk (LocalDirectory).
    Raises ConfigurationError for another URL, and if URL and options make no store. Nothing is read or written yet.
    """
    scheme = urlsplit(url).scheme
    if scheme not in OBJECT_CLIENTS:
        raise ConfigurationError(
            f"a store at {scheme or 'a URL without scheme'}:… cannot be opened: use file:///absolute/path, "
            "s3://bucket/prefix, az://container/prefix or gs://bucket/prefix (untested)"
        )
    return OBJECT_CLIENTS[scheme](url, options, reserve)


def load_remote_storage_manager(class_name: str, url: str, options: ObjectStoreOptions) -> RemoteStorageManager:
    """Open the store at `url` with a user's own RemoteStorageManager: `class_name` is `package.module.Class`.

    The class must have the five methods of the protocol and a class method `open(url, options)`.
    Raises ConfigurationError if it cannot be imported or lacks one.
    """
    manager_class = _load_class(class_name)
    missing = [method for method in ("open", *_METHODS) if not callable(getattr(manager_class, method, None))]
    if missing:
        raise ConfigurationError(f"{class_name} is no RemoteStorageManager: it lacks {', '.join(missing)}")
    return cast(RemoteStorageManager, manager_class.open(url, options))  # type: ignore[attr-defined]


def _load_class(class_name: str) -> type:
    module_name, _, name = class_name.rpartition(".")
    if not module_name:
        raise ConfigurationError(f"{class_name!r} does not name a class: give package.module.Class")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise ConfigurationError(
            f"{class_name} cannot be imported ({error}): is its package installed here?"
        ) from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{class_name} cannot be used: {module_name} has no class {name}")
    return found
