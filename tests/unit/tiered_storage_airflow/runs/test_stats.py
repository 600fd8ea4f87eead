"""Metrics by topic through Airflow: the names that plain StatsD gets, of the first cluster and of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.scraping import StatsdListener
from tiered_storage.remote_log.metrics.partition_metrics import BrokerRetention, CopyLag, OffsetRule, TopicMetrics
from tiered_storage_airflow.runs.stats import count, emit_metrics
from unit.built_metrics import partition_metrics

PAGE = (Path(__file__).parents[4] / "docs" / "monitoring.md").read_text("utf-8")
EVERY_GAUGE = {
    "copy_lag_segments": 2,
    "copy_lag_bytes": 200,
    "copy_lag_seconds": 1.5,
    "untiered_tail_bytes": 400,
    "untiered_tail_offsets": 25,
    "missing_offsets": 15,
    "remote_bytes": 7,
    "unfinished_copies": 6,
    "stuck_copies": 5,
    "failed_deletions": 3,
    "delete_lag_segments": 4,
    "delete_lag_bytes": 44,
    "unreadable_partitions": 1,
    "offset_violations": 2,
    "retention_margin_seconds": 60,
    "short_retention_margins": 1,
    "lowered_limits": 2,
}
"""What is sent of a topic that lags, fails and contradicts itself."""


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdListener]:
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    with closing(StatsdListener()) as opened:
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(opened.port))
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        yield opened
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


def topic(name: str, lag: CopyLag | None = None) -> TopicMetrics:
    return TopicMetrics.of(name, [partition_metrics(name, 0, lag, remote_size=7)])


def test_plain_statsd_gets_the_topic_in_the_name_and_no_level_of_its_own_for_its_dots(listener: StatsdListener) -> None:
    emit_metrics([topic("orders.eu", CopyLag(2, 200, 1500))], None)
    found = listener.received_until("airflow.remote_log.offset_violations.orders__eu")
    assert found["airflow.remote_log.copy_lag_segments.orders__eu"] == "2|g"
    assert found["airflow.remote_log.copy_lag_seconds.orders__eu"] == "1.5|g"
    assert found["airflow.remote_log.remote_bytes.orders__eu"] == "7|g"


def test_every_figure_of_a_topic_is_sent_and_the_page_names_it(listener: StatsdListener) -> None:
    segments = {"remote_size": 7, "unfinished": 6, "stuck": 5, "failed_deletions": 3, "deleting": 4}
    known = partition_metrics("orders", 0, CopyLag(2, 200, 1500), deleting_size=44, **segments)
    looked_at = replace(
        known,
        offsets=replace(known.offsets, local_start=75),
        violated=(OffsetRule.LOCAL_END, OffsetRule.REMOTE_END),
        retention=BrokerRetention(60_000, is_short=True, lowered=("retention.ms", "retention.bytes")),
        problem="its directory cannot be read",
    )
    emit_metrics([TopicMetrics.of("orders", [looked_at])], None)
    found = listener.received_until("airflow.remote_log.offset_violations.orders")

    gauges = {name.split(".")[2]: value for name, value in found.items() if name.endswith(".orders")}
    assert {name: float(value.removesuffix("|g")) for name, value in gauges.items()} == EVERY_GAUGE
    assert {name for name in EVERY_GAUGE if f"`remote_log.{name}`" not in PAGE} == set()


def test_another_cluster_stands_before_the_topic(listener: StatsdListener) -> None:
    emit_metrics([topic("orders")], "west")
    found = listener.received_until("airflow.remote_log.offset_violations.west.orders")
    assert found["airflow.remote_log.remote_bytes.west.orders"] == "7|g"
    count("west", copy_bytes=Counter(orders=30))
    assert (
        listener.received_until("airflow.remote_log.copy_bytes.west.orders")[
            "airflow.remote_log.copy_bytes.west.orders"
        ]
        == "30|c"
    )


def test_a_lag_that_is_not_known_is_not_sent(listener: StatsdListener) -> None:
    emit_metrics([topic("payments"), topic("orders", CopyLag(1, 5, None))], None)
    found = listener.received_until("airflow.remote_log.offset_violations.orders")
    assert "airflow.remote_log.copy_lag_bytes.payments" not in found
    assert found["airflow.remote_log.copy_lag_bytes.orders"] == "5|g"
    assert "airflow.remote_log.copy_lag_seconds.orders" not in found


def test_the_tail_of_a_topic_whose_lag_is_not_known_is_sent_as_far_as_it_is_known(listener: StatsdListener) -> None:
    unread = replace(partition_metrics("orders", 0), is_lag_unknown=True, tail_size=None)
    emit_metrics([TopicMetrics.of("orders", [unread])], None)
    found = listener.received_until("airflow.remote_log.offset_violations.orders")
    assert found["airflow.remote_log.untiered_tail_offsets.orders"] == "40|g"
    assert {"airflow.remote_log.copy_lag_bytes.orders", "airflow.remote_log.untiered_tail_bytes.orders"} & {
        *found
    } == set()


def test_the_longest_topic_has_a_name_that_airflow_sends(listener: StatsdListener) -> None:
    longest = "a" * 249
    emit_metrics([topic(longest)], None)
    last = f"airflow.remote_log.offset_violations.{'a' * 100}"
    assert listener.received_until(last)[last] == "0|g"
