"""The clusters that DAGs are made for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from tiered_storage_airflow.clusters import Cluster, clusters


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
