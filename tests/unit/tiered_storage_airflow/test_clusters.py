"""The clusters that DAGs are made for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from support.command_line import mentions
from tiered_storage_airflow.clusters import DEFAULT_ARGS, Cluster, clusters, dag_of_each_cluster
from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

if TYPE_CHECKING:
    from airflow.sdk import DAG


def dags_of_all() -> list[DAG]:
    """The DAGs of every cluster, and of its queues, of a file whose name is as long as that of our longest."""

    @dag_of_each_cluster(
        "enforce_local_retention", schedule=None, default_args={}, tags=["ours"], doc_md="A doc.", in_copy_queues=True
    )
    def enforce_local_retention(_: Cluster) -> None:
        pass

    return enforce_local_retention()


def test_the_dags_name_the_connections_without_which_hooks_take_the_environment() -> None:
    named = {DEFAULT_ARGS[hook.conn_name_attr] for hook in (RemoteStorageHook, RemoteLogMetadataHook)}
    assert named == {RemoteStorageHook.default_conn_name, RemoteLogMetadataHook.default_conn_name}


def test_the_file_of_each_cluster_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAG files are parsed every few seconds."""
    (tmp_path / "settings.yaml").write_text("copy.queues: broker-1\n")
    (tmp_path / "settings.west.yaml").write_text("own.pools: true\ncopy.queues: broker-2\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(tmp_path / "settings.yaml"))

    with mock.patch.object(Path, "read_text", autospec=True, side_effect=Path.read_text) as read:
        found = clusters()

    assert found == [
        Cluster(None, copy_queues=("broker-1",)),
        Cluster("west", has_own_pools=True, copy_queues=("broker-2",)),
    ]
    assert Counter(call.args[0].name for call in read.call_args_list) == {"settings.yaml": 1, "settings.west.yaml": 1}


def test_the_longest_names_make_dags_and_longer_ones_leave_those_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow refuses a DAG whose id has more than 250 letters, and with it all DAGs of the file."""
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(tmp_path / "settings.yaml"))
    longest, queue, too_long = "c" * 100, "q" * 100, "d" * 101
    (tmp_path / f"settings.{longest}.yaml").write_text(f"copy.queues: {queue},{'r' * 101}\n")
    (tmp_path / f"settings.{too_long}.yaml").write_text("")

    first, other, *of_queues = dags_of_all()

    assert (first.dag_id, other.dag_id) == ("enforce_local_retention", f"enforce_local_retention__{longest}")
    assert [dag.dag_id for dag in of_queues] == [f"enforce_local_retention__{longest}.{queue}"]
    assert first.doc_md is not None
    assert f"settings.{too_long}.yaml: the cluster has no DAGs: shorten its name" in first.doc_md
    assert other.doc_md is not None
    assert mentions(other.doc_md, "copy.queues is not a list", "at most 100")


def test_a_settings_folder_that_cannot_be_listed_leaves_the_dags_of_the_first_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_a_folder = tmp_path / "not-a-folder"
    not_a_folder.write_text("")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(not_a_folder / "settings.yaml"))

    [first] = dags_of_all()

    assert "invalid-settings" in first.tags
    assert first.doc_md is not None
    assert f"{not_a_folder}: cannot be listed" in first.doc_md
