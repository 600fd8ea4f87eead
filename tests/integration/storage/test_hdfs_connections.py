"""Airflow connections of the types hdfs and webhdfs: a real NameNode is reached with their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hdfs_native import Client

from servers.hdfs import RealHdfs
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.object_store import ObjectStore
from tiered_storage.remote_log.storage.clients.options import HDFS_USER, ObjectStoreOptions
from tiered_storage.settings.settings import Settings
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook


def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, **connection: Any) -> ObjectStoreOptions:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return RemoteStorageHook("lake").options(
        Settings.model_validate({"state.directory": tmp_path, "rsm.config.url": url})
    )


def owned_folder(hdfs: RealHdfs, owner: str) -> str:
    """Make a folder that is this user's alone."""
    folder = f"/{uuid4().hex}"
    Client(hdfs.url).mkdirs(folder, 0o700)
    Client(hdfs.url).set_owner(folder, owner)
    return folder


def test_a_connection_names_the_user_and_the_name_nodes_of_a_name_service(
    real_hdfs: RealHdfs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host, _, port = real_hdfs.address.partition(":")
    (http_port,) = free_ports(1)
    by_service = {"dfs.ha.namenodes.lake": "nn0", "dfs.namenode.rpc-address.lake.nn0": real_hdfs.address}
    by_host = {"host": host, "port": int(port)}
    folder = owned_folder(real_hdfs, "tiering")
    monkeypatch.setenv("HADOOP_USER_NAME", "of-the-machine")
    connections: list[tuple[str, dict[str, Any]]] = [
        (f"hdfs://lake{folder}", {"conn_type": "hdfs", **by_host}),
        (f"hdfs://lake{folder}", {"conn_type": "hdfs", "host": f"{host}, {host}", "port": int(port)}),
        (f"hdfs://lake{folder}", {"conn_type": "webhdfs", "host": host, "port": http_port, "extra": by_service}),
        (f"{real_hdfs.url}{folder}", {"conn_type": "webhdfs", "host": "gateway.example", "port": http_port}),
        (f"{real_hdfs.url}{folder}", {"conn_type": "remote_storage"}),
    ]
    for number, (url, connection) in enumerate(connections):
        client = Hdfs(url, options(monkeypatch, tmp_path, url, login="tiering", **connection))
        assert client.create(f"{number}", b"content")
        assert client.get_range(f"{number}", 0, 7) == b"content"
        assert client._client.get_file_info(f"{folder}/{number}").owner == "tiering"


def test_name_nodes_of_a_webhdfs_connection_are_reached_at_the_usual_port_of_rpc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = options(monkeypatch, tmp_path, "hdfs://Lake/x", conn_type="webhdfs", host="a,b", port=9870, login="me")
    assert found.properties[HDFS_USER] == "me"
    assert found.properties["dfs.ha.namenodes.Lake"] == "nn0,nn1"
    assert found.properties["dfs.namenode.rpc-address.Lake.nn1"] == "b:8020"


@pytest.mark.parametrize("host", ["hdfs://namenode", "me@namenode", "namenode:8020", "name node", "namenode/x", "a,,b"])
def test_an_invalid_host_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="connection lake") as raised:
        options(monkeypatch, tmp_path, "hdfs://lake/x", conn_type="hdfs", host=host, password="hidden")
    assert "hidden" not in str(raised.value)


def test_a_connection_to_hdfs_is_no_use_for_a_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"lake .*hdfs.*s3://"):
        options(monkeypatch, tmp_path, "s3://bucket", conn_type="hdfs", host="namenode")


def test_settings_of_hadoop_are_not_for_exports_to_a_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = options(monkeypatch, tmp_path, "hdfs://lake/x", conn_type="hdfs", host="namenode", login="me")
    assert ObjectStore("s3://bucket/export", found).root == "s3://bucket/export"
