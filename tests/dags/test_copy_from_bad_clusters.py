"""copy_segments where the connection or the rights at a real broker are wrong: the run's log and state say what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from dags.airflow_runs import AirflowHome
from servers.guarded_kafka import LIMITED, READS, GuardedKafka
from support.bad_clusters import AWAY, FAULTS, SLOW_SECONDS, Fault, without_patience
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS
from support.records import varied_records
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.model import SegmentState

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

OF_RUNS = [*(fault for fault in FAULTS if fault.name == "wrong password"), AWAY]
"""A run logs in as the command line does, which tests/integration/copy/test_bad_clusters.py tries with all of them."""


def configured(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], *topics: str, conn_type: str = "kafka"
) -> None:
    """Write the settings of a remote log of `topics` at the cluster that the connection `live` leads to."""
    monkeypatch.setenv("AIRFLOW_CONN_LIVE", json.dumps({"conn_type": conn_type, "extra": extra}))
    settings = {
        "cluster.connection": "live",
        "state.directory": str(site.state),
        "topics": {topic: dict(TIERED) for topic in topics},
    }
    site.config.write_text(yaml.safe_dump(settings))


def create(broker: GuardedKafka, topic: str) -> None:
    broker.kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    broker.kafka.client.produce(topic, varied_records(200, seed=1), batch_num_messages=20)


@pytest.fixture(scope="module")
def broker(guarded_broker: GuardedKafka) -> GuardedKafka:
    create(guarded_broker, "unreached-by-a-dag")
    return guarded_broker


@pytest.mark.parametrize("fault", OF_RUNS, ids=lambda fault: fault.name)
def test_a_run_that_cannot_reach_its_cluster_fails_and_names_the_setting(
    airflow: AirflowHome,
    site: TieredSite,
    broker: GuardedKafka,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_patience(monkeypatch, SLOW_SECONDS)
    configured(site, monkeypatch, fault.properties(broker), "unreached-by-a-dag")

    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert mentions(run.log, *fault.words(broker)), run.messages
    assert mentions(run.messages, *fault.named), run.messages
    assert "guess" not in run.log


def test_a_run_whose_connection_does_not_exist_fails_and_names_it(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(site, monkeypatch, {}, "orders")
    monkeypatch.delenv("AIRFLOW_CONN_LIVE")

    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert mentions(run.messages, "connection live", "cluster.connection", "does not exist"), run.messages


def test_a_run_whose_connection_is_of_another_type_fails_and_names_both(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": "127.0.0.1:1"}
    configured(site, monkeypatch, extra, "orders", conn_type="aws")

    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert mentions(run.messages, "connection live", "type aws", "kafka"), run.messages


def test_a_topic_that_workers_may_not_read_fails_the_run_and_others_are_copied(
    airflow: AirflowHome,
    site: TieredSite,
    broker: GuardedKafka,
    spark: SparkInProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking, granted = "not-read-by-a-dag", "read-by-a-dag"
    for topic in (lacking, granted):
        create(broker, topic)
        broker.grant(topic, {LIMITED: READS})
    configured(site, monkeypatch, broker.properties("SASLTLS", sasl_username="limited"), lacking, granted)
    # The right goes after the plan: only workers notice.
    spark.meanwhile = lambda: broker.revoke(lacking, LIMITED, AclOperation.READ)

    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert mentions(run.messages, f"{lacking}-0", "--operation Read", f"--topic {lacking}"), run.messages
    assert airflow.announced_by(run) == [f"{granted}-0"]
    settings = yaml.safe_load(site.config.read_text())
    given = {**settings, "bootstrap.servers": broker.kafka.bootstrap_servers}
    site.config.write_text(yaml.safe_dump(given))
    with site.open() as remote_log:
        finished = {
            str(partition)
            for partition in remote_log.context.segments.list_partitions()
            for segment in remote_log.context.segments.list_remote_log_segments(partition)
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
        }
    assert finished == {f"{granted}-0"}
