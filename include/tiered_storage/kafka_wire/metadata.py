"""What a cluster reports of itself: its brokers, topics, partitions and their leaders, and its groups.

Source: KIP-430, KIP-516, KIP-518, KIP-848; released Kafka's MetadataResponse.json and ListGroupsResponse.json.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, MalformedAnswerError
from tiered_storage.kafka_log.files.kafka_uuid import UUID_BYTES, encode_uuid
from tiered_storage.kafka_wire.connections.apis import LIST_GROUPS, METADATA
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress
from tiered_storage.kafka_wire.connections.error_codes import (
    LEADER_NOT_AVAILABLE,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
    is_retriable,
)
from tiered_storage.kafka_wire.connections.frames import elements, entity, request, request_module
from tiered_storage.kafka_wire.rights import Right, rights_of

NO_LEADER = -1


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker, and the address that it advertises on the listener that was asked."""

    node_id: int
    address: BrokerAddress
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition's replicas by broker id; `leader` is -1 if none leads it."""

    partition: int
    error_code: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by number; `topic_id` is None beside an error, and from brokers before 2.8.

    `error_code` is 3 for a topic that does not exist, and 29 if the Describe right is missing.
    `rights` has the login's rights on it if they were asked for.
    """

    name: str
    topic_id: str | None
    error_code: int
    internal: bool
    partitions: Mapping[int, PartitionMetadata]
    rights: frozenset[Right] = frozenset()

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """Its partitions, by number."""
        return [TopicPartition(self.name, number) for number in sorted(self.partitions)]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A cluster's id, its live brokers by id, and topics by name."""

    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    @property
    def known_topics(self) -> list[TopicMetadata]:
        """The topics without an error, by name."""
        return [self.topics[name] for name in sorted(self.topics) if self.topics[name].error_code == NONE]


def metadata_request(version: int, topics: Collection[str] | None, *, with_rights: bool = False) -> Any:
    """Return kio's request for `topics`, None: for all, and for the rights on them; no topic is created by it."""
    module = request_module(METADATA, version)
    wanted = (
        None
        if topics is None
        else tuple(entity(module.MetadataRequestTopic, name=name, topic_id=None) for name in sorted(topics))
    )
    return request(
        METADATA,
        version,
        topics=wanted,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=with_rights,
    )


def read_metadata(answer: Any) -> ClusterMetadata:
    """Return the metadata in kio's `answer`. Raises MalformedAnswerError for an error of the whole, or an invalid
    address."""
    code = getattr(answer, "error_code", NONE)
    if code != NONE:
        raise MalformedAnswerError(f"the whole Metadata failed with {error_name(code)}")
    return ClusterMetadata(
        answer.cluster_id,
        answer.controller_id,
        {each.node_id: _broker(each) for each in elements(answer.brokers)},
        {topic.name: _topic(topic) for topic in elements(answer.topics) if topic.name is not None},
    )


def _broker(each: Any) -> Broker:
    if not each.host or not 0 < each.port < 1 << 16:
        raise MalformedAnswerError(
            f"broker {each.node_id} advertises an invalid address, host {each.host!r} and port {each.port}: correct "
            "its advertised.listeners"
        )
    return Broker(int(each.node_id), BrokerAddress(each.host, int(each.port)), each.rack)


def _topic(topic: Any) -> TopicMetadata:
    raw = topic.topic_id.bytes if getattr(topic, "topic_id", None) else bytes(UUID_BYTES)
    return TopicMetadata(
        str(topic.name),
        encode_uuid(raw) if any(raw[:-1]) else None,
        int(topic.error_code),
        bool(topic.is_internal),
        {
            int(each.partition_index): PartitionMetadata(
                int(each.partition_index),
                int(each.error_code),
                int(each.leader_id),
                int(each.leader_epoch),
                tuple(map(int, elements(each.replica_nodes))),
                tuple(map(int, elements(each.isr_nodes))),
                tuple(map(int, elements(each.offline_replicas))),
            )
            for each in elements(topic.partitions)
        },
        rights_of(int(topic.topic_authorized_operations)),
    )


def partition_problem(topic: TopicMetadata | None, partition: int) -> int:
    """Return the error code with which the metadata answer for a partition: 0 if it has a leader."""
    from_topic = topic.error_code if topic else UNKNOWN_TOPIC_OR_PARTITION
    if topic is None or from_topic != NONE:
        return from_topic
    found = topic.partitions.get(partition)
    if found is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    if found.leader == NO_LEADER:
        return found.error_code or LEADER_NOT_AVAILABLE
    return NONE


class Leadership(NamedTuple):
    """Who leads a partition of the topic with this id: a broker, in a leader epoch."""

    topic_id: str | None
    leader: int
    leader_epoch: int


def leadership(topic: TopicMetadata, partition: int) -> Leadership:
    """Return who leads a partition that `topic` has; the leader may be -1."""
    found = topic.partitions[partition]
    return Leadership(topic.topic_id, found.leader, found.leader_epoch)


class Group(NamedTuple):
    """A group, and its protocol: `consumer`, `share`, `streams`, `connect`; empty for one that only commits offsets."""

    group_id: str
    protocol: str


def list_groups_request(version: int) -> Any:
    """Return kio's request for all groups of a broker, active or not."""
    return request(LIST_GROUPS, version)


def read_groups(answer: Any) -> frozenset[Group]:
    """Return the groups in kio's `answer`.

    Raises ClusterUnreachableError for an error that passes, such as a coordinator that still loads its groups, and
    ClusterRefusedError for any other: an answer with an error may lack groups.
    """
    code = int(answer.error_code)
    if code != NONE:
        kind = ClusterUnreachableError if is_retriable(code) else ClusterRefusedError
        raise kind(f"the broker cannot list its groups: {error_name(code)} ({code})")
    return frozenset(Group(str(each.group_id), str(each.protocol_type)) for each in elements(answer.groups))
