"""Closed segments leave for the store and are read back from there (scenarios 1, 2, 4)."""

from __future__ import annotations

from pathlib import Path

from support.plain_reader import PlainReader
from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    NOW,
    RemoteLogFiles,
    assert_clean,
    copy,
    flip_bit,
    partition_of,
    ranges,
    segments_of,
    topic_id,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.read_values import Tier
from tiered_storage.remote_log.selection import EVERYTHING


def the_record(offset: int) -> Record:
    return Record(offset, NOW + offset, b"k%d" % offset, b"v%d" % offset, ())


BATCH_BYTES = len(encode_batch([the_record(0)]))


def rolls_after(batches: int) -> LogConfig:
    """Return the settings of a topic whose segments hold so many batches: the next append rolls."""
    return LogConfig(segment_bytes=batches * BATCH_BYTES, index_interval_bytes=0)


def append(log: LocalLog, count: int) -> None:
    for _ in range(count):
        log.append([the_record(log.log_end_offset)])


def a_site(root: Path, batches_a_segment: dict[int, int], appended: int, **topic: object) -> RemoteLogFiles:
    """Lay out partitions of `orders`, by number, whose segments hold so many batches of one record each."""
    files = RemoteLogFiles(root, properties={"topics": {"orders": {**ENABLED, **topic}}})
    with LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        for number, batches in batches_a_segment.items():
            append(writer.create_log("orders", number, topic_id("orders"), rolls_after(batches)), appended)
    return files


def tiers(remote_log: RemoteLogManager, partition: TopicIdPartition) -> dict[int, Tier]:
    """Return which tier gives each offset."""
    reader = PlainReader(remote_log).open(partition)
    return {offset: reader.fetch(offset).tier for offset in range(reader.log_start_offset, reader.log_end_offset)}


def test_offload_and_read_back(tmp_path: Path) -> None:
    files = a_site(tmp_path, {0: 1}, appended=4, **{"local.retention.bytes": 1})
    orders = partition_of("orders")
    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(0, 0), (1, 1), (2, 2)]
        plans, findings = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert findings == []
        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1
        assert files.local_starts() == [3]
        assert list(PlainReader(remote_log).records(orders, 0)) == [the_record(offset) for offset in range(4)]
        assert tiers(remote_log, orders) == {0: Tier.REMOTE, 1: Tier.REMOTE, 2: Tier.REMOTE, 3: Tier.LOCAL}
        assert_clean(remote_log, the_record)


def test_many_partitions_each_copies_in_its_own_order_and_none_waits_for_anothers_failure(tmp_path: Path) -> None:
    files = a_site(tmp_path, {0: 1, 1: 2, 2: 3}, appended=7)
    broken = files.local_segments(number=1)[1].log_path
    flip_bit(broken, BATCH_BYTES - 1)
    with files.open() as remote_log:
        report = copy(remote_log)
        by_partition = [
            ranges(each for each in report.committed if each.topic_id_partition.partition == number)
            for number in range(3)
        ]
        assert by_partition == [[(at, at) for at in range(6)], [(0, 1)], [(0, 2), (3, 5)]]
        [failure] = report.failures
        assert failure.partition == "orders-1"
        assert str(broken) in failure.message

        flip_bit(broken, BATCH_BYTES - 1)
        assert ranges(copy(remote_log).committed) == [(2, 3), (4, 5)]
        for number in range(3):
            partition = partition_of("orders", number)
            finished = [each for each in segments_of(remote_log, partition) if each.state.name.endswith("FINISHED")]
            assert [each.event_timestamp for each in finished] == sorted(each.event_timestamp for each in finished)
        files.clock.now += 2 * remote_log.context.settings.remote_log_orphan_grace_ms
        remote_log.deletions.delete_marked("clean up")
        assert_clean(remote_log, the_record)


def test_roll_by_time(tmp_path: Path) -> None:
    """A log whose segments last 10 ms: the next batch that is later closes the one before it."""
    appended = 3
    files = RemoteLogFiles(tmp_path, properties={"topics": {"orders": {**ENABLED, "local.retention.ms": 1}}})
    by_time = LogConfig(segment_ms=10, index_interval_bytes=0)
    with LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        log = writer.create_log("orders", 0, topic_id("orders"), by_time)
        append(log, appended)
        assert len(log.segments) == 1
        log.append([Record(appended, NOW + 60, b"k%d" % appended, b"v%d" % appended, ())])
        assert [segment.base_offset for segment in log.segments] == [0, appended]

    def expected(offset: int) -> Record:
        return Record(offset, NOW + (60 if offset == appended else offset), b"k%d" % offset, b"v%d" % offset, ())

    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(0, appended - 1)]
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW + appended + 1)
        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1
        assert files.local_starts() == [appended]
        assert_clean(remote_log, expected)
