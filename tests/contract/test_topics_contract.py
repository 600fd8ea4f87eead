"""What every Topics keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.metadata_stores import METADATA_STORES, ManualClock, MetadataStoreOpener
from tiered_storage.remote_log.metadata import Topic, Topics

ORDERS = Topic("cluster-1", "id-of-orders", "orders")


@pytest.fixture(params=METADATA_STORES)
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topics]:
    opener: MetadataStoreOpener = request.param
    with opener(tmp_path, ManualClock()) as store:
        yield store.topics


def test_nothing_is_known_of_a_topic_at_first(topics: Topics) -> None:
    assert topics.get("cluster-1", "id-of-orders") is None
    assert topics.list() == []


def test_a_decision_comes_back_as_it_was_written(topics: Topics) -> None:
    decided = replace(
        ORDERS,
        remote_storage_enable=True,
        remote_deletion_allowed=True,
        properties={"retention.ms": "-1", "local.retention.ms": "3600000"},
    )

    topics.put(decided)

    assert topics.get("cluster-1", "id-of-orders") == decided


def test_everything_is_off_until_it_is_switched_on(topics: Topics) -> None:
    topics.put(ORDERS)

    read = topics.get("cluster-1", "id-of-orders")

    assert read is not None
    rights = (read.remote_storage_enable, read.local_deletion_allowed, read.remote_deletion_allowed)
    assert (*rights, read.properties) == (False, False, False, {})


def test_a_later_decision_replaces_an_earlier_one_whole(topics: Topics) -> None:
    topics.put(replace(ORDERS, remote_storage_enable=True, properties={"retention.ms": "1"}))

    topics.put(replace(ORDERS, name="renamed", local_deletion_allowed=True))

    assert topics.list() == [replace(ORDERS, name="renamed", local_deletion_allowed=True)]


def test_a_topic_that_was_created_anew_is_another_one(topics: Topics) -> None:
    reborn = replace(ORDERS, topic_id="id-of-orders-created-anew")
    topics.put(replace(ORDERS, local_deletion_allowed=True))
    topics.put(reborn)

    assert topics.get("cluster-1", reborn.topic_id) == reborn
    assert len(topics.list()) == 2


def test_topics_are_listed_by_cluster_and_name(topics: Topics) -> None:
    for cluster, name in (("b", "x"), ("a", "z"), ("a", "y")):
        topics.put(Topic(cluster, f"id-of-{name}", name))

    assert [(topic.cluster_id, topic.name) for topic in topics.list()] == [("a", "y"), ("a", "z"), ("b", "x")]
