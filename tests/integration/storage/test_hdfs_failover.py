"""The ObjectClient of HDFS on a cluster with two real NameNodes while one takes over from the other."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from servers.hdfs import HadoopPrograms
from servers.hdfs_ha import NAME_SERVICE, RealHaHdfs
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

pytestmark = pytest.mark.nightly

MIB = 1 << 20
NAME = "folder/object"
CONTENT = bytes(range(256)) * (9 * MIB // 256)
QUICK = ObjectStoreOptions(request_timeout_ms=6_000, max_retries=4)


@pytest.fixture
def hdfs(hadoop_programs: HadoopPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHaHdfs]:
    with RealHaHdfs(hadoop_programs, tmp_path / "hdfs") as started:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(started.configuration))
        yield started


@pytest.fixture
def client(hdfs: RealHaHdfs) -> Hdfs:
    return Hdfs(f"hdfs://{NAME_SERVICE}/{uuid4().hex}", QUICK)


def interrupted(by: Callable[[], None]) -> Iterator[memoryview]:
    """Yield CONTENT; `by` happens after its first block and a half."""
    yield memoryview(CONTENT)[: 6 * MIB]
    by()
    yield memoryview(CONTENT)[6 * MIB :]


def names(client: Hdfs) -> list[str]:
    return [found.name for found in client.list()]


def is_stored(client: Hdfs, name: str) -> bool:
    return client.get_range(name, 0, client.size(name)) == CONTENT


def test_an_upload_continues_while_another_name_node_takes_over_and_back(hdfs: RealHaHdfs, client: Hdfs) -> None:
    client.put(NAME, len(CONTENT), interrupted(lambda: hdfs.fail_over("nn0", "nn1")))
    assert is_stored(client, NAME)
    client.put("folder/back", len(CONTENT), interrupted(lambda: hdfs.fail_over("nn1", "nn0")))
    assert is_stored(client, "folder/back")
    assert names(client) == ["folder/back", NAME]


def test_an_upload_continues_after_the_active_name_node_was_lost(hdfs: RealHaHdfs, client: Hdfs) -> None:
    def lose() -> None:
        hdfs.kill_member("nn0")
        hdfs.activate("nn1")

    client.put(NAME, len(CONTENT), interrupted(lose))
    assert is_stored(client, NAME)
    assert names(client) == [NAME]


def test_without_an_active_name_node_every_call_ends_and_may_be_retried(hdfs: RealHaHdfs, client: Hdfs) -> None:
    client.create(NAME, b"first")
    hdfs.stand_by("nn0")
    for failing in (
        lambda: client.size(NAME),
        lambda: client.create("folder/other", b"x"),
        lambda: client.put("folder/third", len(CONTENT), interrupted(lambda: None)),
    ):
        with pytest.raises(RemoteStorageError, match="active") as raised:
            failing()
        assert raised.value.retriable
    hdfs.activate("nn1")
    assert names(client) == [NAME]


def test_a_hanging_name_node_fails_every_call_and_the_other_serves_after_it_ends(
    hdfs: RealHaHdfs, client: Hdfs
) -> None:
    def stand_still() -> None:
        hdfs.signal_member("nn0", signal.SIGSTOP)
        hdfs.activate("nn1")

    for failing in (
        lambda: client.put(NAME, len(CONTENT), interrupted(stand_still)),
        lambda: client.create("folder/other", b"x"),
        lambda: names(client),
    ):
        with pytest.raises(RemoteStorageError, match="no answer within") as raised:
            failing()
        assert raised.value.retriable

    hdfs.kill_member("nn0")
    assert [name for name in names(client) if not name.endswith(".tmp")] == []
    client.put(NAME, len(CONTENT), interrupted(lambda: None))
    client.discard_unfinished_many([NAME])
    assert is_stored(client, NAME)
    assert names(client) == [NAME]
