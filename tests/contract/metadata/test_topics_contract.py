"""The contract of Topics."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic, Topics

ORDERS = Topic("cluster-1", "id-of-orders", "orders")


@pytest.fixture
def topics(store: MetadataStore) -> Topics:
    return store.topics


def test_new_metadata_know_no_topic(topics: Topics) -> None:
    assert topics.get("cluster-1", "id-of-orders") is None
    assert topics.list() == []


def test_a_decision_is_read_back(topics: Topics) -> None:
    decided = replace(
        ORDERS,
        remote_storage_enable=True,
        remote_deletion_allowed=True,
        properties={"retention.ms": "-1", "local.retention.ms": "3600000"},
    )

    topics.put(decided)

    assert topics.get("cluster-1", "id-of-orders") == decided


def test_every_right_is_off_by_default(topics: Topics) -> None:
    topics.put(ORDERS)

    read = topics.get("cluster-1", "id-of-orders")

    assert read is not None
    rights = (read.remote_storage_enable, read.local_deletion_allowed, read.remote_deletion_allowed)
    assert (*rights, read.properties) == (False, False, False, {})


def test_a_later_decision_replaces_an_earlier_one_whole(topics: Topics) -> None:
    topics.put(replace(ORDERS, remote_storage_enable=True, properties={"retention.ms": "1"}))

    topics.put(replace(ORDERS, name="renamed", local_deletion_allowed=True))

    assert topics.list() == [replace(ORDERS, name="renamed", local_deletion_allowed=True)]


def test_a_topic_that_was_created_again_is_another_topic(topics: Topics) -> None:
    recreated = replace(ORDERS, topic_id="id-of-orders-created-again")
    topics.put(replace(ORDERS, local_deletion_allowed=True))
    topics.put(recreated)

    assert topics.get("cluster-1", recreated.topic_id) == recreated
    assert len(topics.list()) == 2


def test_all_incarnations_of_a_name_are_found_in_every_cluster(topics: Topics) -> None:
    incarnations = [
        ORDERS,
        replace(ORDERS, topic_id="id-of-orders-created-again"),
        replace(ORDERS, cluster_id="cluster-2"),
    ]
    for each in (*incarnations, replace(ORDERS, topic_id="another id", name="orders-of-others")):
        topics.put(each)

    assert topics.named("orders") == incarnations
    assert topics.named("order") == []


def test_a_change_gets_the_earlier_decision(topics: Topics) -> None:
    known: list[Topic | None] = []

    def allow(topic: Topic | None) -> Topic:
        known.append(topic)
        return replace(topic or ORDERS, local_deletion_allowed=True)

    first = topics.change("cluster-1", "id-of-orders", allow)
    second = topics.change("cluster-1", "id-of-orders", allow)

    assert known == [None, first]
    assert first == second == replace(ORDERS, local_deletion_allowed=True)
    assert topics.list() == [second]


def test_a_refused_change_changes_nothing(topics: Topics) -> None:
    topics.put(ORDERS)

    def refuse(_: Topic | None) -> Topic:
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        topics.change("cluster-1", "id-of-orders", refuse)
    assert topics.list() == [ORDERS]


def test_no_concurrent_change_is_lost(topics: Topics) -> None:
    def add(number: int) -> None:
        def change(topic: Topic | None) -> Topic:
            known = topic or ORDERS
            time.sleep(0.005)
            return replace(known, properties={**known.properties, f"property.{number}": "1"})

        topics.change("cluster-1", "id-of-orders", change)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))

    assert len(topics.list()[0].properties) == 12


def test_topics_are_listed_by_cluster_and_name(topics: Topics) -> None:
    for cluster, name in (("b", "x"), ("a", "z"), ("a", "y")):
        topics.put(Topic(cluster, f"id-of-{name}", name))

    assert [(topic.cluster_id, topic.name) for topic in topics.list()] == [("a", "y"), ("a", "z"), ("b", "x")]
