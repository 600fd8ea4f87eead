from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from support.command_line import mentions
from tiered_storage.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    MalformedAnswerError,
)
from tiered_storage.kafka_wire.connections.apis import (
    APIS,
    FETCH,
    METADATA,
)
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from unit.tiered_storage.kafka_wire.scripted_broker import Asked
from unit.tiered_storage.kafka_wire.scripted_cluster import (
    ORDERS_ID,
    OTHER_ID,
    RECORDS,
    ZERO,
    Clock,
    Scripted,
    positions,
    served,
)


@pytest.mark.parametrize("version", [11, 12, 13, 18])
def test_a_fetch_asks_the_first_positions_leader(version: int) -> None:
    scripted = Scripted()
    ranges = {each.key: (0, each.latest) for each in APIS} | {FETCH.key: (0, version)}
    with served(scripted, ranges) as cluster:
        [found] = cluster.fetch(positions(), FetchBuffer(1000)).partitions
        assert (found.partition, bytes(found.records), found.leader_epoch) == (0, RECORDS, 3)
        [found] = cluster.fetch(positions()[::-1], FetchBuffer(1000)).partitions
        assert found.partition == 1
        scripted.leaders[1] = 1
        cluster.fetch(positions()[::-1], FetchBuffer(1000))
        assert len(cluster.fetch(positions(), FetchBuffer(1000)).partitions) == 2
    assert {each.version for _, each in scripted.asked if each.key == FETCH.key} == {version}


@pytest.mark.parametrize("code", [3, 6, 74, 75, 78, 100])
def test_a_fetch_follows_its_leader(code: int) -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        cluster.fetch(positions(), FetchBuffer(1000))
        scripted.fails[1, FETCH.key, 0] = [code]
        scripted.leaders[0], scripted.epoch = (1 if code == 78 else 2), 4
        [found] = [each for each in cluster.fetch(positions(), FetchBuffer(1000)).partitions if each.partition == 0]
        assert (found.error_code, bytes(found.records)) == (0, RECORDS)
        assert found.leader_epoch == (3 if code == 78 else 4)


def test_a_fetch_follows_its_leader_after_a_lost_connection() -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        cluster.fetch(positions(), FetchBuffer(1000))
        scripted.silent = {(1, FETCH.key)}
        scripted.leaders[0] = 2
        assert len(cluster.fetch(positions(), FetchBuffer(1000)).partitions) == 2


def test_a_fetch_waits_as_long_as_a_quota_holds_it_back() -> None:
    scripted, pauses = Scripted(throttles=[70.0, 70.0, 11.0]), list[float]()
    with served(scripted, sleep=pauses.append) as cluster:
        [found] = cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions
    assert bytes(found.records) == RECORDS
    assert pauses == [70.0, 70.0, 11.0]
    assert scripted.keys(METADATA.key) == [(1, FETCH.key)] * 4


def test_partitions_without_a_leader_are_waited_for_once() -> None:
    scripted, clock = Scripted(leaders={0: 1, 1: 2, 2: -1, 3: -1}), Clock()
    alone, another = (FetchPosition("orders", number, 0) for number in (2, 3))
    with served(scripted, clock=clock) as cluster:
        for position, begin, latest in ((alone, 0.0, 32.0), (another, 40.0, 40.0), (another, 300.0, 332.0)):
            clock.at = begin
            [found] = cluster.fetch([position], FetchBuffer(1000)).partitions
            assert (found.partition, found.error_code) == (position.partition, 5)
            assert clock.at <= latest
        assert clock.at >= 330.0
        scripted.leaders[3] = 2
        [found] = cluster.fetch([another], FetchBuffer(1000)).partitions
        assert bytes(found.records) == RECORDS


def test_a_quota_that_lets_no_batch_through_is_an_error_that_names_it() -> None:
    scripted, clock = Scripted(throttles=[11.0] * 1000), Clock()
    with served(scripted, clock=clock) as cluster:
        # Other partitions are not held up as long again.
        for position in positions():
            with pytest.raises(ClusterUnreachableError) as held:
                cluster.fetch([position], FetchBuffer(1000))
            for word in (f"orders-{position.partition}: ", "consumer_byte_rate", "client.id remote-log", "180 s"):
                assert word in str(held.value)
            assert held.value.retriable
            assert clock.at == 180.0
        for throttles in ([], [11.0]):
            scripted.throttles = throttles
            [found] = cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions
            assert bytes(found.records) == RECORDS
    assert clock.at == 191.0


def test_a_garbled_throttle_is_no_pause_of_days() -> None:
    scripted, pauses = Scripted(throttles=[2_000_000.0]), list[float]()
    with served(scripted, sleep=pauses.append) as cluster:
        [found] = cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions
    assert bytes(found.records) == RECORDS
    assert pauses == [180.0]


@pytest.mark.parametrize(
    ("times", "answered"), [(0, "no partition"), (2, "orders-0, orders-0")], ids=["without it", "with it twice"]
)
def test_an_answer_to_a_fetch_that_has_the_partition_not_once_is_malformed(times: int, answered: str) -> None:
    scripted = Scripted()
    fetched = scripted.fetched

    def broken(node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        return {"responses": fetched(node, asked, kio)["responses"] * times}

    with served(scripted) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "fetched", broken)
        with pytest.raises(MalformedAnswerError) as refused:
            cluster.fetch(positions()[:1], FetchBuffer(1000), seconds=0.2)
    address = scripted.addresses[1]
    assert mentions(str(refused.value), f"{address}: Fetch: ", f"for {answered},", "asked for orders-0")


def elects(scripted: Scripted, clock: Clock, leaders: Mapping[int, tuple[float, int]]) -> Callable[[float], None]:
    """Return a pause in which partitions get leaders: from a time (s) on, a broker."""

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        scripted.leaders.update({number: node for number, (at, node) in leaders.items() if clock.at >= at})

    return sleep


def test_a_partition_that_loses_its_leader_is_waited_for_although_others_were_in_vain() -> None:
    scripted, clock = Scripted(leaders={0: 1, 1: 2, 2: -1, 3: -1}), Clock()
    buffer = FetchBuffer(1000)
    with served(scripted, sleep=elects(scripted, clock, {0: (110.0, 2)}), clock=clock) as cluster:
        assert cluster.fetch([FetchPosition("orders", 2, 0)], buffer).partitions[0].error_code == 5
        cluster.fetch(positions()[:1], buffer)
        clock.at, scripted.leaders[0] = 100.0, -1
        assert bytes(cluster.fetch(positions()[:1], buffer).partitions[0].records) == RECORDS
        assert 110.0 <= clock.at <= 113.0
        # Those of the first outage still cost no more than one wait together.
        for number in (2, 3, 2, 3):
            assert cluster.fetch([FetchPosition("orders", number, 0)], buffer).partitions[0].error_code == 5
        assert clock.at <= 145.0


def test_another_outage_after_one_that_ended_is_waited_for() -> None:
    scripted, clock = Scripted(leaders={0: -1, 1: 2}), Clock()
    buffer = FetchBuffer(1000)
    with served(scripted, sleep=elects(scripted, clock, {0: (12.0, 1), 1: (80.0, 1)}), clock=clock) as cluster:
        assert bytes(cluster.fetch(positions()[:1], buffer).partitions[0].records) == RECORDS
        clock.at, scripted.leaders[1] = 60.0, -1
        # Nothing was fetched of it before.
        assert bytes(cluster.fetch(positions()[1:], buffer).partitions[0].records) == RECORDS
        assert 80.0 <= clock.at <= 83.0


def test_an_epoch_that_the_caller_gives_is_fenced_at_once() -> None:
    scripted = Scripted()
    scripted.fails[1, FETCH.key, 0] = [74]
    with served(scripted) as cluster:
        [found] = cluster.fetch([FetchPosition("orders", 0, 0, leader_epoch=2)], FetchBuffer(1000)).partitions
    assert (found.error_code, found.leader_epoch) == (74, 2)
    assert len(scripted.keys(METADATA.key)) == 1


def test_an_offset_out_of_range_is_answered_at_once() -> None:
    scripted = Scripted()
    scripted.fails[1, FETCH.key, 0] = [1]
    with served(scripted) as cluster:
        assert [each.error_code for each in cluster.fetch(positions(), FetchBuffer(1000)).partitions] == [1]
    assert len(scripted.keys(METADATA.key)) == 1


def test_a_topic_that_was_created_again_is_not_read() -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        assert cluster.fetch(positions(topic_id=ORDERS_ID), FetchBuffer(1000)).partitions[0].error_code == 0
        before = len(scripted.asked)
        [found] = cluster.fetch(positions(topic_id=OTHER_ID), FetchBuffer(1000)).partitions
        assert (found.error_code, len(found.records)) == (100, 0)
    assert [each.key for _, each in scripted.asked[before:]] == [METADATA.key]


def test_a_partition_that_was_added_is_found() -> None:
    scripted = Scripted()
    two = TopicPartition("orders", 2)
    with served(scripted) as cluster:
        found = cluster.list_offsets({ZERO: -1, two: -1})
        assert isinstance(found[two], PartitionError)
        scripted.leaders[2] = 2
        assert cluster.list_offsets({two: -1}) == {two: ListedOffset(20, -1, 3)}


def test_a_right_that_was_granted_is_found() -> None:
    scripted = Scripted(topic_error=29)
    with served(scripted) as cluster:
        assert isinstance(cluster.list_offsets({ZERO: -1})[ZERO], PartitionError)
        [refused] = cluster.fetch(positions(), FetchBuffer(1000)).partitions
        assert "--operation Read --topic orders" in str(refused.error)
        scripted.topic_error = 0
        assert cluster.list_offsets({ZERO: -1}) == {ZERO: ListedOffset(10, -1, 3)}
        [found] = cluster.fetch(positions(), FetchBuffer(1000)).partitions
        assert found.error is None


def test_no_more_is_asked_for_than_the_buffer_holds() -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        for most in (1000, 1 << 20, 1 << 30):
            cluster.fetch(positions(), FetchBuffer(most))
    asked = [each.message.max_bytes for _, each in scripted.asked if each.key == FETCH.key]
    assert asked == [1, (1 << 20) - (64 << 10), 50 << 20]


def test_a_follower_that_the_leader_recommends_is_read_from_until_it_fails() -> None:
    scripted = Scripted(recommended=2)
    with served(scripted) as cluster:
        for _ in range(2):
            assert bytes(cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions[0].records) == RECORDS
        assert scripted.keys(METADATA.key) == [(1, FETCH.key), (2, FETCH.key), (2, FETCH.key)]
        scripted.recommended = -1
        assert bytes(cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions[0].records) == RECORDS
        assert scripted.keys(METADATA.key)[3:] == [(2, FETCH.key), (1, FETCH.key)]


def test_a_follower_that_is_gone_is_left_for_its_leader() -> None:
    scripted = Scripted(recommended=2)
    with served(scripted) as cluster:
        cluster.fetch(positions()[:1], FetchBuffer(1000))
        scripted.recommended, scripted.silent = -1, {(2, FETCH.key)}
        assert bytes(cluster.fetch(positions()[:1], FetchBuffer(1000)).partitions[0].records) == RECORDS
    assert scripted.keys(METADATA.key)[-2:] == [(2, FETCH.key), (1, FETCH.key)]


def test_an_answer_larger_than_its_buffer_is_refused() -> None:
    with served(Scripted()) as cluster, pytest.raises(ConfigurationError, match=r"\b20\b"):
        cluster.fetch(positions(), FetchBuffer(20))
