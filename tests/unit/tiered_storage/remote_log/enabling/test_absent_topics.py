"""Which topics a running cluster no longer shows, and what that proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.remote_logs import ORDERS_0
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.enabling.absent_topics import REPLACED_SINCE, ShownTopics
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import NamedPartition, UnreadablePartition

OLD = replace(ORDERS_0, topic_id="oldoldoldoldoldoldoldo")
CONFIGS = TopicConfigs.of({})


def named(partition: TopicIdPartition, configs: TopicConfigs | None = CONFIGS) -> NamedPartition:
    return NamedPartition(partition, "at a broker", False, False, False, False, configs=configs)


def test_a_name_with_another_id_was_created_again() -> None:
    shown = ShownTopics(shows_all=False)
    shown.add(named(ORDERS_0))

    [found] = shown.absent([OLD, replace(OLD, partition=1), ORDERS_0])

    assert (found.partitions, found.new_id) == ((OLD, replace(OLD, partition=1)), ORDERS_0.topic_id)
    assert shown.shows(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders")
    assert not shown.shows(OLD.cluster_id, OLD.topic_id, "orders")


@pytest.mark.parametrize(
    "one",
    [named(ORDERS_0, None), UnreadablePartition("orders-0", "no leader"), named(replace(ORDERS_0, topic="other"))],
)
def test_a_topic_that_a_cluster_may_hide_is_not_absent(one: NamedPartition | UnreadablePartition) -> None:
    shown = ShownTopics(shows_all=False)
    shown.add(one)

    assert shown.absent([OLD]) == []


def test_a_name_that_is_gone_is_absent_where_all_are_shown() -> None:
    shown = ShownTopics(shows_all=True)
    [alone] = shown.absent([OLD])
    assert alone.new_id is None
    shown.add(named(replace(ORDERS_0, topic="clicks")))

    assert [each.first for each in shown.absent([OLD, replace(OLD, cluster_id="another cluster")])] == [OLD]


@pytest.mark.parametrize(
    ("is_allowed", "properties", "expected"),
    [
        (False, {}, "deletion is not allowed"),
        (True, {}, "1000 ms after the next run of expire"),
        (True, {REPLACED_SINCE: "0"}, "after 1970-01-01 00:00:01 UTC"),
    ],
)
def test_a_person_reads_when_the_old_data_are_deleted(
    is_allowed: bool, properties: dict[str, str], expected: str
) -> None:
    shown = ShownTopics(shows_all=False)
    shown.add(named(ORDERS_0))
    [found] = shown.absent([OLD])
    decided = Topic(OLD.cluster_id, OLD.topic_id, "orders", remote_deletion_allowed=is_allowed, properties=properties)

    assert expected in found.finding(decided, 1000).message
