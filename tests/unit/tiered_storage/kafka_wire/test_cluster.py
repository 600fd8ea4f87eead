from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    ConfigurationError,
    MalformedAnswerError,
)
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire import cluster as cluster_of_brokers
from tiered_storage.kafka_wire.brokers import Brokers, UnreachedAddresses
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import (
    APIS,
    DELETE_RECORDS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.connections.frames import entity
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import Group, Leadership, TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset, OffsetSpec, coordinating_partition
from unit.tiered_storage.kafka_wire.scripted_broker import Asked, ScriptedBroker, framed, schema

ORDERS = UUID(int=7 << 70)
ORDERS_ID, OTHER_ID = encode_uuid(ORDERS.bytes), encode_uuid(UUID(int=8 << 70).bytes)
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNREACHABLE = BrokerAddress("127.0.0.1", 1)
RECORDS = b"records"


@dataclass
class Scripted:
    """A cluster of brokers 1 and 2 with the topic orders, in which a test changes leaders and errors.

    `fails` has error codes by (broker, API key, partition), which are answered once each.
    """

    leaders: dict[int, int] = field(default_factory=lambda: {0: 1, 1: 2})
    epoch: int = 3
    topic_id: UUID = ORDERS
    topic_error: int = 0
    fails: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    recommended: int = -1
    throttles: list[float] = field(default_factory=list)
    """The seconds that a quota holds the next answers to Fetch back, which are empty then."""
    addresses: dict[int, BrokerAddress] = field(default_factory=dict)
    asked: list[tuple[int, Asked]] = field(default_factory=list)
    silent: set[tuple[int, int]] = field(default_factory=set)
    """Brokers and API keys after which they close the connection."""
    groups: dict[int, list[str]] = field(default_factory=dict)
    """Those that a broker lists, if it is not the one of its number."""
    foreign: set[int] = field(default_factory=set)
    """Brokers of another cluster than `lab`, at the addresses of this one's."""

    def keys(self, *without: int) -> list[tuple[int, int]]:
        """The broker and API key of each request."""
        return [(node, each.key) for node, each in self.asked if each.key not in without]

    def answer(self, node: int, asked: Asked) -> bytes | None:
        self.asked.append((node, asked))
        if (node, asked.key) in self.silent:
            return None
        kio = schema(asked)
        values = {
            METADATA.key: self.metadata,
            LIST_OFFSETS.key: self.listed,
            OFFSET_FOR_LEADER_EPOCH.key: self.epochs,
            DELETE_RECORDS.key: self.deleted,
            FETCH.key: self.fetched,
            LIST_GROUPS.key: self.grouped,
            OFFSET_FETCH.key: self.committed,
        }[asked.key](node, asked, kio)
        kind = load_response_schema(asked.key, asked.version)
        return framed(
            entity(kind, **{"throttle_time": timedelta(0), "error_code": ErrorCode.none, **values}),
            asked.correlation_id,
        )

    def error(self, node: int, key: int, partition: int) -> ErrorCode:
        codes = self.fails.get((node, key, partition), [])
        return ErrorCode(codes.pop(0) if codes else 0 if self.leaders[partition] == node else 6)

    def grouped(self, node: int, _: Asked, kio: Any) -> dict[str, Any]:
        codes = self.fails.get((node, LIST_GROUPS.key, 0), [])
        groups = tuple(
            entity(kio.ListedGroup, group_id=each, protocol_type="consumer", group_state="", group_type="")
            for each in self.groups.get(node, [f"of-{node}"])
        )
        return {"error_code": ErrorCode(codes.pop(0) if codes else 0), "groups": groups}

    def committed(self, node: int, asked: Asked, _: Any) -> dict[str, Any]:
        partition = coordinating_partition(asked.message.group_id, len(self.leaders))
        return {"error_code": self.error(node, OFFSET_FETCH.key, partition), "topics": ()}

    def metadata(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        partitions = tuple(
            kio.MetadataResponsePartition(
                error_code=ErrorCode(0 if leader > 0 else 5),
                partition_index=number,
                leader_id=leader,
                leader_epoch=self.epoch,
                replica_nodes=(1, 2),
                isr_nodes=(1, 2),
                offline_replicas=(),
            )
            for number, leader in self.leaders.items()
        )
        topics = [each.name for each in asked.message.topics] if asked.message.topics is not None else ["orders"]
        return {
            "brokers": tuple(
                kio.MetadataResponseBroker(node_id=each, host=address.host, port=address.port, rack=None)
                for each, address in self.addresses.items()
            ),
            "cluster_id": "elsewhere" if node in self.foreign else "lab",
            "controller_id": 1,
            "topics": tuple(
                entity(
                    kio.MetadataResponseTopic,
                    error_code=ErrorCode(self.topic_error if name == "orders" else 3),
                    name=name,
                    topic_id=self.topic_id if name == "orders" else None,
                    partitions=partitions if name == "orders" else (),
                )
                for name in topics
            ),
        }

    def listed(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        return self._topics(
            node, asked, kio.ListOffsetsTopicResponse, kio.ListOffsetsPartitionResponse, "partition_index"
        )

    def epochs(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        return self._topics(node, asked, kio.OffsetForLeaderTopicResult, kio.EpochEndOffset, "partition")

    def deleted(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        return self._topics(
            node, asked, kio.DeleteRecordsTopicResult, kio.DeleteRecordsPartitionResult, "partition_index"
        )

    def _topics(self, node: int, asked: Asked, topic_kind: Any, kind: Any, number: str) -> dict[str, Any]:
        [topic] = asked.message.topics
        partitions = tuple(
            entity(
                kind,
                error_code=self.error(node, asked.key, getattr(each, number)),
                timestamp=-1,
                offset=10 * node,
                leader_epoch=self.epoch,
                end_offset=10 * node,
                low_watermark=10 * node,
                **{number: getattr(each, number)},
            )
            for each in topic.partitions
        )
        return {"topics": (entity(topic_kind, name="orders", topic="orders", partitions=partitions),)}

    def fetched(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        if self.throttles:
            return {"throttle_time": timedelta(seconds=self.throttles.pop(0)), "responses": ()}
        [topic] = asked.message.topics
        partitions = []
        for each in topic.partitions:
            follows = node == self.recommended
            code = ErrorCode.none if follows else self.error(node, asked.key, each.partition)
            redirects = self.recommended > 0 and not follows
            partitions.append(
                kio.PartitionData(
                    partition_index=each.partition,
                    error_code=code,
                    high_watermark=10,
                    aborted_transactions=None,
                    preferred_read_replica=self.recommended if redirects else -1,
                    records=RECORDS if not code and not redirects else None,
                )
            )
        known = entity(
            kio.FetchableTopicResponse,
            topic_id=getattr(topic, "topic_id", None),
            topic="orders",
            partitions=tuple(partitions),
        )
        return {"responses": (known,)}


@dataclass
class Clock:
    """Time that passes in pauses only."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def client(
    settings: ClientSettings,
    sleep: Callable[[float], None] | None = None,
    cluster_id: str | None = None,
    clock: Clock | None = None,
    unreached: UnreachedAddresses | None = None,
) -> ClusterClient:
    clock = clock or Clock()
    brokers = Brokers(
        settings,
        cluster_id=cluster_id,
        now=clock,
        sleep=sleep or clock.sleep,
        unreached=UnreachedAddresses() if unreached is None else unreached,
    )
    return ClusterClient(brokers)


@contextmanager
def served(
    scripted: Scripted,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    sleep: Callable[[float], None] | None = None,
    cluster_id: str | None = None,
    clock: Clock | None = None,
    unreached: UnreachedAddresses | None = None,
) -> Iterator[ClusterClient]:
    """The client of the scripted cluster, which knows broker 1; `sleep` takes the place of its pauses."""
    found = dict(ranges or {each.key: (0, each.latest) for each in APIS})
    with ExitStack() as stack:
        for node in (1, 2):
            broker = stack.enter_context(ScriptedBroker(lambda asked, node=node: scripted.answer(node, asked), found))  # type: ignore[misc]
            scripted.addresses.setdefault(node, broker.address)
            if node == 1:
                bootstrap = broker.address
        settings = ClientSettings((bootstrap,), connect_seconds=30, request_seconds=30)
        yield stack.enter_context(client(settings, sleep, cluster_id, clock, unreached))


def positions(**values: Any) -> list[FetchPosition]:
    return [FetchPosition("orders", number, 0, **values) for number in (0, 1)]


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
    monkeypatch.setattr(cluster_of_brokers, "_QUESTION_SECONDS", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        scripted = Scripted(
            addresses={2: BrokerAddress("127.0.0.1", silent.getsockname()[1])},
            leaders={0: 1, **dict.fromkeys(range(1, 10), 2)},
        )
        with served(scripted) as cluster, ClusterClient(Brokers(cluster.settings)) as timed:
            wanted = {TopicPartition("orders", number): -1 for number in scripted.leaders}
            found = timed.list_offsets(wanted, seconds=1.0)
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
    assert "ListOffsets: it is about 0 other partitions than the 1 asked for" in found.reason


def test_an_epoch_after_the_one_asked_for_is_malformed() -> None:
    with served(Scripted()) as cluster:
        found = cluster.offsets_for_leader_epochs({ZERO: 2}, seconds=0.2)[ZERO]
    assert isinstance(found, PartitionError)
    assert "OffsetForLeaderEpoch: orders-0: asked for epochs up to 2, it has 3" in found.reason


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
    assert str(refused.value) == f"{address}: Fetch: it answers for {answered}, and was asked for orders-0"


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


def test_metadata_with_an_impossible_address_name_it() -> None:
    scripted = Scripted(addresses={2: BrokerAddress("", 0)})
    with served(scripted) as cluster, pytest.raises(ClusterUnreachableError, match=r"broker 2 .*port 0"):
        cluster.metadata(seconds=0.2)
