"""What a run keeps: the latest metrics, and a day of history in as many files as a day has hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage.errors import UntrustedMessageError
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.metrics.partition_metrics import CopyLag, RemoteLogMetrics
from tiered_storage.remote_log.metrics.stored import (
    MOST_POINTS_AN_HOUR,
    MOST_TOPICS,
    LagPoint,
    TopicLag,
    keep_metrics,
    lag_history,
    latest_metrics,
)
from unit.built_metrics import many, partition_metrics

MINUTE = 60_000
HOUR = 60 * MINUTE
NOON = 1_700_049_600_000 // HOUR * HOUR


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkArea]:
    with a_remote_log(tmp_path).open() as remote_log:
        yield remote_log.context.work


def at(moment: int, size: int = 100) -> RemoteLogMetrics:
    lag = CopyLag(1, size, None) if size else CopyLag()
    return RemoteLogMetrics(moment, 1, (partition_metrics("orders", 0, lag),))


def kept_at(work: WorkArea, now: int) -> list[int]:
    return [point.at for point in lag_history(work, now)]


def test_without_a_run_there_is_nothing(work: WorkArea) -> None:
    assert latest_metrics(work) is None
    assert lag_history(work, NOON) == []


def test_the_latest_metrics_come_back_as_they_were(work: WorkArea) -> None:
    keep_metrics(work, many(5))
    keep_metrics(work, many(1200))
    assert latest_metrics(work) == many(1200)


def test_a_point_has_the_topics_that_lag(work: WorkArea) -> None:
    keep_metrics(work, at(NOON))
    keep_metrics(work, at(NOON + MINUTE, 0))
    assert lag_history(work, NOON + HOUR) == [
        LagPoint(NOON, {"orders": TopicLag(1, 100, None)}),
        LagPoint(NOON + MINUTE, {}),
    ]


def test_the_history_is_a_day_long_and_in_order(work: WorkArea) -> None:
    moments = [NOON + hour * HOUR + 5 * MINUTE for hour in range(30)]
    for moment in moments:
        keep_metrics(work, at(moment))
    assert kept_at(work, moments[-1]) == moments[-24:]
    assert len(work.names("metrics/hours")) == 24
    assert kept_at(work, moments[-1] + 10 * HOUR) == moments[-14:]


def test_an_hour_has_so_many_points_at_most(work: WorkArea) -> None:
    moments = [NOON + 10_000 * number for number in range(MOST_POINTS_AN_HOUR + 5)]
    for moment in moments:
        keep_metrics(work, at(moment))
    assert kept_at(work, NOON) == moments[-MOST_POINTS_AN_HOUR:]


def test_a_clock_that_was_ahead_leaves_no_points_from_the_future(work: WorkArea) -> None:
    keep_metrics(work, at(NOON + 30 * MINUTE))
    keep_metrics(work, at(NOON + 10 * MINUTE))
    assert kept_at(work, NOON) == [NOON + 10 * MINUTE]


def test_the_topics_that_lag_most_are_kept(work: WorkArea) -> None:
    topics = MOST_TOPICS + 50
    metrics = many(topics, topics)
    keep_metrics(work, replace(metrics, taken_at=NOON))
    [point] = lag_history(work, NOON)
    sizes = {each.partition.topic: each.lag.size for each in metrics.partitions if each.lag is not None}
    kept = sorted(sizes, key=lambda topic: -sizes[topic])[:MOST_TOPICS]
    assert set(point.topics) == set(kept)
    lags = {topic: point.lag_of(topic) for topic in sizes}
    assert {topic for topic, lag in lags.items() if lag is not None} == set(kept)


def test_a_point_tells_an_unknown_lag_from_none(work: WorkArea) -> None:
    caught_up, disabled = partition_metrics("orders", 0, CopyLag()), partition_metrics("disabled", 0)
    unread = replace(partition_metrics("unread", 0), is_lag_unknown=True)
    unreadable = replace(partition_metrics("unreadable", 0), problem="its leader is away")
    seen = RemoteLogMetrics(NOON, 1, (caught_up, disabled, unread, unreadable))
    keep_metrics(work, seen)
    keep_metrics(work, replace(seen, taken_at=NOON + MINUTE, problem="no broker answers", partitions=(disabled,)))
    seen_point, unseen_point = lag_history(work, NOON + HOUR)
    none = TopicLag(0, 0, 0)
    topics = ("orders", "disabled", "unread", "unreadable")
    assert [seen_point.lag_of(topic) for topic in topics] == [none, none, None, None]
    assert unseen_point.lag_of("disabled") is None


def test_a_corrupt_hour_is_named_and_begins_again(
    work: WorkArea, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_metrics(work, at(NOON))
    [path] = [each for each in tmp_path.rglob("*.jsonl") if each.parent.name == "hours"]
    path.write_bytes(path.read_bytes()[:-1])
    for minute in (1, 2):
        keep_metrics(work, at(NOON + minute * MINUTE))
    assert kept_at(work, NOON) == [NOON + MINUTE, NOON + 2 * MINUTE]
    [warning] = caplog.messages
    assert str(path) in warning


def test_metrics_that_somebody_changed_are_not_shown(work: WorkArea, tmp_path: Path) -> None:
    keep_metrics(work, at(NOON))
    [path] = tmp_path.rglob("latest.jsonl")
    path.write_bytes(path.read_bytes().replace(b"orders", b"others"))
    with pytest.raises(UntrustedMessageError):
        latest_metrics(work)
