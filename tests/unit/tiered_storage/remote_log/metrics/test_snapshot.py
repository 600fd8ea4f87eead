"""What a snapshot has of a log directory, before and after copies, trims and other leaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from support.command_line import mentions
from support.remote_logs import (
    BATCH_BYTES,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    append_as_later_leader,
    begin,
    copy,
    partition_of,
    record,
    segments_of,
)
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.remote_log.metrics import samples
from tiered_storage.remote_log.metrics.partition_metrics import (
    CopyLag,
    OffsetRule,
    PartitionMetrics,
    RemoteLogMetrics,
    TierOffsets,
    TopicMetrics,
)
from tiered_storage.remote_log.metrics.samples import MOST_SAMPLES, Samples
from tiered_storage.remote_log.metrics.snapshot import take_metrics
from tiered_storage.remote_log.model import RemoteLogSegmentMetadataUpdate, SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, SegmentLocation
from tiered_storage.remote_log.source.segment_source import SegmentSource
from unit.tiered_storage.remote_log.metrics.broker_logs import Logs, seen_at_brokers


def taken(files: RemoteLogFiles, known: Samples | None = None) -> RemoteLogMetrics:
    with files.open() as remote_log:
        return take_metrics(remote_log.context, known)


def only(metrics: RemoteLogMetrics) -> PartitionMetrics:
    [found] = metrics.partitions
    return found


def test_before_the_first_copy_all_closed_segments_lag(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    found = only(taken(files))
    assert found.partition == ORDERS_0
    assert found.offsets == TierOffsets(local_start=0, stable_end=35, local_end=35)
    assert found.lag == CopyLag(3, 3 * SEGMENT_BYTES, files.clock() - record(0).timestamp)
    assert found.tail_size == 3 * SEGMENT_BYTES + BATCH_BYTES
    assert (found.segments.remote, found.violated, found.problem) == (0, (), None)


def test_a_copy_brings_the_lag_to_zero_and_the_active_segment_stays_the_tail(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    metrics = taken(files)
    found = only(metrics)
    assert found.lag == CopyLag(0, 0, 0)
    assert found.tail_size == BATCH_BYTES
    assert found.offsets == TierOffsets(0, 35, 35, 0, 30, 0)
    assert (found.segments.remote, found.segments.remote_size) == (3, 3 * SEGMENT_BYTES)
    assert (found.segments.copied, found.segments.copied_size) == (3, 3 * SEGMENT_BYTES)
    [topic] = metrics.topics
    assert (topic.topic, topic.tail, topic.troubles) == ("orders", 5, ())


def test_a_topic_that_is_not_tiered_and_has_nothing_remote_has_no_metrics(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1, ("untiered", 0): 2}, topics={})
    assert taken(files).partitions == ()


def test_a_disabled_topic_shows_what_is_remote_and_no_lag(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={})
    files.append(4)
    found = only(taken(files))
    assert found.lag is None
    assert (found.segments.remote, found.offsets.remote_end) == (3, 30)


def test_remote_offsets_that_a_later_leader_truncated_violate_nothing_and_hide_no_lag(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    append_as_later_leader(files)
    with files.open() as remote_log:
        ends = [segment.end_offset for segment in segments_of(remote_log)]
    metrics = only(taken(files))
    assert metrics.violated == ()
    assert metrics.offsets.remote_end == max(ends[-1] + 1, 30)


def test_a_remote_end_after_the_stable_end_is_a_violation_with_its_name(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.log_directory / "replication-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    [topic] = taken(files).topics
    assert topic.violating[OffsetRule.REMOTE_END] == 1
    [trouble] = topic.troubles
    assert mentions(trouble, "orders-0", OffsetRule.REMOTE_END.value)


def test_a_log_directory_that_a_broker_holds_leaves_the_remote_metrics_and_no_lag(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with DirectoryLock.acquire(files.log_directory):
        metrics = taken(files)
    assert metrics.problem is not None
    assert str(files.log_directory) in metrics.problem
    assert only(metrics).lag is None
    assert only(metrics).segments.remote == 3


def test_a_copy_that_began_long_ago_is_stuck(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        begin(remote_log)
        before = only(take_metrics(remote_log.context)).segments
        files.clock.now += remote_log.context.settings.copy_stuck_after_ms + 1
        after = only(take_metrics(remote_log.context)).segments
    assert (before.unfinished, before.stuck) == (3, 0)
    assert (after.unfinished, after.stuck) == (3, 3)


def test_failed_deletions_and_those_that_wait_are_counted(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        first, *_ = segments_of(remote_log)
        lease = remote_log.context.leases.acquire(ORDERS_0, "test", 60_000)
        step = RemoteLogSegmentMetadataUpdate(first.segment_id, SegmentState.DELETE_SEGMENT_STARTED, NOW)
        remote_log.context.segments.update_remote_log_segment_metadata(step, lease)
        for _ in range(2):
            remote_log.context.store.safety.note_failures({first.segment_id: "refused"}, NOW)
        segments = only(take_metrics(remote_log.context)).segments
    assert (segments.remote, segments.deleting, segments.deleting_size) == (2, 1, SEGMENT_BYTES)
    assert (segments.failed_deletions, segments.deletion_attempts) == (1, 2)
    assert (segments.copied, segments.deleted) == (3, 0)


def test_records_deleted_locally_before_they_were_copied_are_missing(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(6)
    for path in files.partition_directory().glob("0*"):
        if int(path.name.partition(".")[0]) < 50:
            path.unlink()
    (files.log_directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    found = only(taken(files))
    assert (found.offsets.local_start, found.offsets.missing) == (50, 20)
    [trouble] = found.troubles
    assert mentions(trouble, "20 offsets", "never copied")


def test_a_look_reads_the_age_of_a_segment_once_and_of_so_many_at_most(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("payments", 0): 1})
    known = Samples()
    first = taken(files, known)
    assert known.left == MOST_SAMPLES - 2
    assert set(known.known) == {ORDERS_0, partition_of("payments")}
    assert taken(files, known).topics == first.topics
    assert known.left == MOST_SAMPLES


def test_an_unreadable_partition_of_a_tiered_topic_is_named(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1})
    directory = files.partition_directory("orders", 1)
    (directory / "partition.metadata").write_text("nonsense")
    [topic] = taken(files).topics
    assert topic.unreadable == 1
    [trouble] = topic.troubles
    assert trouble.startswith("orders-1: ")
    assert isinstance(topic, TopicMetrics)
    assert replace(topic, troubles=()).partitions == 2


@dataclass(frozen=True, slots=True)
class OneLog:
    """A source with one log that only its brokers see."""

    log: PartitionLog
    is_configured: bool = True

    def partitions(self) -> Iterator[PartitionLog]:
        yield self.log


def taken_of_a_cluster(files: RemoteLogFiles, stable_end: int, first_at: int, **unsegmented: Any) -> PartitionMetrics:
    """Look at orders-0 as its brokers show it."""
    log = seen_at_brokers(ORDERS_0, stable_end, first_at, **unsegmented)
    with files.open() as remote_log:
        return only(take_metrics(replace(remote_log.context, source=cast(SegmentSource, OneLog(log)))))


def test_the_lag_of_a_cluster_is_estimated_in_whole_segments(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    found = taken_of_a_cluster(files, 30 + 25, files.clock() - 5_000)
    assert (found.lag, found.tail_size) == (CopyLag(2, 2000, 5_000), 2500)


def test_less_than_a_segment_of_a_cluster_lags_once_it_is_overdue(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    young = taken_of_a_cluster(files, 30 + 5, files.clock() - 60_000)
    old = taken_of_a_cluster(files, 30 + 5, files.clock() - 60_001)
    assert (young.lag, young.tail_size) == (CopyLag(), 500)
    assert old.lag == CopyLag(1, 500, 60_001)


def test_the_lag_of_a_cluster_is_unknown_unless_a_record_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_SAMPLES", 0)
    new, copied = a_remote_log(tmp_path / "new"), a_copied_remote_log(tmp_path / "copied")
    nothing_remote, less_than_a_segment = taken_of_a_cluster(new, 55, NOW), taken_of_a_cluster(copied, 31, NOW)
    assert (nothing_remote.lag, nothing_remote.tail_size, nothing_remote.problem) == (None, None, None)
    assert (less_than_a_segment.lag, less_than_a_segment.is_copied) == (None, True)
    assert less_than_a_segment.tail_size == SEGMENT_BYTES // 10
    [whole_segments] = {taken_of_a_cluster(copied, 30 + 55, NOW).lag}
    assert whole_segments is not None
    assert (whole_segments.segments > 1, whole_segments.ms) == (True, None)


def test_snapshots_without_earlier_samples_take_turns_over_the_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_SAMPLES", 10)
    files, five_minutes = a_remote_log(tmp_path), 300_000
    logs = Logs(tuple(seen_at_brokers(partition_of("orders", number), 55, NOW) for number in range(50)))
    known: list[set[TopicIdPartition]] = []
    with files.open() as remote_log:
        context = replace(remote_log.context, source=cast(SegmentSource, logs))
        for _ in range(12):
            files.clock.now += five_minutes
            known.append({each.partition for each in take_metrics(context).partitions if each.lag is not None})
    assert [len(each) for each in known] == [10] * 12
    assert set().union(*known) == {log.topic_id_partition for log in logs.logs}


def test_the_lag_of_a_cluster_with_files_here_counts_its_leaders_closed_segments(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    asked: list[tuple[int, int]] = []

    def closed_sizes(start: int, end: int) -> list[int]:
        asked.append((start, end))
        return [700, 900, 800]

    found = taken_of_a_cluster(files, 55, files.clock() - 1, closed_sizes=closed_sizes)
    assert found.lag == CopyLag(3, 2400, 1)
    assert asked == [(30, 54)]


def test_files_that_cannot_be_read_are_a_problem_of_their_partition(tmp_path: Path) -> None:
    def closed_sizes(start: int, end: int) -> list[int]:
        raise InvalidLogDirectoryError("broker 1 has another directory")

    found = taken_of_a_cluster(a_copied_remote_log(tmp_path), 55, NOW, closed_sizes=closed_sizes)
    assert (found.lag, found.problem) == (None, "broker 1 has another directory")


def test_unstable_remote_records_are_a_violation_only_after_a_second_look(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    behind = PartitionLog(ORDERS_0, "orders-0", (), 0, 20, (), high_watermark=20)

    @dataclass(frozen=True, slots=True)
    class CatchesUp(OneLog):
        now: int = 20

        def partition(self, _: TopicIdPartition) -> PartitionLog:
            return replace(self.log, last_stable_offset=self.now, high_watermark=self.now)

    with files.open() as remote_log:
        stays, catches_up = (
            only(take_metrics(replace(remote_log.context, source=cast(SegmentSource, CatchesUp(behind, now=now)))))
            for now in (20, 35)
        )
    assert (stays.violated, catches_up.violated) == ((OffsetRule.REMOTE_END,), ())


@pytest.mark.parametrize(("stable_end", "lagging"), [(30, 0), (31, 1), (32, 2), (33, 2)])
def test_a_closed_segment_of_one_record_counts_once_and_only_when_it_is_stable(
    tmp_path: Path, stable_end: int, lagging: int
) -> None:
    """Released Kafka is off by one there (KAFKA-20977)."""
    ends = {20: 29, 30: 30, 31: 31, 32: None}
    location = SegmentLocation(str(tmp_path / "nothing.log"))
    segments = tuple(LocalSegment(base, end, 100, location) for base, end in ends.items())
    log = PartitionLog(ORDERS_0, "orders-0", segments, 20, stable_end, (), high_watermark=33)
    with a_copied_remote_log(tmp_path).open() as remote_log:
        found = only(take_metrics(replace(remote_log.context, source=cast(SegmentSource, OneLog(log)))))
    assert found.lag is not None
    assert (found.lag.segments, found.lag.size) == (lagging, 100 * lagging)
