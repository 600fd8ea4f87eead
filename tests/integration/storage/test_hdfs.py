"""The ObjectClient of HDFS while DataNodes and NameNodes die, hang, refuse or are full."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from servers.hdfs import HadoopPrograms, RealHdfs, write_hadoop_settings
from tiered_storage.errors import (
    ConfigurationError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
    TieredStorageError,
)
from tiered_storage.remote_log.storage.clients import hdfs
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import HDFS_USER, ObjectStoreOptions
from tiered_storage_airflow.demo_cluster.brokers import free_ports

MIB = 1 << 20
NAME = "folder/object"
QUICK = ObjectStoreOptions(request_timeout_ms=6_000, max_retries=2)


def put(client: Hdfs, name: str, content: bytes) -> None:
    client.put(name, len(content), iter((memoryview(content),)))


def get(client: Hdfs, name: str) -> bytes:
    return client.get_range(name, 0, client.size(name))


def names(client: Hdfs) -> list[str]:
    return [found.name for found in client.list()]


@pytest.fixture
def url(real_hdfs: RealHdfs) -> str:
    """An empty folder of the session's cluster, for tests that do not change the cluster."""
    return f"{real_hdfs.url}/{uuid4().hex}/root"


@pytest.fixture
def client(url: str) -> Hdfs:
    return Hdfs(url, QUICK)


@pytest.fixture(scope="module")
def own_hdfs(hadoop_programs: HadoopPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHdfs]:
    """A cluster whose servers a test may kill, if it starts them again."""
    with RealHdfs(hadoop_programs, tmp_path_factory.mktemp("hdfs")) as hdfs:
        yield hdfs


@pytest.fixture
def own(own_hdfs: RealHdfs) -> Hdfs:
    return Hdfs(f"{own_hdfs.url}/{uuid4().hex}", QUICK)


def test_every_block_is_on_the_disk_before_an_object_is_visible(client: Hdfs, real_hdfs: RealHdfs) -> None:
    """The cluster's blocks have 4 MiB. hdfs-native syncs each when it closes it, which it promises nowhere."""
    before = real_hdfs.synced_blocks()
    put(client, NAME, bytes(9 * MIB))
    assert real_hdfs.synced_blocks() - before == 2 * 3


def test_new_folders_are_private_and_objects_get_no_wider_rights_than_the_root(client: Hdfs, url: str) -> None:
    put(client, NAME, b"x")
    client.move(NAME, "other/object")
    assert rights(client, "", "other", "other/object") == [0o700, 0o700, 0o600]

    shared = Hdfs(f"{url}-shared", QUICK)
    client._client.mkdirs(shared._folder, 0o750, create_parent=True)
    put(shared, NAME, b"x")
    assert rights(shared, "folder", NAME) == [0o750, 0o640]


def rights(client: Hdfs, *found: str) -> list[int]:
    return [client._client.get_file_info(f"{client._folder}/{name}".rstrip("/")).permission for name in found]


def test_a_failed_write_leaves_nothing_not_even_a_temporary_file(client: Hdfs) -> None:
    put(client, NAME, b"first")

    def failing() -> Iterator[memoryview]:
        yield memoryview(bytes(5 * MIB))
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        client.put(NAME, 10 * MIB, failing())
    assert names(client) == [NAME]
    assert get(client, NAME) == b"first"


def test_leftovers_of_killed_writers_are_discarded_by_the_beginning_of_their_names(client: Hdfs) -> None:
    for name in ("folder/mine-1", "folder/other"):
        writer = client._client.create(f"{client._folder}/{name}.0123456789abcdef.tmp")
        writer.write(b"half")
    client.discard_unfinished_many(["folder/mine-1", "nowhere/mine-1"])
    assert names(client) == ["folder/other.0123456789abcdef.tmp"]


@pytest.mark.parametrize("name", ["a:b/c%3Ad", "%/%25/x%", ".snapshot/x", "x/.reserved"])
def test_names_that_hdfs_reserves_are_kept(client: Hdfs, name: str) -> None:
    put(client, name, b"x")
    assert names(client) == [name]
    assert [found.name for found in client.list(name.rpartition("/")[0])] == [name]
    client.discard_unfinished_many([name])
    assert client.delete_many([name]) == {}
    assert names(client) == []


def test_a_name_longer_than_hdfs_allows_is_refused(client: Hdfs) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        put(client, "x" * 256, b"x")


def test_a_file_in_the_place_of_the_root_is_refused(client: Hdfs, url: str) -> None:
    put(client, NAME, b"x")
    with pytest.raises(ConfigurationError, match="a file"):
        put(Hdfs(f"{url}/{NAME}", QUICK), NAME, b"x")


def test_bytes_that_a_disk_changed_are_noticed(own: Hdfs, own_hdfs: RealHdfs) -> None:
    put(own, NAME, bytes(MIB))
    block = max(own_hdfs.block_files(), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(block.read_bytes())
    content[12345] ^= 1
    block.write_bytes(content)
    with pytest.raises(RemoteStorageError, match="replicas intact"):
        get(own, NAME)


def test_a_user_without_the_right_is_refused(client: Hdfs, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(client, NAME, b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    by_environment = Hdfs(url, QUICK)
    with pytest.raises(RemoteStorageRefusedError, match="mallory"):
        names(by_environment)
    monkeypatch.setattr(hdfs, "_PROCESS_USER", hdfs._ProcessUser())
    by_property = Hdfs(url, ObjectStoreOptions(properties={HDFS_USER: "trudy"}))
    for user, mallory in (("trudy", by_property), ("mallory", by_environment)):
        for refused in (lambda of: get(of, NAME), lambda of: put(of, NAME, b"y"), names):
            with pytest.raises(RemoteStorageRefusedError, match=user):
                refused(mallory)
        assert isinstance(mallory.delete_many([NAME])[NAME], RemoteStorageRefusedError)
    assert get(client, NAME) == b"x"
    assert names(client) == [NAME]


def test_a_full_quota_is_no_room(client: Hdfs, real_hdfs: RealHdfs) -> None:
    put(client, NAME, b"x")
    real_hdfs.admin("-setSpaceQuota", "8m", client._folder)
    with pytest.raises(RemoteStorageFullError, match="quota"):
        put(client, "folder/large", bytes(20 * MIB))
    assert names(client) == [NAME]


def test_a_write_survives_the_loss_of_a_data_node_midway(hadoop_programs: HadoopPrograms, tmp_path: Path) -> None:
    """Two DataNodes, two replicas; one dies during the write of a block, and the other continues alone."""
    settings = {"dfs.replication": "2"}
    content = bytes(range(256)) * (8 * MIB // 256)
    with RealHdfs(hadoop_programs, tmp_path / "hdfs", data_nodes=2, settings=settings) as hdfs:
        client = Hdfs(f"{hdfs.url}/root", QUICK)

        def chunks() -> Iterator[memoryview]:
            yield memoryview(content)[: 6 * MIB]
            hdfs.kill_data_node(1)
            yield memoryview(content)[6 * MIB :]

        client.put(NAME, len(content), chunks())
        assert get(client, NAME) == content
        assert names(client) == [NAME]


def test_without_a_data_node_nothing_half_written_is_visible_and_all_works_after_its_return(
    own: Hdfs, own_hdfs: RealHdfs
) -> None:
    put(own, NAME, b"first")

    def chunks() -> Iterator[memoryview]:
        yield memoryview(bytes(6 * MIB))
        own_hdfs.kill_data_node()
        yield memoryview(bytes(6 * MIB))

    for failing in (
        lambda: own.put("folder/other", 12 * MIB, chunks()),
        lambda: own.create("folder/third", b"x"),
        lambda: get(own, NAME),
    ):
        with pytest.raises(RemoteStorageError) as raised:
            failing()
        assert raised.value.retriable
        assert type(raised.value) is RemoteStorageError
    assert names(own) == [NAME]

    own_hdfs.start_data_node()
    own_hdfs.wait_until_it_serves()
    assert get(own, NAME) == b"first"
    put(own, "folder/other", bytes(12 * MIB))
    assert names(own) == [NAME, "folder/other"]


def test_in_safe_mode_nothing_changes_and_everything_can_be_read(own: Hdfs, own_hdfs: RealHdfs) -> None:
    put(own, NAME, b"first")
    own_hdfs.admin("-safemode", "enter")
    failed = own.delete_many([NAME])[NAME]
    for failing in (
        lambda: put(own, NAME, b"second"),
        lambda: own.create("folder/other", b"x"),
        lambda: own.move(NAME, "elsewhere"),
    ):
        with pytest.raises(RemoteStorageError, match="safe mode") as raised:
            failing()
        assert raised.value.retriable
    assert "safe mode" in str(failed)
    assert get(own, NAME) == b"first"
    own_hdfs.admin("-safemode", "leave")
    assert names(own) == [NAME]
    put(own, NAME, b"second")


def test_a_dead_or_hanging_name_node_is_reported_and_used_after_its_return(own: Hdfs, own_hdfs: RealHdfs) -> None:
    put(own, NAME, b"first")
    own_hdfs.signal_name_node(signal.SIGSTOP)
    with pytest.raises(RemoteStorageError, match="no answer within") as raised:
        own.size(NAME)
    assert raised.value.retriable
    own_hdfs.signal_name_node(signal.SIGCONT)
    assert own.size(NAME) == 5

    own_hdfs.kill_name_node()
    for failing in (lambda: own.size(NAME), lambda: put(own, NAME, b"x"), lambda: names(own)):
        with pytest.raises(RemoteStorageError, match="refused") as raised:
            failing()
        assert raised.value.retriable
    own_hdfs.start_name_node()
    assert get(own, NAME) == b"first"


def name_service(folder: Path, *addresses: str) -> Path:
    """Write the client's configuration of a name service `lake` with NameNodes at these addresses."""
    members = {f"nn{number}": address for number, address in enumerate(addresses)}
    folder.mkdir()
    write_hadoop_settings(
        folder / "hdfs-site.xml",
        {
            "dfs.nameservices": "lake",
            "dfs.ha.namenodes.lake": ",".join(members),
            **{f"dfs.namenode.rpc-address.lake.{member}": address for member, address in members.items()},
        },
    )
    return folder


@pytest.fixture
def dead_addresses() -> Iterator[list[str]]:
    """Addresses of NameNodes: one that refuses, one that accepts and never answers, one that never accepts."""
    (closed,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = []
        for _ in range(3):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        yield [f"127.0.0.1:{port}" for port in (closed, silent.getsockname()[1], full.getsockname()[1])]
        for one in waiting:
            one.close()


def test_the_answering_name_node_of_a_name_service_is_used(
    real_hdfs: RealHdfs, dead_addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = name_service(tmp_path / "configuration", dead_addresses[0], real_hdfs.address)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    client = Hdfs(f"hdfs://lake/{uuid4().hex}", QUICK)
    put(client, NAME, bytes(5 * MIB))
    assert names(client) == [NAME]
    assert get(client, NAME) == bytes(5 * MIB)


@pytest.mark.parametrize("dead", [1, 2])
def test_a_name_node_that_never_answers_ends_the_call_with_an_error_that_says_what_to_do(
    real_hdfs: RealHdfs, dead_addresses: list[str], dead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = name_service(tmp_path / "configuration", dead_addresses[dead], real_hdfs.address)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    client = Hdfs("hdfs://lake/folder", ObjectStoreOptions(request_timeout_ms=1_000, max_retries=2))
    for failing in (lambda: put(client, NAME, b"x"), lambda: client.size(NAME), lambda: names(client)):
        with pytest.raises(
            RemoteStorageError, match=r"hdfs://lake/folder.*dfs\.ha\.namenodes.*no answer within"
        ) as raised:
            failing()
        assert raised.value.retriable


def test_a_name_service_may_be_given_as_properties(real_hdfs: RealHdfs) -> None:
    settings = {"dfs.ha.namenodes.lake": "nn0", "dfs.namenode.rpc-address.lake.nn0": real_hdfs.address}
    client = Hdfs(f"hdfs://lake/{uuid4().hex}", ObjectStoreOptions(properties=settings))
    put(client, NAME, b"x")
    assert names(client) == [NAME]


def test_an_unknown_name_service_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR"):
        Hdfs("hdfs://lake/folder", QUICK)


@pytest.mark.parametrize(
    "url", ["hdfs:///folder", "hdfs://user@host:8020/folder", "hdfs://host:8020/folder?x=y", "s3://bucket/folder"]
)
def test_urls_that_name_no_folder_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no folder"):
        Hdfs(url, QUICK)


@pytest.mark.parametrize("folder", ["//a", "/a//b", "/a/./b", "/a/../b", "/a:b", "/.snapshot/a", "/a/.reserved"])
def test_folders_that_hdfs_cannot_have_are_refused_before_anything_is_sent(folder: str) -> None:
    with pytest.raises(ConfigurationError, match="HDFS"):
        Hdfs(f"hdfs://127.0.0.1:1{folder}", QUICK)


@pytest.mark.parametrize("folder", ["", "/", "/a b/", "/a%20b", "/ä+[*]"])
def test_a_folder_may_have_any_other_name(real_hdfs: RealHdfs, folder: str) -> None:
    """Also of the root only the slashes at its end are dropped."""
    unique = uuid4().hex
    client = Hdfs(f"{real_hdfs.url}{folder}", QUICK)
    put(client, f"{unique}/x", b"x")
    client.move(f"{unique}/x", f"{unique}/y")
    assert [found.name for found in client.list(unique)] == [f"{unique}/y"]
    assert f"{unique}/y" in names(client)
    assert get(client, f"{unique}/y") == b"x"
    assert client.delete_many([f"{unique}/y"]) == {}


@pytest.mark.parametrize("port_of", [22, 1])
def test_a_wrong_address_is_an_error_that_names_it(port_of: int) -> None:
    with pytest.raises(TieredStorageError, match=f"127.0.0.1:{port_of}"):
        Hdfs(f"hdfs://127.0.0.1:{port_of}/folder", QUICK).size(NAME)


def test_a_call_that_was_given_up_keeps_no_process_from_ending(dead_addresses: list[str]) -> None:
    program = (
        "from tiered_storage.remote_log.storage.clients.hdfs import Hdfs\n"
        "from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions\n"
        f"Hdfs('hdfs://{dead_addresses[1]}/folder', ObjectStoreOptions(request_timeout_ms=300)).size('x')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "no answer within" in ended.stderr
