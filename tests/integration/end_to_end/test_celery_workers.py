"""Airflow's Celery workers, one beside each of two running brokers, as docs/live-cluster.md has them.

Each worker has a mount namespace of its own: at the path that broker.log.dirs names it sees its broker's directory, and
no other. So partitions can only be copied by the worker of their leader's queue.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from crashes.airflow_parts import hasty_dags
from integration.mount_namespaces import elsewhere
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, LiveCluster, producer
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.credentials import Credentials
from tiered_storage_airflow.embedded.environment import (
    DATABASE_VARIABLE,
    EmbeddedAirflow,
    airflow_environment,
    virtual_environment_bin,
)
from tiered_storage_airflow.embedded.processes import members, signal_all, start, wait_ended

TOPIC = "orders"
QUEUES = {1: "broker-1", 2: "broker-2"}
"""By the id of the broker beside whose disk the worker of the queue is."""
SECONDS = 600


def celery(folder: Path) -> dict[str, str]:
    """Return Airflow's settings for Celery with files below `folder` in place of servers."""
    messages, control = folder / "messages", folder / "control"
    for each in (messages, control):
        each.mkdir(parents=True)
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": "filesystem://",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{folder / 'results.db'}",
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__DATA_FOLDER_IN": str(messages),
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__DATA_FOLDER_OUT": str(messages),
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__CONTROL_FOLDER": str(control),
    }


@contextmanager
def worker(queue: str, shown: Path, directory: Path, environment: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Run a worker that takes only `queue`; to it, `directory` shows the folder `shown`. It is ready for the `with`."""
    folder.mkdir()
    command = [str(virtual_environment_bin() / "airflow"), "celery", "worker", "--queues", queue]
    # On a host of its own it would need none of these.
    beside = ["--concurrency", "2", "--skip-serve-logs", "--pid", str(folder / "worker.pid")]
    log = folder / "worker.log"
    started = start(queue, elsewhere([*command, *beside], shown, directory), environment, log=log, directory=folder)
    try:
        wait_for(lambda: " ready." in log.read_text(), log.read_text)
        yield
    finally:
        everything = members([started], queue)
        signal_all(everything, signal.SIGKILL)
        wait_ended(everything, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_worker_of_each_brokers_queue_copies_what_that_broker_leads(
    kafka_programs: KafkaPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, mounted = Ledger(tmp_path / "ledger.csv"), tmp_path / "data"
    mounted.mkdir()
    with BrokerCluster(kafka_programs, tmp_path / "kafka") as brokers, ExitStack() as running:
        brokers.create_topic(TOPIC, 2, SMALL_SEGMENTS, [[1, 2], [2, 1]])
        settings = {
            "broker.log.dirs": {str(broker): str(mounted) for broker in QUEUES},
            "copy.queues": list(QUEUES.values()),
        }
        site = LiveCluster(brokers, tmp_path, (TOPIC,), settings).write()
        with producer(site, TOPIC, ledger):
            wait_for(lambda: all(closed(brokers, broker) > 1 for broker in QUEUES), lambda: "no segments are closed")
        added = celery(tmp_path / "celery")
        environments: list[dict[str, str]] = []

        def environment(
            airflow: EmbeddedAirflow, credentials: Credentials, java: Path, environ: Mapping[str, str]
        ) -> dict[str, str]:
            environments.append(airflow_environment(airflow, credentials, java, environ) | added)
            return environments[-1]

        monkeypatch.setattr(services, "airflow_environment", environment)
        dags = hasty_dags(tmp_path / "dags", ["copy_segments"])
        embedded = EmbeddedAirflow(tmp_path / "state", site.config, free_ports(1)[0], dags)
        running.callback(services.down, embedded.state, report=lambda _: None)
        airflow = services.up(embedded, report=lambda _: None, environ={**os.environ, DATABASE_VARIABLE: ""})
        for broker, queue in QUEUES.items():
            shown = brokers.log_dir(broker)
            running.enter_context(worker(queue, shown, mounted, environments[-1], tmp_path / queue))

        with services.connect(airflow) as api:
            for number, (broker, queue) in enumerate(QUEUES.items()):
                dag = f"copy_segments.{queue}"
                api.unpause(dag)
                ended = api.wait_for_run(api.trigger(dag), SECONDS)
                assert ended.state == "success", api.failures(ended)
                remote = {each.partition for each in site.partitions()}
                assert remote == set(range(number + 1)), (broker, remote)
        site.ensure_exactly_once(ledger, TOPIC)


def closed(brokers: BrokerCluster, broker: int) -> int:
    """Return how many closed segments the first partition that `broker` leads has."""
    return len(list(brokers.log_dir(broker).glob(f"{TOPIC}-{broker - 1}/*.log"))) - 1
