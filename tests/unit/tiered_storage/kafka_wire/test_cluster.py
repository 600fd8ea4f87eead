from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from support.command_line import mentions
from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    ConfigurationError,
)
from tiered_storage.kafka_wire import brokers
from tiered_storage.kafka_wire.brokers import UnreachedAddresses
from tiered_storage.kafka_wire.connections.apis import (
    APIS,
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    OffsetSpec,
)
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings
from tiered_storage.kafka_wire.connections.connection import Connection, open_connection
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import Leadership, TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from unit.tiered_storage.kafka_wire.scripted_cluster import (
    ONE,
    ORDERS_ID,
    RECORDS,
    UNREACHABLE,
    ZERO,
    Clock,
    Scripted,
    client,
    positions,
    served,
)


def test_metadata_name_brokers_topics_and_leaders() -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        found = cluster.metadata()
        assert cluster.metadata(["orders", "none"]).topics["none"].error_code == 3
    assert found.cluster_id == "lab"
    assert {node: each.address for node, each in found.brokers.items()} == scripted.addresses
    assert found.topics["orders"].topic_id == ORDERS_ID
    assert {number: each.leader for number, each in found.topics["orders"].partitions.items()} == {0: 1, 1: 2}


@pytest.mark.parametrize("foreign", [1, 2], ids=["at bootstrap.servers", "where a broker advertises"])
def test_a_broker_of_another_cluster_is_asked_for_nothing_and_both_ids_are_named(foreign: int) -> None:
    scripted = Scripted(foreign={foreign})
    with served(scripted, cluster_id="lab") as cluster, pytest.raises(ConfigurationError) as refused:
        cluster.fetch(positions()[foreign - 1 :], FetchBuffer(1 << 20))
    for word in ("elsewhere", "lab", "bootstrap.servers", str(scripted.addresses[foreign])):
        assert word in str(refused.value)
    assert (foreign, FETCH.key) not in scripted.keys(METADATA.key)
    with served(Scripted(), cluster_id="lab") as cluster:
        assert cluster.list_offsets({ZERO: 1, ONE: 1}).keys() == {ZERO, ONE}


def test_each_leader_is_asked_once_for_its_partitions() -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        assert cluster.list_offsets({ZERO: OffsetSpec.LATEST, ONE: 1234}) == {
            ZERO: ListedOffset(10, -1, 3),
            ONE: ListedOffset(20, -1, 3),
        }
        assert cluster.offsets_for_leader_epochs({ZERO: 3, ONE: 3}) == {ZERO: EpochEnd(3, 10), ONE: EpochEnd(3, 20)}
        assert cluster.delete_records({ZERO: 5, ONE: 6}) == {ZERO: 10, ONE: 20}
        assert cluster.list_offsets({}) == {}
        assert cluster.fetch([], FetchBuffer(1000)).partitions == ()
    requests = [LIST_OFFSETS.key, OFFSET_FOR_LEADER_EPOCH.key, DELETE_RECORDS.key]
    assert sorted(scripted.keys(METADATA.key)) == sorted((node, key) for key in requests for node in (1, 2))
    # A deletion looks at the metadata once more.
    assert len(scripted.keys(*requests)) == 2
    timestamps = {
        node: each.message.topics[0].partitions[0].timestamp for node, each in scripted.asked if each.key == 2
    }
    assert timestamps == {1: -1, 2: 1234}


@pytest.mark.parametrize("code", [3, 5, 6, 9, 56, 72, 74, 75])
def test_after_a_move_the_new_leader_is_asked(code: int) -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        cluster.metadata(["orders"])
        cluster.list_offsets({ZERO: -1})
        scripted.leaders[0] = 2
        scripted.fails[1, LIST_OFFSETS.key, 0] = [code]
        assert cluster.list_offsets({ZERO: -1, ONE: -1}) == {
            ZERO: ListedOffset(20, -1, 3),
            ONE: ListedOffset(20, -1, 3),
        }


@pytest.mark.parametrize("key", [LIST_OFFSETS.key, OFFSET_FOR_LEADER_EPOCH.key])
def test_after_a_lost_connection_the_new_leader_is_asked(key: int) -> None:
    scripted = Scripted()
    with served(scripted) as cluster:
        cluster.list_offsets({ZERO: -1})
        scripted.silent = {(1, key)}
        scripted.leaders[0] = 2
        if key == LIST_OFFSETS.key:
            found: object = cluster.list_offsets({ZERO: 1})[ZERO]
        else:
            found = cluster.offsets_for_leader_epochs({ZERO: 3})[ZERO]
    assert found in (ListedOffset(20, -1, 3), EpochEnd(3, 20))


@pytest.mark.parametrize("code", [3, 6, 7, 13, 56])
def test_a_deletion_of_records_is_never_repeated(code: int) -> None:
    scripted = Scripted()
    if code == 13:
        scripted.silent = {(1, DELETE_RECORDS.key)}
    else:
        scripted.fails[1, DELETE_RECORDS.key, 0] = [code]
    with served(scripted) as cluster:
        found = cluster.delete_records({ZERO: 5, ONE: 6})
    error = found.pop(ZERO)
    assert isinstance(error, PartitionError)
    assert (error.code, error.retriable) == (code, True)
    assert found == {ONE: 20}
    assert sorted(scripted.keys(METADATA.key)) == [(1, DELETE_RECORDS.key), (2, DELETE_RECORDS.key)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": 4}, 74),
        ({"leaders": {0: 2, 1: 2}, "epoch": 4}, 74),
        ({"leaders": {0: -1, 1: 2}}, 5),
        ({"topic_id": UUID(int=8 << 70)}, 103),
        ({"topic_error": 3}, 3),
    ],
)
def test_no_records_are_deleted_at_another_leader_than_the_expected_one(change: dict[str, Any], code: int) -> None:
    scripted = Scripted()
    expected = {ZERO: Leadership(ORDERS_ID, 1, 3)}
    with served(scripted) as cluster:
        assert cluster.delete_records({ZERO: 5}, expected) == {ZERO: 10}
        scripted.asked.clear()
        for name, value in change.items():
            setattr(scripted, name, value)
        found = cluster.delete_records({ZERO: 5}, expected)[ZERO]
    assert isinstance(found, PartitionError)
    assert (found.code, found.retriable) == (code, True)
    assert scripted.keys(METADATA.key) == []


def test_one_partition_that_fails_leaves_the_others_their_answers() -> None:
    scripted = Scripted(leaders={0: 1, 1: -1})
    with served(scripted) as cluster:
        found = cluster.list_offsets({ZERO: -1, ONE: -1, TopicPartition("none", 0): -1}, seconds=0.5)
    assert found.pop(ZERO) == ListedOffset(10, -1, 3)
    assert {each: error.name for each, error in found.items() if isinstance(error, PartitionError)} == {
        ONE: "LEADER_NOT_AVAILABLE",
        TopicPartition("none", 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }


def test_an_error_that_stays_is_answered_at_once() -> None:
    scripted = Scripted()
    scripted.fails[1, DELETE_RECORDS.key, 0] = [1]
    with served(scripted) as cluster:
        found = cluster.delete_records({ZERO: 99})[ZERO]
    assert isinstance(found, PartitionError)
    assert (found.name, found.api) == ("OFFSET_OUT_OF_RANGE", DELETE_RECORDS)
    assert len(scripted.keys(METADATA.key)) == 1


def test_a_missing_right_names_it() -> None:
    with served(Scripted(topic_error=29)) as cluster:
        found = cluster.list_offsets({ZERO: -1})[ZERO]
    assert isinstance(found, PartitionError)
    assert "--operation Describe --topic orders" in found.remedy


def test_a_leader_that_cannot_be_reached_names_the_address_that_it_advertises() -> None:
    scripted = Scripted(addresses={2: UNREACHABLE})
    with served(scripted) as cluster:
        found = cluster.list_offsets({ZERO: -1, ONE: -1}, seconds=0.5)
        assert found[ZERO] == ListedOffset(10, -1, 3)
        failed = found[ONE]
        assert isinstance(failed, PartitionError)
        assert failed.name == "NETWORK_EXCEPTION"
        bootstrap = cluster.settings.bootstrap[0]
        expected = (
            f"broker 2 advertises 127.0.0.1:1 (advertised.listeners) to clients of {bootstrap} (bootstrap.servers)"
        )
        assert expected in failed.reason
        with pytest.raises(ClusterUnreachableError, match=r"broker 2 advertises 127\.0\.0\.1:1 "):
            cluster.fetch(positions()[1:], FetchBuffer(1000), seconds=0.3)


def test_a_leader_that_cannot_be_reached_is_waited_for_once_by_all_clients() -> None:
    scripted = Scripted(leaders={0: 1, 1: 2, 2: 2, 3: 2})
    clock, unreached, buffer = Clock(), UnreachedAddresses(), FetchBuffer(1000)
    with served(scripted, clock=clock, unreached=unreached) as first:
        reachable, scripted.addresses[2] = scripted.addresses[2], UNREACHABLE
        with client(first.settings, clock=clock, unreached=unreached) as second:
            for asking, number, begin, latest in ((first, 1, 0, 24), (second, 2, 25, 26), (second, 3, 300, 302)):
                clock.at = begin
                with pytest.raises(
                    ClusterUnreachableError, match=rf"orders-{number}: broker 2 advertises 127.0.0.1:1 "
                ):
                    asking.fetch([FetchPosition("orders", number, 0)], buffer)
                assert clock.at <= latest
                assert bytes(asking.fetch(positions()[:1], buffer).partitions[0].records) == RECORDS
            scripted.addresses[2] = reachable
            assert bytes(second.fetch(positions()[1:], buffer).partitions[0].records) == RECORDS


def test_tries_of_one_outage_count_together_until_one_succeeds() -> None:
    unreached = UnreachedAddresses()
    for began in (0.0, 9.0, 30.0, 39.0):
        # A broker that was down twice for nine seconds, as a restart takes.
        unreached.failed(UNREACHABLE, began, began + 0.5, "refused")
        assert unreached.given_up(UNREACHABLE, began + 0.5) is None
    unreached.failed(UNREACHABLE, 40.0, 50.0, "timed out")
    for later in (50.0, 349.0):
        found = unreached.given_up(UNREACHABLE, later)
        assert found is not None
        assert found.reason == "timed out"
    assert unreached.given_up(UNREACHABLE, 351.0) is None
    unreached.reached(UNREACHABLE)
    unreached.failed(UNREACHABLE, 51.0, 52.0, "refused")
    assert unreached.given_up(UNREACHABLE, 52.0) is None


def test_a_broker_that_is_silent_leaves_the_others_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def opened(address: BrokerAddress, settings: ClientSettings, deadline: Deadline, token: Any) -> Connection:
        if address != UNREACHABLE:
            return open_connection(address, settings, deadline, token)
        # Connections are accepted, and nothing is answered.
        clock.sleep(deadline.within(settings.connect_seconds).left)
        raise ClusterUnreachableError(f"{address} is silent")

    monkeypatch.setattr(brokers, "open_connection", opened)
    # Brokers are asked in the order of a set: with so many partitions the silent one nearly always comes first.
    leaders = {0: 1, **dict.fromkeys(range(1, 100), 2)}
    with served(Scripted(addresses={2: UNREACHABLE}, leaders=leaders), clock=clock) as cluster:
        found = cluster.list_offsets({TopicPartition("orders", number): -1 for number in leaders}, seconds=20)
    assert clock.at <= 20
    assert found.pop(ZERO) == ListedOffset(10, -1, 3)
    assert {one.name for one in found.values() if isinstance(one, PartitionError)} == {"NETWORK_EXCEPTION"}


def test_a_cluster_that_nobody_answers_for_names_its_addresses_and_why() -> None:
    with (
        client(ClientSettings((UNREACHABLE, BrokerAddress("127.0.0.1", 2)))) as cluster,
        pytest.raises(
            ClusterUnreachableError, match=r"no broker of 127\.0\.0\.1:1, 127\.0\.0\.1:2 \(bootstrap"
        ) as error,
    ):
        cluster.list_offsets({ZERO: -1}, seconds=0.3)
    assert str(error.value).count("Connection refused") == 2


def test_an_answer_about_other_partitions_is_malformed() -> None:
    scripted = Scripted()
    with served(scripted) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "listed", lambda *_: {"topics": ()})
        found = cluster.list_offsets({ZERO: -1}, seconds=0.2)[ZERO]
    assert isinstance(found, PartitionError)
    assert mentions(found.reason, "ListOffsets", 0, 1)


def test_an_epoch_after_the_one_asked_for_is_malformed() -> None:
    with served(Scripted()) as cluster:
        found = cluster.offsets_for_leader_epochs({ZERO: 2}, seconds=0.2)[ZERO]
    assert isinstance(found, PartitionError)
    assert mentions(found.reason, "OffsetForLeaderEpoch: orders-0", "up to 2", "3")


def test_an_offset_that_a_broker_cannot_look_up_is_refused_by_its_name() -> None:
    ranges = {each.key: (0, each.latest) for each in APIS} | {LIST_OFFSETS.key: (0, 8)}
    with served(Scripted(), ranges) as cluster:
        assert cluster.list_offsets({ZERO: OffsetSpec.EARLIEST_LOCAL})[ZERO] == ListedOffset(10, -1, 3)
        with pytest.raises(ClusterRefusedError, match=r"version 8\b.*LATEST_TIERED \(-5\).*3\.9"):
            cluster.list_offsets({ZERO: OffsetSpec.LATEST_TIERED})


def test_records_are_not_deleted_before_a_negative_offset() -> None:
    scripted = Scripted()
    with served(scripted) as cluster, pytest.raises(ConfigurationError, match=r"orders-0: .*before offset -1"):
        cluster.delete_records({ZERO: -1})
    assert scripted.asked == []


def test_metadata_with_an_impossible_address_name_it() -> None:
    scripted = Scripted(addresses={2: BrokerAddress("", 0)})
    with served(scripted) as cluster, pytest.raises(ClusterUnreachableError, match=r"broker 2 .*port 0"):
        cluster.metadata(seconds=0.2)
