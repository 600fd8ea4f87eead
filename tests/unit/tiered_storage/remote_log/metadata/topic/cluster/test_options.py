"""The options of a metadata topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions

CACHE = {"remote.log.metadata.cache.directory": "/cache"}
SERVERS = {"remote.log.metadata.common.client.bootstrap.servers": "a:9092"}


def test_the_defaults_are_kafkas_apart_from_the_topics_name() -> None:
    options = TopicOptions.of(CACHE)

    assert options.cache_directory == Path("/cache")
    assert (options.partitions, options.replication_factor, options.min_isr, options.retention_ms) == (50, 3, 2, -1)
    assert (options.consume_wait_ms, options.retry_timeout_ms, options.retry_interval_ms) == (120_000, 120_000, 100)
    assert options.name == OUR_METADATA_TOPIC
    assert {options.name}.isdisjoint({REMOTE_LOG_METADATA_TOPIC})


def test_each_option_is_read_by_kafkas_name() -> None:
    named = {
        "topic.name": "mine",
        "topic.replication.factor": "1",
        "topic.num.partitions": "7",
        "topic.retention.ms": "9",
        "topic.min.isr": "4",
        "consume.wait.ms": "11",
        "initialization.retry.max.timeout.ms": "12",
        "initialization.retry.interval.ms": "13",
    }

    options = TopicOptions.of(CACHE | {f"remote.log.metadata.{name}": value for name, value in named.items()})

    assert options == TopicOptions(Path("/cache"), "mine", 1, 7, 9, 4, 11, 12, 13, clients=options.clients)


def test_a_clients_own_properties_come_before_those_of_all() -> None:
    options = TopicOptions.of(
        CACHE | SERVERS | {"remote.log.metadata.producer.linger.ms": "5", "remote.log.metadata.producer.client.id": "p"}
    )

    assert options.client("producer") == {"bootstrap.servers": "a:9092", "linger.ms": "5", "client.id": "p"}
    assert options.client("consumer") == options.client("admin") == {"bootstrap.servers": "a:9092"}
    assert "a:9092" not in repr(options), "properties may be secrets"


@pytest.mark.parametrize(
    ("timeout", "expected"), [("30000", 30_000), ("900000", 120_000), ("0", 120_000), ("soon", 120_000)]
)
def test_a_record_waits_no_longer_than_its_own_limit_nor_than_a_call(timeout: str, expected: int) -> None:
    options = TopicOptions.of(CACHE | SERVERS | {"remote.log.metadata.producer.message.timeout.ms": timeout})

    assert options.write_wait_ms == expected


def test_without_brokers_no_client_has_properties() -> None:
    with pytest.raises(ConfigurationError, match=r"common\.client\.bootstrap\.servers"):
        TopicOptions.of(CACHE).client("consumer")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic.num.partitions", "0"),
        ("topic.num.partitions", "many"),
        ("topic.retention.ms", "-2"),
        ("topic.num.partition", "50"),
        ("topic.replication.factor", "40000"),
    ],
)
def test_an_invalid_option_is_refused_by_its_settings_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"rlmm.config.remote.log.metadata.{name} "):
        TopicOptions.of(CACHE | {f"remote.log.metadata.{name}": value})


def test_the_folder_of_the_cache_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"cache\.directory is missing"):
        TopicOptions.of({})
