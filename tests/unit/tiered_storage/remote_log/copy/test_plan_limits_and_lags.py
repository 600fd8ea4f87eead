"""How many due segments a plan takes: by its window, its limit, and the topic's lags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import (
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_remote_log,
    batches_in,
    partition_of,
    record,
    rewrite_segment,
)
from tiered_storage.errors import ConfigurationError, CorruptRecordError, TieredStorageError, UnsupportedMagicError
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.model import Finding
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog
from unit.tiered_storage.remote_log.copy.copy_plans import ENABLED, due, finish


@pytest.mark.parametrize(
    ("window_end", "bases"),
    [
        (NOW + 9_999, []),
        (NOW + 10_000, [0]),
        (NOW + 29_999, [0, 10]),
        (NOW + 30_000, [0, 10, 20]),
        (NOW + 10**9, [0, 10, 20]),
    ],
)
def test_a_backfill_takes_segments_whose_successor_began_by_the_windows_end(
    tmp_path: Path, window_end: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy(window_end=window_end).segments] == bases


@pytest.mark.parametrize(
    ("timestamp", "bases"),
    [(NOW + 10**9, [0]), (-1, [0]), (NOW - 10**9, [0, 10, 20])],
    ids=["far too late", "none", "too early"],
)
def test_a_bad_timestamp_can_only_hold_a_backfill_back(tmp_path: Path, timestamp: int, bases: list[int]) -> None:
    files = a_remote_log(tmp_path)
    segment = files.local_segments()[2].log_path
    _, second = batches_in(segment)
    rewrite_segment(
        segment, [encode_batch([replace(record(offset), timestamp=timestamp) for offset in range(20, 25)]), second]
    )

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy(window_end=NOW + 60_000).segments] == bases
        assert len(remote_log.plan_copy().segments) == 3


def test_a_backfill_does_not_skip_what_an_earlier_one_left(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        finish(remote_log, 10, 19)
        assert due(remote_log.plan_copy(window_end=NOW + 60_000)) == [("orders-0", 0, 9), ("orders-0", 20, 29)]


def test_a_limit_takes_the_earliest_of_every_partition_in_turns(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 2})

    with files.open() as remote_log:
        plan = remote_log.plan_copy(max_segments=4)
        everything = remote_log.plan_copy(max_segments=6)

    assert due(plan) == [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-1", 0, 9), ("orders-2", 0, 9)]
    assert "2 more segments are due" in plan.notices[0].message
    assert len(everything.segments) == 6
    assert everything.notices == ()


def test_the_settings_limit_a_run_that_sets_no_limit_of_its_own(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, copy_max_segments_per_run=2)

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy().segments] == [0, 10]
        assert len(remote_log.plan_copy(max_segments=3).segments) == 3


DAY = 86_400_000
LAST_OF_SECOND = NOW + 19_000
"""The largest timestamp of the second of the three closed segments, whose offsets are 10 to 19."""


@pytest.mark.parametrize(
    ("lag", "now", "bases"),
    [
        ({"remote.copy.lag.ms": DAY}, LAST_OF_SECOND + DAY, [0, 10]),
        ({"remote.copy.lag.ms": DAY}, LAST_OF_SECOND + DAY - 1, [0]),
        ({"remote.copy.lag.ms": DAY, "remote.copy.lag.bytes": 2 * SEGMENT_BYTES}, NOW, [0]),
        ({"remote.copy.lag.ms": DAY, "remote.copy.lag.bytes": 0}, NOW, [0, 10, 20]),
        ({"remote.copy.lag.bytes": 2 * SEGMENT_BYTES}, NOW, [0, 10, 20]),
        ({"remote.copy.lag.ms": -1, "local.retention.ms": DAY}, LAST_OF_SECOND + DAY, [0, 10]),
        ({"remote.copy.lag.ms": -1, "local.retention.ms": -1, "retention.ms": -1}, NOW + 1000 * DAY, []),
    ],
)
def test_a_closed_segment_waits_until_one_of_the_lags_of_its_topic_is_reached(
    tmp_path: Path, lag: dict[str, int], now: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {**ENABLED, **lag}})
    files.clock.now = now

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert [segment.base_offset for segment in plan.segments] == bases
    assert [str(3 - len(bases)) in notice.message for notice in plan.notices] == [True] * (len(bases) < 3)


def test_a_lag_for_all_topics_holds_where_a_topic_sets_none(tmp_path: Path) -> None:
    topics = {"orders": ENABLED, "clicks": {**ENABLED, "remote.copy.lag.ms": 0}}
    files = a_remote_log(tmp_path, {("orders", 0): 1, ("clicks", 0): 1}, topics=topics, log_remote_copy_lag_ms=7 * DAY)
    files.clock.now = NOW

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("clicks-0", 0, 9)]


def test_a_lag_in_bytes_for_all_topics_holds_where_a_topic_sets_none(tmp_path: Path) -> None:
    topics = {"orders": ENABLED, "clicks": {**ENABLED, "remote.copy.lag.bytes": 0}}
    lags = {"log_remote_copy_lag_ms": 7 * DAY, "log_remote_copy_lag_bytes": 2 * SEGMENT_BYTES}
    files = a_remote_log(tmp_path, {("orders", 0): 3, ("clicks", 0): 2}, topics=topics, **lags)
    files.clock.now = NOW

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("clicks-0", 0, 9), ("clicks-0", 10, 19), ("orders-0", 0, 9)]


@pytest.mark.parametrize("configs", [None, TopicConfigs.of({"retention.bytes": "1000"})])
@pytest.mark.parametrize(
    "error",
    [
        UnsupportedMagicError("old-0", 0, "record format v1"),
        CorruptRecordError("old-0", 0, "no batch"),
        ConfigurationError("old-0: nobody thought of this"),
    ],
)
def test_a_sample_that_cannot_be_read_stops_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TieredStorageError, configs: TopicConfigs | None
) -> None:
    old, rules = partition_of("old"), RollRules(1000, 100_000, 1 << 20, 4096, 1 << 20)

    def sample(_: int) -> float:
        raise error

    def without_segments(log: PartitionLog) -> PartitionLog:
        unsegmented = UnsegmentedLog(rules, lambda _: 0, sample, lambda _: -1, lambda _: {})
        return replace(log, segments=(), unsegmented=unsegmented, configs=configs)

    with a_remote_log(tmp_path, {("old", 0): 4, ("orders", 0): 4}).open() as remote_log:
        logs = [log for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
        shown = [without_segments(log) if log.topic_id_partition == old else log for log in logs]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(shown))
        plan = remote_log.plan_copy()

    assert plan.partitions == [ORDERS_0]
    assert plan.unreadable == (Finding(str(old), str(error)),)


def test_a_write_rate_that_cannot_be_read_is_named_and_the_partition_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RollRules(SEGMENT_BYTES, 100_000, 1 << 20, 4096, 1 << 20)
    error = UnsupportedMagicError("orders-0", 0, "record format v1")
    samples = iter([float(SEGMENT_BYTES) / 10])

    def sample(_: int) -> float:
        for density in samples:
            return density
        raise error

    with a_remote_log(tmp_path).open() as remote_log:
        [log] = [log for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
        unsegmented = UnsegmentedLog(rules, lambda _: 0, sample, lambda _: -1, lambda _: {})
        shown = replace(log, segments=(), unsegmented=unsegmented, configs=TopicConfigs.of({"retention.bytes": "1000"}))
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter([shown]))
        plan = remote_log.plan_copy()

    assert len(plan.segments) == 3
    assert plan.unreadable == (Finding(str(ORDERS_0), str(error)),)
