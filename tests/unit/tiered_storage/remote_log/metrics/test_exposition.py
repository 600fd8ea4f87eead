"""The metrics have Kafka's names, and Prometheus' own client reads them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.remote_logs import a_copied_remote_log, segments_of
from support.scraping import KAFKA, KAFKA_REMOTE, Scrape
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metrics.exporter import MetricsExporter
from tiered_storage.remote_log.metrics.exposition import MOST_PARTITIONS, CountedStorage, FetchCounts
from tiered_storage.remote_log.metrics.partition_metrics import BrokerRetention, CopyLag, OffsetRule, RemoteLogMetrics
from unit.built_metrics import TAKEN_AT, many, partition_metrics

NAMES = Path(__file__).parents[2] / "settings" / "kafka_names.csv"


def scraped(*snapshots: RemoteLogMetrics) -> Scrape:
    """What a scrape shows after so many snapshots."""
    remaining = iter(snapshots)
    exporter = MetricsExporter(lambda: next(remaining), 60, print)
    for _ in snapshots:
        exporter.refresh()
    registry = CollectorRegistry()
    registry.register(exporter)
    return Scrape.of(generate_latest(registry).decode())


def test_gauges_and_counters_are_by_topic_under_the_names_of_the_jmx_exporter() -> None:
    partitions = (
        partition_metrics("orders", 0, CopyLag(2, 200, 5_000), remote=3, remote_size=30, copied=5, copied_size=50),
        partition_metrics("orders", 1, CopyLag(1, 100, 7_500), deleting=2, deleting_size=20, deleted=4, unfinished=1),
    )
    found = scraped(RemoteLogMetrics(TAKEN_AT, 1500, partitions))
    expected = {
        "remotecopylagsegments": 3,
        "remotecopylagbytes": 300,
        "remotecopybytes_total": 50,
        "remotecopyrequests_total": 5,
        "remotecopyerrors_total": 0,
        "remotedeletelagsegments": 2,
        "remotedeletelagbytes": 20,
        "remotedeleterequests_total": 4,
        "remotedeleteerrors_total": 0,
        "remotelogsizebytes": 30,
        "remotelogmetadatacount": 6,
    }
    assert {name: found.value(f"{KAFKA}{name}", topic="orders") for name in expected} == expected
    assert found.value("remote_log_copy_lag_seconds", topic="orders") == 7.5
    assert found.value("remote_log_untiered_tail_bytes", topic="orders") == 600
    assert found.value("remote_log_partition_copy_lag_bytes", topic="orders", partition="1") == 100
    assert found.value("remote_log_metrics_timestamp_seconds") == TAKEN_AT / 1000
    assert found.value("remote_log_metrics_duration_seconds") == 1.5
    assert found.value("remote_log_local_logs_readable") == 1


def test_every_metric_of_kafkas_that_we_serve_is_one_that_kafka_has() -> None:
    lines = [line for line in NAMES.read_text().splitlines() if not line.startswith("#")]
    known = {row["name"].removesuffix("PerSec").lower() for row in csv.DictReader(lines) if row["scope"] == "metric"}
    served = {name.removeprefix(KAFKA).removesuffix("_total") for name in scraped(many(1)).names if KAFKA in name}
    assert len(served) == 12
    assert served <= known


def test_an_unknown_lag_has_no_series() -> None:
    unknown_age = partition_metrics("orders", 0, CopyLag(1, 100, None))
    unknown_lag = partition_metrics("payments", 0, remote=1)
    found = scraped(RemoteLogMetrics(TAKEN_AT, 1, (unknown_age, unknown_lag), "a broker holds it"))
    assert found.value(f"{KAFKA}remotecopylagbytes", topic="orders") == 100
    assert found.value("remote_log_copy_lag_seconds", topic="orders") is None
    assert found.value(f"{KAFKA}remotecopylagbytes", topic="payments") is None
    assert found.value(f"{KAFKA}remotelogmetadatacount", topic="payments") == 1
    assert found.value("remote_log_local_logs_readable") == 0


def test_what_brokers_may_delete_is_by_topic_and_what_limits_are_taken_by_partition() -> None:
    one = partition_metrics("orders", 0, CopyLag(), remote=1)
    partitions = (
        replace(one, retention=BrokerRetention(90_000, is_short=True), used_percent=7, local_used_percent=0),
        replace(
            one,
            partition=replace(one.partition, partition=1),
            retention=BrokerRetention(60_000, is_short=True, lowered=("retention.ms", "local.retention.ms")),
            used_percent=120,
            local_used_percent=None,
        ),
        partition_metrics("payments", 0, CopyLag()),
    )
    metrics = RemoteLogMetrics(TAKEN_AT, 1, partitions, sized_ms=12)
    found = scraped(metrics)
    assert found.value("remote_log_retention_margin_seconds", topic="orders") == 60
    assert found.value("remote_log_short_retention_margins", topic="orders") == 2
    assert found.value("remote_log_lowered_limits", topic="orders") == 2
    assert found.value("remote_log_retention_margin_seconds", topic="payments") is None
    assert found.value("remote_log_lowered_limits", topic="payments") == 0
    assert found.value(f"{KAFKA}remotelogsizecomputationtime") == 12
    name = f"{KAFKA_REMOTE}retentionsizeinpercent"
    assert [found.value(name, topic="orders", partition=each) for each in "01"] == [7, 120]
    name = f"{KAFKA_REMOTE}localretentionsizeinpercent"
    assert [found.value(name, topic="orders", partition=each) for each in "01"] == [0, None]
    troubles = " ".join(metrics.topics[0].troubles)
    for word in ("if copies stop for longer than 0.0 h", "lowered retention.ms", "lowered local.retention.ms"):
        assert word in troubles


def test_each_violated_rule_is_counted_by_topic() -> None:
    sound = partition_metrics("orders", 0, CopyLag())
    wrong = replace(sound, violated=(OffsetRule.REMOTE_END,), partition=replace(sound.partition, partition=1))
    found = scraped(RemoteLogMetrics(TAKEN_AT, 1, (sound, wrong)))
    counts = {rule: found.value("remote_log_offset_violations", topic="orders", rule=rule) for rule in OffsetRule}
    assert counts == {**dict.fromkeys(OffsetRule, 0.0), OffsetRule.REMOTE_END: 1.0}


def test_failure_counters_start_at_the_first_snapshot_and_never_decrease() -> None:
    def snapshot(ended: int, attempts: int) -> RemoteLogMetrics:
        metrics = partition_metrics(
            "orders", 0, CopyLag(), copied=10, ended=ended, deletion_attempts=attempts, deleted=3
        )
        return RemoteLogMetrics(TAKEN_AT, 1, (metrics,))

    first = scraped(snapshot(7, 9))
    later = scraped(snapshot(7, 9), snapshot(9, 12), snapshot(1, 0), snapshot(2, 2))
    names = ("remotecopyerrors", "remotecopyrequests", "remotedeleteerrors", "remotedeleterequests")
    assert [first.value(f"{KAFKA}{name}_total", topic="orders") for name in names] == [0, 10, 0, 3]
    assert [later.value(f"{KAFKA}{name}_total", topic="orders") for name in names] == [3, 13, 5, 8]


def test_incarnations_of_a_topic_share_its_series() -> None:
    one = partition_metrics("orders", 0, CopyLag(1, 100, 1))
    other = replace(one, partition=replace(one.partition, topic_id="another"))
    found = scraped(RemoteLogMetrics(TAKEN_AT, 1, (one, other)))
    assert found.value(f"{KAFKA}remotecopylagbytes", topic="orders") == 200
    assert found.value("remote_log_partition_copy_lag_bytes", topic="orders", partition="0") == 200


@pytest.mark.parametrize(("count", "names_partitions"), [(MOST_PARTITIONS, True), (MOST_PARTITIONS + 1, False)])
def test_partitions_are_named_only_while_there_are_few(count: int, names_partitions: bool) -> None:
    assert ("remote_log_partition_copy_lag_bytes" in scraped(many(count)).names) is names_partitions


def test_ten_thousand_partitions_are_answered_by_topic() -> None:
    found = scraped(many(10_000, topics=20))
    assert len(found.samples) < 20 * 30
    assert found.value("remote_log_partitions", topic="topic-3") == 500


@pytest.fixture
def remote_log(tmp_path: Path) -> Iterator[RemoteLogManager]:
    with a_copied_remote_log(tmp_path).open() as opened:
        yield opened


def fetched(counts: FetchCounts) -> list[float | None]:
    found = Scrape.of(generate_latest(counts.registry).decode())
    return [found.value(f"{KAFKA}remotefetch{name}_total", topic="orders") for name in ("requests", "bytes", "errors")]


def test_reads_of_segments_are_counted_by_topic_with_their_bytes(remote_log: RemoteLogManager) -> None:
    counts = FetchCounts()
    storage = CountedStorage(remote_log.context.storage, counts)
    first, second, _ = segments_of(remote_log)
    assert fetched(counts) == [None, None, None]
    whole = b"".join(storage.fetch_log_segment(first))
    assert len(b"".join(storage.fetch_log_segment(second, 10, 19))) == 10
    assert fetched(counts)[:2] == [2, len(whole) + 10]


def test_a_failed_read_is_an_error(remote_log: RemoteLogManager) -> None:
    counts = FetchCounts()
    storage = CountedStorage(remote_log.context.storage, counts)
    first, *_ = segments_of(remote_log)
    storage.delete_log_segment_data(first)
    with pytest.raises(RemoteObjectNotFoundError):
        list(storage.fetch_log_segment(first))
    assert fetched(counts) == [1, None, 1]
