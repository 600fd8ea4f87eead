from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.topic_partition import (
    is_topic_name,
    nearly_same,
    parse_partition_directory,
    partition_directory_name,
)

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(is_topic_name)


@given(topics, st.integers(0, 2**31 - 1))
@example("a-1", 2)
@example("-", 0)
def test_a_partition_is_found_again_in_its_directorys_name(topic: str, partition: int) -> None:
    assert parse_partition_directory(partition_directory_name(topic, partition)) == (topic, partition)


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-00",
        "orders-1x",
        "orders--1x",
        "orders-2147483648",
        "orders-0.4f2a-delete",
        "orders-٣",
        "or ders-0",
        "orders-0\n",
        "..-0",
        "a" * 250 + "-0",
        "remote-log-index-cache",
    ],
)
def test_other_names_are_no_partitions(name: str) -> None:
    assert parse_partition_directory(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a\n"])
def test_names_that_kafka_refuses_are_no_topic_names(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(ConfigurationError, match="topic name"):
        partition_directory_name(name, 0)


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_a_partition_that_kafka_cannot_have_is_refused(partition: int) -> None:
    with pytest.raises(ConfigurationError, match=f"partition {partition}"):
        partition_directory_name("orders", partition)


def test_names_that_are_nearly_the_same_stand_together() -> None:
    names = ["orders.eu", "clicks", "Orders_eu", "orders.eu", "orderseu", "a.b_c", "A_B.c"]
    assert nearly_same(names) == [["A_B.c", "a.b_c"], ["Orders_eu", "orders.eu"]]
