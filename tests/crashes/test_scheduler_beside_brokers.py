"""Airflow's scheduler and a leader are killed at once, in the middle of a copy from a cluster under load."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from crashes.airflow_parts import SOON_DEAD, unscheduled_dags, with_another_scheduler
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, LiveSite, producer
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE, EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import members, signal_all, wait_until
from tiered_storage_airflow.embedded.record import SCHEDULER

DAG = "copy_segments"
TOPIC = "orders"
SECONDS = 300


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_killed_scheduler_and_a_killed_leader_lose_and_double_nothing(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    ledger, killed = Ledger(tmp_path / "ledger.csv"), []
    with BrokerCluster(kafka_programs, tmp_path / "kafka") as brokers:
        brokers.create_topic(TOPIC, 3, SMALL_SEGMENTS)
        site = LiveSite(brokers, tmp_path, (TOPIC,)).write()
        embedded = EmbeddedAirflow(
            tmp_path / "airflow-state",
            config=site.config,
            port=free_ports(1)[0],
            dags_folder=unscheduled_dags(tmp_path / "dags", [DAG]),
        )
        environ = {**os.environ, DATABASE_VARIABLE: "", **SOON_DEAD}
        running = services.up(embedded, say=lambda _: None, environ=environ)
        try:
            with producer(site, TOPIC, ledger), services.connect(running) as api:
                api.unpause(DAG)
                first = api.wait_for_run(api.trigger(DAG), SECONDS)
                assert first.state == "success", api.failures(first)
                interrupted = api.trigger(DAG)
                started = running
                assert wait_until(lambda: any(map(is_spark, members(started.services, started.mark))), SECONDS)
                killed = [one for one in running.services if one.name == SCHEDULER]
                leader = brokers.leader(TOPIC, 0)
                psutil.Process(killed[0].pid).kill()
                brokers.kill(leader)
                running = with_another_scheduler(running, embedded, environ)
                ended = api.wait_for_run(interrupted, SECONDS)
                # Red if what the worker had finished was committed beside what it lost.
                assert ended.state in {"success", "failed"}, api.failures(ended)
                brokers.start(leader)
            with services.connect(running) as api:
                last = api.wait_for_run(api.trigger(DAG), SECONDS)
                assert last.state == "success", api.failures(last)
        finally:
            services.down(embedded.state, say=lambda _: None)
            signal_all(members(killed, running.mark), signal.SIGKILL)

        site.catch_up()
        counts = site.ensure_exactly_once(ledger, TOPIC)
        assert counts.remote > counts.local


def is_spark(process: psutil.Process) -> bool:
    """Whether it is the JVM of a Spark job."""
    try:
        return process.name() == "java" and "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    except psutil.Error:
        return False
