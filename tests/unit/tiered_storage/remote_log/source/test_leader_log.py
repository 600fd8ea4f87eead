"""A leader's closed segments are handed out as its files, and what its broker does to one meanwhile is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.command_line import mentions
from support.remote_logs import NOW, ORDERS_0
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer
from tiered_storage.remote_log.source.fetched_log import RolledPartition, RollRange
from tiered_storage.remote_log.source.leader_files import BrokerDirectories
from tiered_storage.remote_log.source.leader_log import LeaderLog
from tiered_storage.remote_log.source.partition_log import LocalSegment, RollRules
from unit.tiered_storage.remote_log.fake_cluster import FakeCluster, base_of, delta_of, path_of

RULES = RollRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20)


class Leader:
    """The log of a leader whose broker answers nothing: whatever needs a fetch fails."""

    def __init__(self, root: Path) -> None:
        log_directory_under_test(root)
        self.directory = root / "logs" / str(ORDERS_0)
        self.files = BrokerDirectories({1: (root / "logs",)}).files_of(1)
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        self.client = ClusterClient.by_properties({"bootstrap.servers": "127.0.0.1:1"})

    def log(self, start: int, end: int) -> LeaderLog:
        place = RolledPartition(ORDERS_0, RULES, self.scratch, clock=lambda: NOW)
        return LeaderLog(place, self.files, RollRange(start, end), lambda: None)

    def next_of(self, log: LeaderLog) -> LocalSegment:
        segment = log.next_segment(self.client, FetchBuffer(1 << 20))
        assert segment is not None
        return segment


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_closed_segments_come_as_files_in_their_order(leader: Leader) -> None:
    first, second, third, *_ = list_segments(leader.directory)
    log = leader.log(first.base_offset, third.base_offset)

    found = [leader.next_of(log) for _ in range(2)]

    assert [(each.location, each.end_offset) for each in found] == [
        (str(first.log_path), second.base_offset - 1),
        (str(second.log_path), third.base_offset - 1),
    ]
    assert log.next_segment(leader.client, FetchBuffer(1 << 20)) is None
    for segment in found:
        assert log.why_changed(segment) is None
        log.release(segment)
    log.close()
    assert first.log_path.exists()
    assert list(leader.scratch.iterdir()) == []


def test_a_file_that_is_truncated_or_gone_is_named(leader: Leader) -> None:
    first, second, third, *_ = list_segments(leader.directory)
    log = leader.log(first.base_offset, third.base_offset)
    truncated, gone = (leader.next_of(log) for _ in range(2))

    os.truncate(first.log_path, 10)
    second.log_path.rename(f"{second.log_path}.deleted")

    assert mentions(str(log.why_changed(truncated)), first.log_path, "changed", "broker 1")
    assert mentions(str(log.why_changed(gone)), second.log_path, "deleted", "broker 1")
    for message, path in ((log.why_changed(truncated), first), (log.why_changed(gone), second)):
        assert str(path.log_path) in str(message)


def test_a_partition_that_moves_to_another_directory_is_followed(leader: Leader, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "meta.properties").write_bytes((leader.directory.parent / "meta.properties").read_bytes())
    first, second, third, *_ = list_segments(leader.directory)
    leader.files = BrokerDirectories({1: (leader.directory.parent, more)}).files_of(1)
    log = leader.log(first.base_offset, third.base_offset)
    leader.next_of(log)

    leader.directory.rename(more / leader.directory.name)

    assert leader.next_of(log).location == str(more / leader.directory.name / second.log_path.name)


@pytest.mark.parametrize("starts", ["with the segment", "inside of it", "in the gap"])
def test_what_follows_a_segment_whose_end_was_compacted_away_is_fetched(leader: Leader, starts: str) -> None:
    segments = list_segments(leader.directory)
    compacted, after, end = segments[1], segments[2], segments[-1].base_offset
    batches = batches_of(compacted.log_path)
    os.truncate(compacted.log_path, compacted.size() - len(batches[-1]))
    start = base_of(batches[{"with the segment": 0, "inside of it": 1, "in the gap": -1}[starts]])
    left = [batch for segment in segments for batch in batches_of(segment.log_path)]
    cluster = FakeCluster(left)
    log = leader.log(start, end)

    found: list[LocalSegment] = []
    while (segment := log.next_segment(cluster, FetchBuffer(1 << 20))) is not None:  # type: ignore[arg-type]
        found.append(segment)

    log.close()
    assert found
    assert found[0].base_offset == start
    assert found[0].end_offset is not None
    assert found[0].end_offset >= after.base_offset
    copied = b"".join(path_of(each).read_bytes() for each in found)
    assert b"".join(batch for batch in left if base_of(batch) >= start).startswith(copied)
    for each in found:
        last = batches_of(path_of(each))[-1]
        assert base_of(last) + delta_of(last) == each.end_offset
        assert leader.directory not in path_of(each).parents


def batches_of(log_path: Path) -> list[bytes]:
    content, batches = log_path.read_bytes(), []
    while content:
        size = 12 + int.from_bytes(content[8:12], "big")
        batches.append(content[:size])
        content = content[size:]
    return batches
