"""What is wrong with a cluster is said with the setting and the remedy, and nothing is copied meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from integration.conftest import StartKafka
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.records import varied_records
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

TOPIC = "orders"
SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}


def configured(root: Path, kafka: RealKafka, **settings: object) -> Path:
    """Write the settings of a remote log of TOPIC beside `kafka`; names have _ for the dots."""
    path = root / "settings.yaml"
    given = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.directory": str(root / "state"),
        "topics": {TOPIC: {"remote.storage.enable": True}},
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    path.write_text(yaml.safe_dump(given))
    return path


def filled(kafka: RealKafka) -> RealKafka:
    kafka.client.create_topic(TOPIC, 1, SMALL_SEGMENTS)
    kafka.client.produce(TOPIC, varied_records(200, seed=1), batch_num_messages=20)
    return kafka


@pytest.fixture(scope="module")
def another(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Another cluster."""
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("another-cluster")) as started:
        yield started


def test_another_cluster_than_yesterday_is_named_until_it_is_confirmed(
    real_kafka: RealKafka, another: RealKafka, tmp_path: Path
) -> None:
    name = "copied-from-two-clusters"
    real_kafka.client.create_topic(name, 1, SMALL_SEGMENTS)
    real_kafka.client.produce(name, varied_records(200, seed=1), batch_num_messages=20)
    topics = {name: {"remote.storage.enable": True}}
    copied = run("copy", "--json", "--config", configured(tmp_path, real_kafka, topics=topics))
    assert copied.exit_code == 0, copied.err
    yesterday = real_kafka.client.cluster_id()

    another.client.create_topic(name, 1, SMALL_SEGMENTS)
    another.client.produce(name, varied_records(200, seed=2), batch_num_messages=20)
    today = another.client.cluster_id()
    config = configured(tmp_path, another, topics=topics)
    refused = run("copy", "--json", "--config", config)
    looked = run("doctor", "--config", config)
    confirmed = run("copy", "--json", "--config", configured(tmp_path, another, topics=topics, cluster_id=today))
    wrong = run("copy", "--config", configured(tmp_path, another, topics=topics, cluster_id=yesterday))

    assert (refused.exit_code, refused.rows) == (1, [])
    for result in (refused, looked):
        said = result.out + result.err
        assert result.exit_code == 1
        assert yesterday in said
        assert today in said
        assert "bootstrap.servers" in said
        assert "cluster.id" in said
    assert confirmed.exit_code == 0, confirmed.err
    assert len(confirmed.rows) == len(copied.rows)
    assert wrong.exit_code == 1
    assert f"cluster.id says {yesterday}" in wrong.out + wrong.err


def test_a_worker_whose_addresses_lead_to_another_cluster_copies_nothing_and_names_both(
    real_kafka: RealKafka, another: RealKafka, tmp_path: Path
) -> None:
    name = "meant-on-one-cluster"
    for kafka in (real_kafka, another):
        kafka.client.create_topic(name, 1, SMALL_SEGMENTS)
        kafka.client.produce(name, varied_records(200, seed=1), batch_num_messages=20)
    settings = load_settings(
        configured(tmp_path, real_kafka, topics={name: {"remote.storage.enable": True}}), environ={}
    )
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "test")
        job = remote_log.write_copy_job("runs/test/1", begun)
        access = remote_log.access(job.files)
        # As the worker's host resolves bootstrap.servers.
        there = replace(access.secrets, source_access={"bootstrap.servers": another.bootstrap_servers})
        copied = run_copy_groups(replace(access, secrets=there), [0])
        failures = [outcome.failure for outcome in job.outcomes()]

    assert copied == 0
    for failure in failures:
        assert failure is not None
        assert failure.error == "ConfigurationError"
    for word in (real_kafka.client.cluster_id(), another.client.cluster_id(), "bootstrap.servers"):
        assert word in str(failures[0])
    assert list((tmp_path / "state").rglob("*.log")) == []


@pytest.mark.nightly
def test_brokers_that_advertise_another_address_are_named_with_it(start_kafka: StartKafka, tmp_path: Path) -> None:
    advertised, log_dir = "127.0.0.1:1", tmp_path / "log-dir"
    filled(start_kafka(log_dir)).stop()
    kafka = start_kafka(log_dir, {"advertised.listeners": f"PLAINTEXT://{advertised}"})

    result = run("copy", "--config", configured(tmp_path, kafka))

    said = result.out + result.err
    assert result.exit_code == 1, said
    assert "advertised.listeners" in said
    assert advertised in said
