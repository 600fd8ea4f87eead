"""From URLs to object stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_store import ObjectStore
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

OPTIONS = ObjectStoreOptions(region="us-east-1")


def test_file_urls_open_directories(tmp_path: Path) -> None:
    client = open_object_client(f"file://{tmp_path}/with%20blank", OPTIONS)
    assert isinstance(client, LocalDirectory)
    client.create("x", b"content")
    assert (tmp_path / "with blank" / "x").read_bytes() == b"content"
    assert client.root == f"file://{tmp_path}/with%20blank"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/prefix", "gs://bucket/prefix"])
def test_other_urls_open_buckets(url: str) -> None:
    client = open_object_client(f"{url}/", ObjectStoreOptions(properties={"skip_signature": "true"}))
    assert isinstance(client, ObjectStore)
    assert client.root == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/store",
        "file://",
        "file:///",
        "file://host/x",
        "file:relative",
        "file:///x?y",
        "http://x/y",
        "s3:",
    ],
)
def test_an_invalid_url_is_refused_with_the_valid_forms(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use (file:///absolute/path|s3://bucket/prefix)|absolute path"):
        open_object_client(url, OPTIONS)
