"""Answers that describe the log: its topics, the one node that serves them, and how Remote Log has a topic.

The gateway calls itself node 0, leader of every partition. It gives no leader epochs: no other node can become leader,
so clients have nothing to check.

Source: KIP-226, KIP-430, KIP-516, KIP-700, KIP-919.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tiered_storage.gateway.allowed_apis import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from tiered_storage.gateway.standalone.apis import DESCRIBE_CONFIGS, NO_ERROR, NO_TIME
from tiered_storage.gateway.standalone.catalog import Catalog, ServedTopic, Topics
from tiered_storage.kafka_log.files.topic_partition import INTERNAL_TOPICS
from tiered_storage.kafka_wire.connections.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.connections.frames import answer, answer_module, elements, entity
from tiered_storage.kafka_wire.fetch_layout import NO_EPOCH
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.tiering_policy import effective

NODE_ID: Final = 0
_TOPIC_RESOURCE: Final = 2
_OF_TOPIC, _DEFAULT = 1, 5
"""Where a value comes from: it was set for the topic, or is a default."""
_NO_ID: Final = bytes(16)
_ONLY_TOPICS: Final = "this gateway has no brokers: only topics have settings here"

MayDescribe = Callable[[str], bool]
"""Whether the client may describe the topic of that name."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where clients reach this gateway."""

    host: str
    port: int


class Descriptions:
    """Describes what is served. For one event loop."""

    def __init__(self, context: RemoteLogContext, catalog: Catalog, node: Node) -> None:
        self._context = context
        self._catalog = catalog
        self._node = node

    async def metadata(self, version: int, asked: Any, may_describe: MayDescribe) -> Any:
        """Return kio's answer to Metadata. A client sees only topics that it may describe."""
        topics, module = await self._catalog.topics(), answer_module(METADATA, version)
        if asked.topics is None or (version == 0 and not asked.topics):
            found = [_topic(module, each) for name, each in topics.by_name.items() if may_describe(name)]
        else:
            found = [_asked_topic(module, each, topics, may_describe) for each in asked.topics]
        node = entity(module.MetadataResponseBroker, node_id=NODE_ID, host=self._node.host, port=self._node.port)
        return answer(
            METADATA,
            version,
            throttle_time=NO_TIME,
            brokers=(node,),
            cluster_id=topics.cluster_id,
            controller_id=NODE_ID,
            topics=tuple(found),
            error_code=NO_ERROR,
        )

    async def cluster(self, version: int) -> Any:
        """Return kio's answer to DescribeCluster."""
        topics = await self._catalog.topics()
        kind = answer_module(DESCRIBE_CLUSTER, version).DescribeClusterBroker
        node = entity(kind, broker_id=NODE_ID, host=self._node.host, port=self._node.port, rack=None, is_fenced=False)
        return answer(
            DESCRIBE_CLUSTER,
            version,
            throttle_time=NO_TIME,
            error_code=NO_ERROR,
            cluster_id=topics.cluster_id,
            controller_id=NODE_ID,
            brokers=(node,),
        )

    def coordinators(self, version: int, keys: Iterable[str], error: ErrorCode, reason: str | None) -> Any:
        """Return kio's answer to FindCoordinator: this node, or `error` for `reason`."""
        is_found = error is NO_ERROR
        where = {
            "error_code": error,
            "error_message": reason,
            "node_id": NODE_ID if is_found else -1,
            "host": self._node.host if is_found else "",
            "port": self._node.port if is_found else -1,
        }
        module = answer_module(FIND_COORDINATOR, version)
        if not hasattr(module, "Coordinator"):
            return answer(FIND_COORDINATOR, version, throttle_time=NO_TIME, **where)
        found = tuple(entity(module.Coordinator, key=each, **where) for each in keys)
        return answer(FIND_COORDINATOR, version, throttle_time=NO_TIME, coordinators=found)

    async def configs(self, version: int, asked: Any, may_describe: MayDescribe) -> Any:
        """Return kio's answer to DescribeConfigs: how Remote Log has each topic, by Kafka's names."""
        topics, module = await self._catalog.topics(), answer_module(DESCRIBE_CONFIGS, version)

        async def of_resource(each: Any) -> Any:
            error, reason, configs = NO_ERROR, None, ()
            topic = topics.find(str(each.resource_name))
            if int(each.resource_type) != _TOPIC_RESOURCE:
                error, reason = ErrorCode(INVALID_REQUEST), _ONLY_TOPICS
            elif not may_describe(str(each.resource_name)):
                error = ErrorCode(TOPIC_AUTHORIZATION_FAILED)
            elif topic is None:
                error = ErrorCode(UNKNOWN_TOPIC_OR_PARTITION)
            else:
                wanted = None if each.configuration_keys is None else frozenset(map(str, each.configuration_keys))
                given = await asyncio.to_thread(self._settings_of, topic)
                configs = tuple(
                    entity(
                        module.DescribeConfigsResourceResult,
                        name=name,
                        value=value,
                        read_only=True,
                        config_source=_OF_TOPIC if is_set else _DEFAULT,
                        is_sensitive=False,
                        synonyms=(),
                        config_type=0,
                        documentation=None,
                    )
                    for name, value, is_set in given
                    if wanted is None or name in wanted
                )
            return entity(
                module.DescribeConfigsResult,
                error_code=error,
                error_message=reason,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=configs,
            )

        results = [await of_resource(each) for each in elements(asked.resources)]
        return answer(DESCRIBE_CONFIGS, version, throttle_time=NO_TIME, results=tuple(results))

    def _settings_of(self, topic: ServedTopic) -> list[tuple[str, str, bool]]:
        """Return a topic's settings: name, value, and whether it was set for the topic."""
        decided = self._context.decided_topic(next(iter(topic.partitions.values())))
        found = effective(decided, self._context.settings)
        enabled = str(found.remote_storage_enable).lower()
        properties = {"remote.storage.enable": enabled, **found.properties()}
        return [(name, value, name in decided.properties) for name, value in sorted(properties.items())]


def _asked_topic(module: Any, asked: Any, topics: Topics, may_describe: MayDescribe) -> Any:
    """Return the answer for one topic that a client names, or gives the id of."""
    raw = getattr(asked, "topic_id", None)
    name = None if asked.name is None else str(asked.name)
    if name is None:
        found = topics.find(raw.bytes if raw is not None else _NO_ID)
        if found is None or not may_describe(found.name):
            return _no_topic(module, None, raw, UNKNOWN_TOPIC_ID)
        return _topic(module, found)
    if not may_describe(name):
        return _no_topic(module, name, raw, TOPIC_AUTHORIZATION_FAILED)
    if name in topics.ambiguous:
        return _no_topic(module, name, raw, INVALID_TOPIC_EXCEPTION)
    found = topics.find(name)
    return _no_topic(module, name, raw, UNKNOWN_TOPIC_OR_PARTITION) if found is None else _topic(module, found)


def _no_topic(module: Any, name: str | None, topic_id: UUID | None, code: int) -> Any:
    return entity(
        module.MetadataResponseTopic,
        error_code=ErrorCode(code),
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
    )


def _topic(module: Any, topic: ServedTopic) -> Any:
    partitions = (
        entity(
            module.MetadataResponsePartition,
            error_code=NO_ERROR,
            partition_index=number,
            leader_id=NODE_ID,
            leader_epoch=NO_EPOCH,
            replica_nodes=(NODE_ID,),
            isr_nodes=(NODE_ID,),
            offline_replicas=(),
        )
        for number in topic.partitions
    )
    return entity(
        module.MetadataResponseTopic,
        error_code=NO_ERROR,
        name=topic.name,
        topic_id=UUID(bytes=topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(partitions),
    )
