"""The border itself: how much a store of one's own has to do, and what it may leave out."""

from __future__ import annotations

import inspect
from pathlib import Path

from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import (
    HasTemporaryObjects,
    ObjectClient,
    discard_unfinished,
)
from tiered_storage.remote_log.storage.clients.object_store import ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

MOST_METHODS = 8


def test_a_store_has_at_most_eight_methods() -> None:
    methods = [name for name, found in vars(ObjectClient).items() if inspect.isfunction(found) and name[0] != "_"]

    assert 1 < len(methods) <= MOST_METHODS, methods


def test_temporary_objects_are_discarded_in_a_store_that_leaves_them(tmp_path: Path) -> None:
    leftover = tmp_path / "mine.log.0123456789abcdef.tmp"
    leftover.write_bytes(b"half")

    discard_unfinished(LocalDirectory(tmp_path), ["mine"])

    assert not leftover.exists()


def test_a_bucket_leaves_no_temporary_objects_and_is_not_asked() -> None:
    bucket = ObjectStore("s3://bucket/prefix", ObjectStoreOptions(region="r", endpoint="https://127.0.0.1:1"))

    assert not isinstance(bucket, HasTemporaryObjects)
    discard_unfinished(bucket, ["mine"])
