"""A remote log whose store, work area and exports are in HDFS, by the commands of docs/stores.md."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from integration.storage.test_commands_of_stores_page import a_site, assert_a_life_passes
from servers.hdfs import RealHdfs
from support.command_line import run
from support.remote_logs import ENABLED, RemoteLogFiles
from support.tables import export_orders
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions


@pytest.fixture
def url(real_hdfs: RealHdfs) -> Iterator[str]:
    with real_hdfs.slow_way() as way:
        yield f"{way.url}/{uuid4().hex}"


@pytest.fixture
def site(tmp_path: Path, url: str) -> RemoteLogFiles:
    return a_site(tmp_path / "site", url)


def names(url: str, place: str) -> list[str]:
    return [found.name for found in Hdfs(f"{url}/{place}", ObjectStoreOptions()).list()]


def folders(url: str) -> list[str]:
    client = Hdfs(url, ObjectStoreOptions())
    return [status.path for status in client._client.list_status(client._folder, recursive=True) if status.isdir]


def test_segments_are_copied_read_expired_audited_and_restored(site: RemoteLogFiles, url: str, tmp_path: Path) -> None:
    assert_a_life_passes(site, tmp_path / "restored")
    assert not [path for path in folders(url) if "doctor" in path], "an empty folder stays"
    assert not [name for place in ("remote", "work") for name in names(url, place) if name.endswith(".tmp")]


def test_topics_are_exported_as_tables(site: RemoteLogFiles, url: str) -> None:
    site.properties["topics"] = {"orders": ENABLED}
    assert run("copy", "--config", site.config).exit_code == 0

    export_orders(site)

    exports = Hdfs(f"{url}/export", ObjectStoreOptions())
    files = [found for found in exports.list() if found.name.endswith(".parquet")]
    contents = [exports.get_range(found.name, 0, found.size) for found in files]
    assert sum(pq.read_metadata(io.BytesIO(content)).num_rows for content in contents) == 30
