"""A remote log whose store, work area and exports are in HDFS, by the commands of docs/stores.md."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from integration.test_commands_of_stores_page import commands
from servers.hdfs import RealHdfs
from support.command_line import CommandResult, run
from support.remote_logs import ENABLED, RemoteLogFiles, a_remote_log
from support.tables import export_orders
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions


@pytest.fixture
def url(real_hdfs: RealHdfs) -> Iterator[str]:
    with real_hdfs.slow_way() as root:
        yield f"{root}/{uuid4().hex}"


@pytest.fixture
def site(tmp_path: Path, url: str) -> RemoteLogFiles:
    places = {"rsm_config_url": f"{url}/rsm_config", "work_url": f"{url}/work", "export_url": f"{url}/export"}
    return a_remote_log(tmp_path, None, topics={}, **places)


def names(url: str, place: str) -> list[str]:
    return [found.name for found in Hdfs(f"{url}/{place}", ObjectStoreOptions()).list()]


def folders(url: str) -> list[str]:
    client = Hdfs(url, ObjectStoreOptions())
    return [status.path for status in client._client.list_status(client._folder, recursive=True) if status.isdir]


def test_segments_are_copied_read_expired_audited_and_restored(site: RemoteLogFiles, url: str, tmp_path: Path) -> None:
    def tiered_storage(*arguments: object) -> CommandResult:
        result = run(*arguments, "--config", site.config)
        assert result.exit_code == 0, (arguments, result.out, result.err)
        return result

    results = {" ".join(arguments): tiered_storage(*arguments) for arguments in commands()}
    assert "Copied: 3 segments" in results["copy"].out
    assert "0 anomalies" in results["audit --deep"].out
    assert len([name for name in names(url, "rsm_config") if name.endswith(".commit")]) == 3
    assert not [name for name in names(url, "rsm_config") if name.startswith("doctor")]
    assert not [path for path in folders(url) if "doctor" in path], "an empty folder stays"

    tiered_storage("topics", "allow-deletion", "orders")
    tiered_storage("topics", "set", "orders", "local.retention.ms=1", "retention.ms=-1")
    tiered_storage("retain")
    assert site.local_starts() == [30]
    read = tiered_storage("read", "orders", 0, "--max-records", 5, "--json").out
    assert [json.loads(line)["offset"] for line in read.splitlines()] == [0, 1, 2, 3, 4]

    tiered_storage("delete-records", "orders", 0, "--before", 10)
    tiered_storage("expire")
    assert len([name for name in names(url, "rsm_config") if name.endswith(".commit")]) == 2
    assert "0 anomalies" in tiered_storage("audit", "--deep").out

    tiered_storage("restore", "orders", "--to-directory", tmp_path / "restored", "--validation", "records")
    assert (tmp_path / "restored" / "orders-0" / f"{10:020}.log").is_file()
    assert not [name for place in ("rsm_config", "work") for name in names(url, place) if name.endswith(".tmp")]


def test_topics_are_exported_as_tables(site: RemoteLogFiles, url: str) -> None:
    site.properties["topics"] = {"orders": ENABLED}
    assert run("copy", "--config", site.config).exit_code == 0

    export_orders(site)

    exports = Hdfs(f"{url}/export", ObjectStoreOptions())
    files = [found for found in exports.list() if found.name.endswith(".parquet")]
    contents = [exports.get_range(found.name, 0, found.size) for found in files]
    assert sum(pq.read_metadata(io.BytesIO(content)).num_rows for content in contents) == 30
