from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from support.command_line import mentions
from support.counted_limits import counted_limits
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_copied_remote_log,
    copy,
    records,
    segments_of,
    unsynced,
)
from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records import record_batch
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.restore import cluster as restoring
from tiered_storage.remote_log.restore.cluster import ClusterReport, ClusterTarget, settled_ends
from tiered_storage.remote_log.restore.offset_map import OffsetMap
from tiered_storage.remote_log.restore.request import RestoreRequest
from tiered_storage.remote_log.restore.target_cluster import TargetCluster, TargetTopic
from tiered_storage.remote_log.restore.validation import Validation


class LaggingCluster(TargetCluster):
    """Its high watermark moves on once a follower that lags has been waited for, `waited` seconds in all."""

    waited: float = 0

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        assert topic == "orders"
        return dict.fromkeys(partitions, (0, 9 if LaggingCluster.waited > 45 else 3))


@pytest.mark.parametrize(("replicas", "end", "most"), [(3, 9, 120), (1, 3, 1)])
def test_a_follower_that_lags_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, replicas: int, end: int, most: float
) -> None:
    monkeypatch.setattr(LaggingCluster, "waited", 0)

    def sleep(seconds: float) -> None:
        LaggingCluster.waited += seconds

    topic = TargetTopic("cluster", "id", "orders", 2, {}, replicas)
    assert settled_ends(LaggingCluster("nowhere:1", {}), topic, [0, 1], sleep) == {0: (0, end), 1: (0, end)}
    assert LaggingCluster.waited <= most


class ClusterInMemory(TargetCluster):
    """A topic of one partition, whose records are `held`; what is produced is acknowledged when it is polled for."""

    held: ClassVar[list[Record]] = []
    unanswered: ClassVar[list[Callable[..., None]]] = []

    def topic(self, name: str) -> TargetTopic:
        return TargetTopic("cluster", "id", name, 1, {}, 1)

    def ends(self, _topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, len(self.held)))

    def producer(self, _compression: str) -> Any:
        return self

    def produce(
        self, _topic: str, value: bytes, key: bytes, _partition: int, *, on_delivery: Any, timestamp: int, headers: Any
    ) -> None:
        self.held.append(Record(len(self.held), timestamp, key, value, tuple(headers)))
        self.unanswered.append(on_delivery)

    def poll(self, _seconds: float) -> None:
        first = len(self.held) - len(self.unanswered)
        for offset, answer in enumerate(self.unanswered, first):
            answer(None, SimpleNamespace(offset=lambda offset=offset: offset))
        self.unanswered.clear()

    def purge(self, **_: object) -> None:
        pass

    def records(self, _topic: str, _partition: int, first: int, end: int) -> Iterator[Record]:
        return iter(self.held[first:end])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """What the cluster that is restored into holds."""
    monkeypatch.setattr(ClusterInMemory, "held", [])
    monkeypatch.setattr(restoring, "TargetCluster", ClusterInMemory)
    return ClusterInMemory.held


def restore(
    files: RemoteLogFiles, map_path: Path, validation: Validation = Validation.SIZES, **target: Any
) -> ClusterReport:
    with files.open() as remote_log:
        plan = remote_log.restores.plan(RestoreRequest("orders"))
        to = ClusterTarget("nowhere:1", map_path, **target)
        return remote_log.restores.to_cluster(plan, to, validation=validation)


@pytest.mark.parametrize(("validation", "times"), [(Validation.SIZES, 1), (Validation.RECORDS, 3)])
def test_all_reads_of_a_restore_keep_one_limit(
    tmp_path: Path, held: list[Record], monkeypatch: pytest.MonkeyPatch, validation: Validation, times: int
) -> None:
    """With validation, everything is read before it is sent, and again to compare it."""
    passed = counted_limits(monkeypatch)
    files = a_copied_remote_log(tmp_path, remote_log_manager_fetch_max_bytes_per_second=8 << 20)
    with files.open() as remote_log:
        size = sum(each.size for each in segments_of(remote_log))

    assert restore(files, tmp_path / "map.jsonl", validation).partitions[0].sent == 30

    assert [limit.bytes_per_second for limit in passed] == [8 << 20]
    assert passed.total() == times * size


class RawKey(str):
    """A header's key whose bytes are no UTF-8."""

    def encode(self, *_: object) -> bytes:
        return b"trace\xff"


def test_header_keys_that_the_client_cannot_send_are_counted_and_the_first_is_named(
    tmp_path: Path, held: list[Record]
) -> None:
    files = a_copied_remote_log(tmp_path)
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        first = log.append([replace(each, headers=((RawKey("key"), b"1"),)) for each in records(0, 2)])
        log.append([replace(each, headers=(("key \ufffd", b"1"),)) for each in records(0, 1)])
        log.roll()
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    report = restore(files, tmp_path / "map.jsonl")
    assert held[first].headers == held[first + 1].headers == (("trace\ufffd", b"1"),)
    [notice] = report.notices
    assert mentions(notice, "2 records", "header keys", "UTF-8")
    assert f"orders-0, offset {first}:" in notice


@pytest.mark.parametrize("there", [None, b"", b"a key without a newline"])
def test_a_topic_that_is_not_empty_leaves_the_maps_file_as_it_was(
    tmp_path: Path, held: list[Record], there: bytes | None
) -> None:
    files, path = a_copied_remote_log(tmp_path), tmp_path / "map.jsonl"
    held.append(Record(0, NOW, None, None))
    if there is not None:
        path.write_bytes(there)
    with pytest.raises(ConfigurationError, match=r"orders-0 .*already|line 1 "):
        restore(files, path)
    assert (path.read_bytes() if path.exists() else None) == there


def test_each_restore_has_a_map_of_its_own_in_a_folder_and_continues_by_it(tmp_path: Path, held: list[Record]) -> None:
    files, folder = a_copied_remote_log(tmp_path), tmp_path / "restores"
    first = restore(files, folder, is_folder=True)
    again = restore(files, folder, is_folder=True)
    assert [(each.sent, each.found) for each in (*first.partitions, *again.partitions)] == [(30, 0), (0, 0)]
    assert first.map_path == again.map_path
    assert first.map_path.parent == folder
    held.clear()
    other = restore(files, folder, is_folder=True, topic="n" * 249)
    assert other.map_path != first.map_path
    assert OffsetMap.read(other.map_path).new_offset(0, 29) == 29


@pytest.mark.parametrize("name", ["../orders", "..", "a/b", "orders\n"])
def test_a_name_at_the_target_that_is_no_topics_is_refused(tmp_path: Path, held: list[Record], name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"orders: .*target"):
        restore(a_copied_remote_log(tmp_path / "log"), tmp_path / "restores", topic=name, is_folder=True)
    assert not (tmp_path / "restores").exists()


def test_records_that_cannot_be_read_are_named_by_segment_and_offset(
    tmp_path: Path, held: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken record that the checksum of the batch covers: a producer wrote it so."""

    def fail(data: bytes, header: Any, *, source: str, source_position: int) -> Iterator[Record]:
        raise CorruptRecordError(source, source_position, "record 1 of 5 is broken")

    monkeypatch.setattr(record_batch, "decode_records", fail)
    with pytest.raises(CorruptRecordError, match=r"orders-0:\S+, .*offset 0 .*record 1 of 5"):
        restore(a_copied_remote_log(tmp_path), tmp_path / "map.jsonl")
