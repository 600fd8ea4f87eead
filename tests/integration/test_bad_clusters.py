"""What is wrong with a cluster is said with the setting and the remedy, and nothing is copied meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from integration.conftest import StartKafka
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.records import varied_records

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


def test_another_cluster_than_yesterday_is_named_until_it_is_confirmed(
    kafka_programs: KafkaPrograms, real_kafka: RealKafka, tmp_path: Path
) -> None:
    name = "copied-from-two-clusters"
    real_kafka.client.create_topic(name, 1, SMALL_SEGMENTS)
    real_kafka.client.produce(name, varied_records(200, seed=1), batch_num_messages=20)
    topics = {name: {"remote.storage.enable": True}}
    copied = run("copy", "--json", "--config", configured(tmp_path, real_kafka, topics=topics))
    assert copied.exit_code == 0, copied.err
    yesterday = real_kafka.client.cluster_id()

    with RealKafka(kafka_programs, tmp_path / "another") as another:
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
