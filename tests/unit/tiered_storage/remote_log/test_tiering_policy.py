from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import sqlite_store
from support.remote_logs import ORDERS_0
from tiered_storage.errors import ConfigurationError, UnsupportedTopicError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.tiering_policy import (
    Decisions,
    decide,
    decided_topic,
    effective,
    is_wanted,
    recorded_pattern,
)
from tiered_storage.settings.settings import Settings, load_settings

LOG = PartitionLog(ORDERS_0, "orders-0", (), 0, 0, ())
ENABLED = Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", remote_storage_enable=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlMetadataStore]:
    with sqlite_store(tmp_path, ManualClock()) as opened:
        yield opened


def settings_with(tmp_path: Path, topics: Mapping[str, Mapping[str, object]] | None = None) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text("{}")
    return load_settings(path, environ={}, overrides={"topics": topics or {}})


def test_a_topic_that_nobody_decided_on_is_neither_copied_nor_deleted_from(
    tmp_path: Path, store: SqlMetadataStore
) -> None:
    decision = decide(LOG, store.topics, settings_with(tmp_path))

    assert not decision.copies
    assert not decision.trims
    assert not is_wanted("orders", store.topics, settings_with(tmp_path))


def test_the_settings_file_gives_a_topics_first_decision(tmp_path: Path, store: SqlMetadataStore) -> None:
    settings = settings_with(tmp_path, {"orders": {"remote.storage.enable": True, "retention.ms": 5}})

    decision = decide(LOG, store.topics, settings)

    assert decision.copies
    assert not decision.trims
    assert decision.settings.retention_ms == 5
    assert decision.settings.local_retention_ms == 5
    assert is_wanted("orders", store.topics, settings)
    assert not is_wanted("clicks", store.topics, settings)


def test_a_decision_overrides_the_settings_file(tmp_path: Path, store: SqlMetadataStore) -> None:
    settings = settings_with(tmp_path, {"orders": {"remote.storage.enable": True, "local.deletion.allowed": True}})
    store.topics.put(Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders"))

    decision = decide(LOG, store.topics, settings)

    assert not decision.copies
    assert not decision.trims
    assert not is_wanted("orders", store.topics, settings)


def test_a_decision_is_about_one_life_of_a_topic(tmp_path: Path, store: SqlMetadataStore) -> None:
    store.topics.put(replace(ENABLED, topic_id="of another incarnation"))

    assert not decide(LOG, store.topics, settings_with(tmp_path)).copies
    assert is_wanted("orders", store.topics, settings_with(tmp_path)), "by its name alone it might be that one"


def test_copying_may_pause_while_everything_else_continues(tmp_path: Path, store: SqlMetadataStore) -> None:
    store.topics.put(replace(ENABLED, local_deletion_allowed=True, properties={"remote.log.copy.disable": "true"}))

    decision = decide(LOG, store.topics, settings_with(tmp_path))

    assert not decision.copies
    assert decision.trims
    assert decision.topic.remote_storage_enable


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused_once_tiering_was_asked_for(
    tmp_path: Path, store: SqlMetadataStore, policy: str
) -> None:
    topic = replace(ENABLED, properties={"cleanup.policy": policy})
    store.topics.put(replace(topic, remote_storage_enable=False))
    assert not decide(LOG, store.topics, settings_with(tmp_path)).copies

    store.topics.put(topic)
    with pytest.raises(UnsupportedTopicError, match=rf"orders .*cleanup\.policy={policy}.*forbid-deletion orders"):
        decide(LOG, store.topics, settings_with(tmp_path))


def test_a_topic_that_the_log_cleaner_has_compacted_is_refused_whatever_its_settings_say(
    tmp_path: Path, store: SqlMetadataStore
) -> None:
    cleaned = replace(LOG, is_compacted=True)
    assert not decide(cleaned, store.topics, settings_with(tmp_path)).copies

    store.topics.put(ENABLED)
    with pytest.raises(UnsupportedTopicError, match=r"orders-0 .*topics disable.*forbid-deletion orders"):
        decide(cleaned, store.topics, settings_with(tmp_path))


def test_properties_that_contradict_each_other_are_refused(tmp_path: Path, store: SqlMetadataStore) -> None:
    store.topics.put(replace(ENABLED, properties={"local.retention.bytes": "20", "retention.bytes": "10"}))

    with pytest.raises(ConfigurationError, match=r"topic orders.*local\.retention\.bytes is 20"):
        decide(LOG, store.topics, settings_with(tmp_path))


def test_a_topic_that_is_only_remote_is_decided_on_by_its_ids(tmp_path: Path, store: SqlMetadataStore) -> None:
    store.topics.put(ENABLED)

    known = decided_topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", store.topics, settings_with(tmp_path))
    unknown = decided_topic(ORDERS_0.cluster_id, "another id", "orders", store.topics, settings_with(tmp_path))

    assert known == ENABLED
    assert unknown == Topic(ORDERS_0.cluster_id, "another id", "orders")


def pattern(text: str, *, is_enabled: bool = True) -> Topic:
    return recorded_pattern(ORDERS_0.cluster_id, text, is_enabled=is_enabled)


@pytest.mark.parametrize(
    ("rows", "topics", "expected"),
    [
        ([pattern("ord.*")], {}, True),
        ([pattern("ord.*", is_enabled=False)], {}, False),
        ([pattern("ord")], {}, False),
        ([replace(pattern("ord.*"), cluster_id="another cluster")], {}, False),
        ([pattern("ord.*")], {"orders": {"retention.ms": 5}}, True),
        ([pattern("ord.*")], {"orders": {"remote.storage.enable": False}}, False),
        ([pattern("ord.*"), replace(ENABLED, remote_storage_enable=False)], {}, False),
        ([pattern("ord.*"), replace(ENABLED, topic_id="of before", remote_storage_enable=False)], {}, False),
        ([pattern("ord.*"), replace(ENABLED, topic_id="of before")], {}, True),
    ],
)
def test_a_pattern_enables_topics_whose_name_nobody_decided_on(
    tmp_path: Path,
    store: SqlMetadataStore,
    rows: list[Topic],
    topics: Mapping[str, Mapping[str, object]],
    expected: bool,
) -> None:
    settings = settings_with(tmp_path, topics)
    for row in rows:
        store.topics.put(row)

    assert decide(LOG, store.topics, settings).copies is expected
    assert Decisions(store.topics.list(), settings).of(LOG).copies is expected


def test_a_pattern_leaves_alone_what_cannot_be_tiered_and_gives_no_right(
    tmp_path: Path, store: SqlMetadataStore
) -> None:
    settings = settings_with(tmp_path)
    store.topics.put(pattern("ord.*"))

    for log in (replace(LOG, is_compacted=True), replace(LOG, tiered_by_kafka="Kafka itself tiers orders")):
        decision = decide(log, store.topics, settings)
        assert not decision.copies
        assert not decision.settings.remote_storage_enable
        assert "cannot be tiered" in str(decision.left_alone) or "Kafka itself" in str(decision.left_alone)
    assert not decide(LOG, store.topics, settings).trims
    assert is_wanted("orders", store.topics, settings)
    assert not is_wanted("clicks", store.topics, settings)


DAY = 86_400_000


@pytest.mark.parametrize(
    ("ours", "own", "brokers", "expected"),
    [
        ({}, {}, {"retention.ms": 9 * DAY}, (9 * DAY, 9 * DAY, 0)),
        ({}, {}, {"retention.ms": 9 * DAY, "local.retention.ms": DAY}, (9 * DAY, DAY, 0)),
        ({"log.retention.ms": 5 * DAY}, {}, {"retention.ms": 9 * DAY}, (5 * DAY, 5 * DAY, 0)),
        ({"log.retention.ms": 5 * DAY}, {"retention.ms": 3 * DAY}, {"retention.ms": DAY}, (3 * DAY, 3 * DAY, 0)),
        ({"log.local.retention.ms": 2 * DAY}, {}, {"retention.ms": DAY}, (DAY, DAY, 0)),
        ({}, {"local.retention.ms": 2 * DAY}, {"retention.ms": DAY}, (DAY, DAY, 0)),
        ({}, {"local.retention.ms": -1}, {"retention.ms": DAY}, (DAY, DAY, 0)),
        ({}, {"retention.ms": DAY}, {"retention.ms": 9 * DAY, "local.retention.ms": 5 * DAY}, (DAY, DAY, 0)),
        ({}, {"remote.copy.lag.ms": 5 * DAY}, {"retention.ms": DAY}, (DAY, DAY, DAY)),
        ({}, {}, {"retention.ms": -1, "remote.copy.lag.ms": DAY}, (-1, -1, DAY)),
    ],
)
def test_limits_are_the_brokers_unless_they_are_set_here(
    tmp_path: Path,
    ours: Mapping[str, int],
    own: Mapping[str, int],
    brokers: Mapping[str, int],
    expected: tuple[int, int, int],
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("{}")
    settings = load_settings(path, environ={}, overrides=ours)
    topic = replace(ENABLED, properties={name: str(value) for name, value in own.items()})
    configs = TopicConfigs.of({name: str(value) for name, value in brokers.items()})

    found = effective(topic, settings, configs)

    assert (found.retention_ms, found.local_retention_ms, found.remote_copy_lag_ms) == expected


def test_a_clusters_topic_that_its_brokers_do_not_show_has_no_limit_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("bootstrap.servers: localhost:9092")

    assert effective(ENABLED, load_settings(path, environ={})).retention_ms == -1
    assert effective(ENABLED, load_settings(path, environ={}, overrides={"log.retention.ms": DAY})).retention_ms == DAY
    of_topic = replace(ENABLED, properties={"retention.ms": "7"})
    assert effective(of_topic, load_settings(path, environ={})).retention_ms == 7
