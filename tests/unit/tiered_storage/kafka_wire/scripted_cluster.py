"""A cluster of two scripted brokers, in which a test changes leaders and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.brokers import Brokers, UnreachedAddresses
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import (
    APIS,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings
from tiered_storage.kafka_wire.connections.frames import entity
from tiered_storage.kafka_wire.fetch import FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import coordinating_partition
from unit.tiered_storage.kafka_wire.scripted_broker import Asked, ScriptedBroker, framed, schema

ORDERS = UUID(int=7 << 70)
ORDERS_ID, OTHER_ID = encode_uuid(ORDERS.bytes), encode_uuid(UUID(int=8 << 70).bytes)
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNREACHABLE = BrokerAddress("127.0.0.1", 1)
RECORDS = b"records"
NOT_ASKED = -(1 << 31)
"""The bit field of operations that were not requested."""


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
    offsets: tuple[Any, ...] = ()
    """What every group has committed, as kio's topics of an answer to OffsetFetch."""
    """Those that a broker lists, if it is not the one of its number."""
    foreign: set[int] = field(default_factory=set)
    """Brokers of another cluster than `lab`, at the addresses of this one's."""
    operations: int = NOT_ASKED
    """The bit field of the operations that the login may do, on the cluster as on orders, for who asks for it."""
    clocks: dict[int, int] = field(default_factory=dict)
    """The last fetches from the active controller, node 9, by its clock and by replica."""

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
            DESCRIBE_CLUSTER.key: self.described,
            DESCRIBE_QUORUM.key: self.quorum,
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
        return {"error_code": self.error(node, OFFSET_FETCH.key, partition), "topics": self.offsets}

    def described(self, node: int, asked: Asked, _: Any) -> dict[str, Any]:
        codes = self.fails.get((node, DESCRIBE_CLUSTER.key, 0), [])
        wanted = asked.message.include_cluster_authorized_operations
        return {
            "error_code": ErrorCode(codes.pop(0) if codes else 0),
            "cluster_id": "elsewhere" if node in self.foreign else "lab",
            "brokers": (),
            "cluster_authorized_operations": self.operations if wanted else NOT_ASKED,
        }

    def quorum(self, node: int, asked: Asked, kio: Any) -> dict[str, Any]:
        codes = self.fails.get((node, DESCRIBE_QUORUM.key, 0), [])
        [topic] = asked.message.topics
        replicas = tuple(
            entity(
                kio.ReplicaState,
                replica_id=each,
                replica_directory_id=None,
                log_end_offset=5,
                last_fetch_timestamp=shown,
                last_caught_up_timestamp=shown,
            )
            for each, shown in self.clocks.items()
        )
        log = entity(
            kio.PartitionData,
            partition_index=topic.partitions[0].partition_index,
            error_code=ErrorCode(codes.pop(0) if codes else 0),
            error_message=None,
            leader_id=9,
            leader_epoch=1,
            high_watermark=5,
            current_voters=replicas,
            observers=(),
        )
        return {
            "error_message": None,
            "topics": (kio.TopicData(topic_name=topic.topic_name, partitions=(log,)),),
            "nodes": (),
        }

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
                    topic_authorized_operations=(
                        self.operations if asked.message.include_topic_authorized_operations else NOT_ASKED
                    ),
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
