from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
)
from tiered_storage.kafka_wire.connections.apis import (
    LIST_GROUPS,
    METADATA,
    OFFSET_FETCH,
)
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.metadata import Group
from tiered_storage.kafka_wire.partition_requests import coordinating_partition
from unit.tiered_storage.kafka_wire.scripted_broker import Asked
from unit.tiered_storage.kafka_wire.scripted_cluster import ONE, ZERO, Clock, Scripted, served


def test_every_broker_lists_its_groups_and_one_that_loads_them_is_asked_again() -> None:
    scripted = Scripted(fails={(2, LIST_GROUPS.key, 0): [14, 15]})
    with served(scripted) as cluster:
        assert cluster.list_groups() == {Group("of-1", "consumer"), Group("of-2", "consumer")}
    # Each round asks all again: a group may have moved to a broker that answered before.
    assert sorted(scripted.keys(METADATA.key)) == [*[(1, LIST_GROUPS.key)] * 3, *[(2, LIST_GROUPS.key)] * 3]


def test_a_group_that_moved_while_its_broker_did_not_answer_is_listed() -> None:
    scripted = Scripted(fails={(2, LIST_GROUPS.key, 0): [15]})

    def crash(_: float) -> None:
        if scripted.addresses.pop(2, None):
            scripted.groups[1] = ["of-1", "of-2"]

    with served(scripted, sleep=crash) as cluster:
        assert cluster.list_groups() == {Group("of-1", "consumer"), Group("of-2", "consumer")}


def test_a_list_of_groups_that_lacks_those_of_a_broker_is_an_error() -> None:
    with served(Scripted(silent={(2, LIST_GROUPS.key)})) as cluster, pytest.raises(ClusterUnreachableError):
        cluster.list_groups(seconds=0.3)
    with served(Scripted(fails={(1, LIST_GROUPS.key, 0): [29]})) as cluster, pytest.raises(ClusterRefusedError):
        cluster.list_groups()


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("hello", 22), ("", 0), ("polygenelubricants", 0), ("\U0001f600", 49)],
)
def test_a_group_is_coordinated_by_the_partition_that_its_hash_in_java_names(group_id: str, partition: int) -> None:
    """Of 50 partitions; the third id has the least hash of all, whose absolute value Java does not have."""
    assert coordinating_partition(group_id, 50) == partition


@pytest.mark.parametrize("code", [14, 15, 16], ids=["loads", "has not started", "has not begun to load"])
def test_a_coordinator_that_does_not_serve_its_groups_yet_is_waited_for_and_then_named(code: int) -> None:
    scripted = Scripted(fails={(2, OFFSET_FETCH.key, 1): [code] * 3})
    with served(scripted) as cluster:
        topic = cluster.metadata(["orders"]).topics["orders"]
        assert cluster.coordinator_problems(topic) == {}
        assert len(scripted.keys(METADATA.key)) == 2 + 3
        scripted.fails[2, OFFSET_FETCH.key, 1] = [code] * 1000
        problems = cluster.coordinator_problems(topic, seconds=5)
    assert {each: (one.code, one.retriable) for each, one in problems.items()} == {ONE: (code, True)}
    assert "consumer groups" in problems[ONE].remedy or "group coordinator" in problems[ONE].remedy


def test_each_of_many_coordinators_has_time_to_answer() -> None:
    scripted, clock = Scripted(leaders={0: 1, 1: 2, 2: 1, 3: 2}), Clock()
    committed = scripted.committed

    def late(node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        clock.sleep(3.0)
        return committed(node, asked, kio)

    with served(scripted, clock=clock) as cluster, pytest.MonkeyPatch.context() as patch:
        topic = cluster.metadata(["orders"]).topics["orders"]
        patch.setattr(scripted, "committed", late)
        assert cluster.coordinator_problems(topic, seconds=5.0) == {}
        assert len(scripted.keys(METADATA.key)) == 4
        # Many that do not serve their groups take no longer than the first of them.
        scripted.fails = {(node, OFFSET_FETCH.key, number): [14] * 1000 for number, node in scripted.leaders.items()}
        begun = clock.at
        assert cluster.coordinator_problems(topic, seconds=5.0).keys() == {ZERO}
        assert clock.at <= begun + 10.0


def test_a_coordinator_that_must_not_tell_names_the_right() -> None:
    scripted = Scripted(fails={(1, OFFSET_FETCH.key, 0): [30]})
    with served(scripted) as cluster:
        problems = cluster.coordinator_problems(cluster.metadata(["orders"]).topics["orders"])
    assert isinstance(problems[ZERO].as_exception(), ClusterRefusedError)
    assert "--operation Describe --group '*'" in str(problems[ZERO])


def of_orders(*partitions: tuple[int, int, int]) -> tuple[Any, ...]:
    """An answer's topics: the committed offset and the error code of each of the partitions of orders."""
    kio: Any = load_payload_module(OFFSET_FETCH.key, OFFSET_FETCH.latest, EntityType.response)
    entries = tuple(
        kio.OffsetFetchResponsePartition(
            partition_index=number, committed_offset=offset, metadata="", error_code=ErrorCode(code)
        )
        for number, offset, code in partitions
    )
    return (kio.OffsetFetchResponseTopic(name="orders", partitions=entries),)


def test_what_a_group_has_committed_is_asked_of_its_coordinator() -> None:
    scripted = Scripted(offsets=of_orders((0, 100, 0), (1, -1, 0)), fails={(1, OFFSET_FETCH.key, 0): [16]})
    with served(scripted) as cluster:
        topic = cluster.metadata(["orders"]).topics["orders"]
        assert cluster.committed_offsets("of-partition-0", topic) == {ZERO: 100}


@pytest.mark.parametrize("partitions", [[(0, -2, 0)], [(0, 5, 29)], [(0, 5, 0), (0, 6, 0)]])
def test_committed_offsets_that_cannot_be_are_no_answer(partitions: list[tuple[int, int, int]]) -> None:
    with served(Scripted(offsets=of_orders(*partitions))) as cluster:
        topic = cluster.metadata(["orders"]).topics["orders"]
        found = cluster.committed_offsets("any", topic, seconds=0.3)
    assert isinstance(found, PartitionError)
    assert found.retriable
    assert "orders-0" in str(found)
