"""watch_remote_log: what it keeps, what Airflow's metrics get, and when a run fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dags.airflow_runs import AirflowHome
from dags.metric_collector import collecting
from servers.real_kafka import RealKafka
from support.command_line import mentions, run
from support.records import varied_records
from support.scraping import StatsdListener
from support.tiered_site import TIERED, TieredSite, partition
from tiered_storage.clock import wall_clock
from tiered_storage.errors import RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.metrics.stored import lag_history, latest_metrics
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what configures Airflow's metrics as a task's process does when it begins; they are off again later."""
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    def configure(**options: object) -> None:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", str(value))
        legacy = conf.getboolean("metrics", "legacy_names_on")
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)

    yield configure
    monkeypatch.undo()
    configure()


def test_a_run_keeps_metrics_and_a_point_of_history(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 3, "payments-0": 1, "untiered-0": 2})
    site.configure({"orders": TIERED, "payments": TIERED})
    run = airflow.run("watch_remote_log")
    assert (run.state, run.tasks) == ("success", {"look": "success"})
    assert mentions(run.log, "topics: 2,", "partitions: 2,", "lag segments: 4")
    with site.open() as remote_log:
        kept = latest_metrics(remote_log.context.work)
        [point] = lag_history(remote_log.context.work, wall_clock())
    assert kept is not None
    assert {each.topic: each.lag.segments for each in kept.topics if each.lag} == {"orders": 3, "payments": 1}
    assert {topic: lag.segments for topic, lag in point.topics.items()} == {"orders": 3, "payments": 1}


def test_statsd_receives_the_lag_by_topic_and_a_copy_brings_it_to_zero(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, metrics: Any
) -> None:
    site.write_logs({"orders-0": 3, "orders.eu-0": 1})
    site.configure({"orders": TIERED, "orders.eu": TIERED})
    with closing(StatsdListener()) as listener:
        metrics(statsd_on=True, statsd_host="127.0.0.1", statsd_port=listener.port, statsd_prefix="airflow")
        airflow.run("watch_remote_log")
        before = listener.received_until("airflow.remote_log.offset_violations.orders__eu")
        airflow.run("copy_segments")
        copied = listener.received_until("airflow.remote_log.copy_bytes.orders__eu")
        airflow.run("watch_remote_log")
        after = listener.received_until("airflow.remote_log.offset_violations.orders__eu")
    assert before["airflow.remote_log.copy_lag_segments.orders"] == "3|g"
    assert before["airflow.remote_log.copy_lag_bytes.orders"] == "3603|g"
    assert float(before["airflow.remote_log.copy_lag_seconds.orders"].partition("|")[0]) > 0
    assert before["airflow.remote_log.copy_lag_segments.orders__eu"] == "1|g"
    assert copied["airflow.remote_log.copy_requests.orders"] == "3|c"
    assert copied["airflow.remote_log.copy_bytes.orders"] == "3603|c"
    assert "airflow.remote_log.copy_errors.orders" not in copied
    assert after["airflow.remote_log.copy_lag_segments.orders"] == "0|g"
    assert after["airflow.remote_log.remote_bytes.orders"] == "3603|g"
    assert after["airflow.remote_log.offset_violations.orders"] == "0|g"


def test_statsd_receives_how_far_copies_lag_behind_a_running_cluster(
    airflow: AirflowHome, site: TieredSite, real_kafka: RealKafka, metrics: Any
) -> None:
    topic = "watched-by-a-dag"
    real_kafka.client.create_topic(topic, 2, {"internal.segment.bytes": "16384", "segment.ms": str(1 << 60)})
    for number in range(2):
        real_kafka.client.produce(topic, varied_records(400, seed=number), partition=number, batch_num_messages=20)
    settings = {
        "bootstrap.servers": real_kafka.bootstrap_servers,
        "state.directory": str(site.state),
        "topics": {topic: dict(TIERED)},
    }
    site.config.write_text(yaml.safe_dump(settings))
    name = "airflow.remote_log.copy_lag_{}." + topic
    with closing(StatsdListener()) as listener:
        metrics(statsd_on=True, statsd_host="127.0.0.1", statsd_port=listener.port, statsd_prefix="airflow")
        behind = airflow.run("watch_remote_log")
        assert behind.state == "success", behind.messages
        before = listener.received_until(f"airflow.remote_log.offset_violations.{topic}")
        while run("copy", "--json", "--config", site.config).rows:
            pass
        caught_up = airflow.run("watch_remote_log")
        assert caught_up.state == "success", caught_up.messages
        after = listener.received_until(f"airflow.remote_log.offset_violations.{topic}")
    for unit in ("segments", "bytes", "seconds"):
        assert float(before[name.format(unit)].partition("|")[0]) > 0, before
        assert float(after[name.format(unit)].partition("|")[0]) == 0, after
    assert after[f"airflow.remote_log.offset_violations.{topic}"] == "0|g"
    rows = run("segments", "--json", "--config", site.config).rows
    assert after[f"airflow.remote_log.remote_bytes.{topic}"] == f"{sum(row['bytes'] for row in rows)}|g"


def test_opentelemetry_receives_the_same_with_the_topic_as_a_tag(
    airflow: AirflowHome, site: TieredSite, metrics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import atexit

    from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
    from opentelemetry import metrics as opentelemetry_metrics

    site.write_logs({"orders-0": 3})
    site.configure({"orders": TIERED})
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        metrics(otel_on=True, legacy_names_on=False)
        airflow.run("watch_remote_log")
        # A task's process does this when it ends.
        provider: Any = opentelemetry_metrics.get_meter_provider()
        provider.force_flush()
        provider.shutdown()
        atexit.unregister(flush_otel_metrics)
    assert collector.points["airflow.remote_log.copy_lag_segments", "orders"] == 3
    assert collector.points["airflow.remote_log.copy_lag_bytes", "orders"] == 3603
    assert collector.points["airflow.remote_log.offset_violations", "orders"] == 0
    assert "airflow.remote_log.copy_lag_segments.orders" not in {name for name, _ in collector.points}


def test_statsd_receives_by_topic_the_copies_and_deletions_that_failed(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, metrics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_logs({"orders-0": 3, "payments-0": 1})
    expiring = {**TIERED, "remote.deletion.allowed": True, "retention.ms": 3_600_000}
    site.configure({"orders": TIERED, "payments": expiring})
    site.corrupt("orders-0", 10)
    refused: list[str] = []
    delete = ObjectRemoteStorageManager.delete_segments

    def refuse_once(
        storage: ObjectRemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> Mapping[str, TieredStorageError]:
        if refused:
            return delete(storage, segments)
        refused.extend(segment.segment_id.id for segment in segments)
        return {each: RemoteStorageError("the store is away") for each in refused}

    monkeypatch.setattr(ObjectRemoteStorageManager, "delete_segments", refuse_once)
    with closing(StatsdListener()) as listener:
        metrics(statsd_on=True, statsd_host="127.0.0.1", statsd_port=listener.port, statsd_prefix="airflow")
        assert airflow.run("copy_segments").state == "failed"
        copied = listener.received_until("airflow.remote_log.copy_errors.orders")
        assert airflow.run("expire_remote_segments").state == "success"
        refusal = listener.received_until("airflow.remote_log.delete_errors.payments")
        again = listener.received_until("airflow.remote_log.delete_requests.payments")
    # The segment after the damaged one is left out, and counts as failed.
    assert copied["airflow.remote_log.copy_requests.orders"] == "3|c"
    assert copied["airflow.remote_log.copy_errors.orders"] == "2|c"
    assert refusal["airflow.remote_log.delete_requests.payments"] == "1|c"
    assert refusal["airflow.remote_log.delete_errors.payments"] == "1|c"
    assert again["airflow.remote_log.delete_requests.payments"] == "1|c"
    assert "airflow.remote_log.delete_errors.payments" not in again


def test_contradicting_offsets_fail_the_run_and_name_the_partition(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 3, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED})
    site.copy()
    # As after an unclean election of a replica that lagged.
    (site.logs / "replication-offset-checkpoint").write_text("0\n2\norders 0 20\npayments 0 20\n")
    run = airflow.run("watch_remote_log")
    assert run.state == "failed"
    [error] = run.errors["look"]
    named = "orders-0 (Ly >= Ry: local 0 to 20, stable to 20, remote 0 to 30)"
    assert mentions(str(error), 1, named)
    with site.open() as remote_log:
        kept = latest_metrics(remote_log.context.work)
    assert kept is not None
    assert [each.partition for each in kept.partitions if each.violated] == [partition("orders-0")]
