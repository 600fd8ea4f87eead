"""The user of a process in HDFS: hdfs-native has one for all clients, whatever their clusters."""

from __future__ import annotations

import os

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients import hdfs
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import HDFS_USER, ObjectStoreOptions


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has opened no HDFS yet, whose environment names a user."""
    monkeypatch.setattr(hdfs, "_PROCESS_USER", hdfs._ProcessUser())
    monkeypatch.setenv("HADOOP_USER_NAME", "of-the-machine")


def opened(cluster: str, login: str | None) -> Hdfs:
    properties = {} if login is None else {HDFS_USER: login}
    return Hdfs(f"hdfs://{cluster}:8020/store", ObjectStoreOptions(properties=properties))


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ("ada", "bob", "cannot be the user 'bob' in HDFS: it is the user 'ada' already"),
        ("ada", None, "cannot be the user 'of-the-machine' in HDFS: it is the user 'ada' already"),
        (None, "bob", "cannot be the user 'bob' in HDFS: it is the user 'of-the-machine' already"),
    ],
)
def test_a_second_user_is_refused_and_the_first_one_stays(first: str | None, second: str | None, refused: str) -> None:
    opened("one", first)
    with pytest.raises(ConfigurationError, match=refused):
        opened("two", second)
    assert os.environ["HADOOP_USER_NAME"] == (first or "of-the-machine")
    opened("three", first)


def test_clusters_may_have_the_same_user() -> None:
    for cluster, login in (("one", None), ("two", "of-the-machine"), ("three", None)):
        opened(cluster, login)
    assert os.environ["HADOOP_USER_NAME"] == "of-the-machine"
