"""What snapshots learn is kept, so that one of another process goes on where the last ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from support.remote_logs import NOW, ORDERS_0, RemoteLogFiles, a_remote_log, partition_of
from tiered_storage.errors import ClusterUnreachableError, RemoteStorageError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.metrics import samples
from tiered_storage.remote_log.metrics.partition_metrics import PartitionMetrics, RemoteLogMetrics
from tiered_storage.remote_log.metrics.samples import PATH, RATE_MS, PartitionSamples
from tiered_storage.remote_log.metrics.snapshot import Snapshots
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import SegmentSource
from unit.tiered_storage.remote_log.metrics.broker_logs import Logs, seen_at_brokers

END = 55
HOUR = 3_600_000
BY_SIZE = TopicConfigs.of({"retention.ms": "-1", "retention.bytes": "5000000", "segment.bytes": "1000"})
"""A retention that lasts some 38 days at the rate of the logs here."""
SHORT_BY_AGE = TopicConfigs.of({"retention.ms": str(HOUR), "retention.bytes": "5000000", "segment.bytes": "1000"})


@dataclass
class Cluster:
    """Brokers that show `logs`, and what they were asked of each partition."""

    files: RemoteLogFiles
    logs: dict[TopicIdPartition, PartitionLog] = field(default_factory=dict)
    read: list[TopicIdPartition] = field(default_factory=list)
    asked: list[TopicIdPartition] = field(default_factory=list)
    away: set[TopicIdPartition] = field(default_factory=set)

    def show(self, count: int, configs: TopicConfigs | None = None) -> list[TopicIdPartition]:
        """Show so many partitions of orders."""
        found = [partition_of("orders", number) for number in range(count)]
        for each in found:
            self.logs[each] = self.log(each, END, configs)
        return found

    def log(self, partition: TopicIdPartition, stable_end: int, configs: TopicConfigs | None = None) -> PartitionLog:
        def timestamp_at(_: int) -> int:
            self.read.append(partition)
            return NOW

        def offset_at(moment: int) -> int:
            if partition in self.away:
                self.asked.append(partition)
                raise ClusterUnreachableError("its leader is away")
            if moment == self.files.clock() - HOUR:
                self.asked.append(partition)
            return 0

        return seen_at_brokers(partition, stable_end, NOW, configs, timestamp_at=timestamp_at, offset_at=offset_at)

    def look(self, *, source: object = None, **how: bool) -> RemoteLogMetrics:
        """Take a snapshot in a process of its own."""
        with self.files.open() as remote_log:
            seen = cast(SegmentSource, source or Logs(tuple(self.logs.values())))
            return Snapshots(replace(remote_log.context, source=seen), **how).take()

    def kept(self) -> list[PartitionSamples]:
        with self.files.open() as remote_log:
            return remote_log.context.work.read_if_there(PATH, PartitionSamples)

    @property
    def path(self) -> Path:
        """The file of the samples."""
        [found] = self.files.root.rglob(PATH)
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(a_remote_log(tmp_path))


def those(metrics: RemoteLogMetrics, is_such: Callable[[PartitionMetrics], bool]) -> set[TopicIdPartition]:
    return {each.partition for each in metrics.partitions if is_such(each)}


def with_lag(metrics: RemoteLogMetrics) -> set[TopicIdPartition]:
    return those(metrics, lambda each: each.lag is not None)


def with_margin(metrics: RemoteLogMetrics) -> set[TopicIdPartition]:
    return those(metrics, lambda each: each.retention is not None and each.retention.margin_ms is not None)


def test_runs_read_each_record_once_until_the_lag_of_all_partitions_is_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_SAMPLES", 10)
    shown = cluster.show(35)
    known = [with_lag(cluster.look()) for _ in range(5)]

    assert [len(each) for each in known] == [10, 20, 30, 35, 35]
    assert all(earlier <= later for earlier, later in pairwise(known))
    assert sorted(cluster.read) == sorted(shown)


def test_a_copy_makes_a_run_read_another_record_and_no_other_partitions(cluster: Cluster) -> None:
    cluster.show(3)
    first = cluster.look()
    cluster.read.clear()
    log = cluster.logs[ORDERS_0]
    cluster.logs[ORDERS_0] = replace(log, log_start_offset=10)

    assert with_lag(cluster.look()) == with_lag(first)
    assert cluster.read == [ORDERS_0]


def test_runs_take_turns_over_the_partitions_whose_rate_they_ask_for_and_all_keep_their_margins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_RATES", 5)
    shown = cluster.show(10, BY_SIZE)
    known = []
    for _ in range(4):
        cluster.files.clock.now += 60_000
        known.append(with_margin(cluster.look()))

    assert [len(each) for each in known] == [5, 10, 10, 10]
    assert sorted(cluster.asked) == sorted([*shown, *shown]), "those that were asked longest ago come first"


def test_partitions_whose_leader_is_away_leave_turns_to_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_RATES", 2)
    shown = cluster.show(6, BY_SIZE)
    cluster.away = set(shown[:3])
    for _ in range(3):
        # Too short for the order of partitions to change.
        cluster.files.clock.now += 1
        last = cluster.look()

    assert with_margin(last) == set(shown[3:])
    assert sorted(cluster.asked) == sorted(shown)


def test_a_rate_is_used_for_a_day_and_not_if_the_clock_went_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = set(cluster.show(2, BY_SIZE))
    learnt_at = cluster.files.clock.now
    assert with_margin(cluster.look()) == shown
    monkeypatch.setattr(samples, "MOST_RATES", 0)
    found = []
    for since in (RATE_MS - 1, RATE_MS, -1):
        cluster.files.clock.now = learnt_at + since
        found.append(with_margin(cluster.look()))

    assert found == [shown, set(), set()]


def test_a_margin_that_is_short_by_age_is_known_before_the_rate_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_RATES", 0)
    cluster.show(1, SHORT_BY_AGE)
    [found] = cluster.look().partitions
    assert found.retention is not None
    assert (found.retention.is_short, found.retention.margin_ms) == (True, HOUR // 2)


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda content: content.replace(b"orders", b"others"),
        lambda content: content[: len(content) // 2],
        lambda _: b"",
        lambda _: b"\xff" * 100,
    ],
)
def test_a_corrupt_file_is_named_and_replaced(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, spoiled: Callable[[bytes], bytes]
) -> None:
    shown = set(cluster.show(2))
    cluster.look()
    cluster.path.write_bytes(spoiled(cluster.path.read_bytes()))

    with caplog.at_level(logging.WARNING):
        assert with_lag(cluster.look()) == shown
        assert {each.partition for each in cluster.kept()} == shown
        cluster.look()

    [warning] = [record for record in caplog.records if record.name == samples.__name__]
    assert str(cluster.path) in warning.getMessage()
    assert len(cluster.read) == 4


def test_a_corrupt_file_is_replaced_also_if_nothing_is_read(cluster: Cluster) -> None:
    cluster.show(1)
    cluster.look()
    cluster.path.write_bytes(b"nonsense")
    cluster.logs.clear()
    cluster.look()
    assert cluster.kept() == []


@dataclass
class Outage:
    """Whether the work area refuses to be read and written."""

    is_on: bool = False


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """An outage of the work area, for all who use it."""
    outage = Outage()

    def failing(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if outage.is_on:
                raise RemoteStorageError("the work area does not answer")
            return method(*arguments)

        return called

    for name in ("read", "write"):
        monkeypatch.setattr(WorkArea, name, failing(getattr(WorkArea, name)))
    yield outage


def test_an_outage_of_the_work_area_hinders_no_snapshot_and_loses_no_samples(
    cluster: Cluster, outage: Outage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_SAMPLES", 3)
    shown = set(cluster.show(6))
    first = with_lag(cluster.look())
    with cluster.files.open() as remote_log, caplog.at_level(logging.WARNING):
        logs = cast(SegmentSource, Logs(tuple(cluster.logs.values())))
        snapshots = Snapshots(replace(remote_log.context, source=logs))
        outage.is_on = True
        cluster.files.clock.now += 60_000
        assert len(with_lag(snapshots.take())) == 3
        with_lag(snapshots.take())
        outage.is_on = False
        assert with_lag(snapshots.take()) == shown

    reported = [record.getMessage() for record in caplog.records if record.name == samples.__name__]
    assert len(reported) == 1
    assert {each.partition for each in cluster.kept()} >= first


def test_samples_stay_kept_while_no_broker_answers(cluster: Cluster) -> None:
    shown = set(cluster.show(2))
    cluster.look()

    @dataclass(frozen=True)
    class Away:
        is_configured: bool = True

        def partitions(self) -> Iterator[PartitionLog]:
            raise ClusterUnreachableError("no broker answers")

    assert cluster.look(source=Away()).problem is not None
    assert {each.partition for each in cluster.kept()} == shown
    del cluster.logs[ORDERS_0]
    cluster.look()
    assert {each.partition for each in cluster.kept()} == shown - {ORDERS_0}


def test_so_many_samples_are_kept_at_most_those_that_were_read_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_KEPT", 3)
    shown = cluster.show(3)
    cluster.look()
    more = partition_of("orders", 9)
    cluster.logs[ORDERS_0] = replace(cluster.logs[ORDERS_0], log_start_offset=10)
    cluster.logs[more] = cluster.log(more, END)
    cluster.look()

    kept = {each.partition for each in cluster.kept()}
    assert len(kept) == 3
    assert kept >= {ORDERS_0, more}
    assert kept < {*shown, more}


def test_a_look_that_keeps_nothing_knows_what_others_kept(cluster: Cluster) -> None:
    shown = set(cluster.show(2))
    assert with_lag(cluster.look(keeps_samples=False)) == shown
    assert cluster.kept() == []
    cluster.look()
    cluster.read.clear()
    assert with_lag(cluster.look(keeps_samples=False)) == shown
    assert cluster.read == []
