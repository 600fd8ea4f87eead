"""Answers to ListOffsets and OffsetForLeaderEpoch out of both tiers.

    EARLIEST (-2), LATEST (-1), EARLIEST_LOCAL (-4)     of both tiers as one log
    MAX_TIMESTAMP (-3), a time (ms)                     the record's; offset -1 if there is none
    LATEST_TIERED (-5), EARLIEST_PENDING_UPLOAD (-6)    the last remote offset, -1 if there is none; the one after it

Source: KIP-79, KIP-98, KIP-320, KIP-405, KIP-734, KIP-1005, KIP-1023.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.allowed_apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.gateway.standalone.apis import NO_ERROR, NO_TIME
from tiered_storage.gateway.standalone.catalog import Catalog
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import end_offset_for
from tiered_storage.kafka_wire.connections.error_codes import (
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.connections.frames import answer, answer_module, elements, entity
from tiered_storage.kafka_wire.fetch_layout import NO_EPOCH, NO_OFFSET
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec

AT_ONCE: Final = 16
"""How many partitions of one request are read at the same time."""
_NOTHING: Final = FoundOffset(NO_OFFSET)
_NAMED: Final = {each.value for each in OffsetSpec}

MayDescribe = Callable[[str], bool]
"""Whether the client may describe the topic of that name."""
Find = Callable[[TopicIdPartition, Any], Awaitable[Any]]
"""Takes a partition and kio's question about it, and returns kio's answer."""


class LogOffsets:
    """Finds offsets for clients. For one event loop."""

    def __init__(self, catalog: Catalog, partitions: RemotePartitions, failures: ReadFailures) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._failures = failures

    async def list_offsets(self, version: int, asked: Any, may_describe: MayDescribe) -> Any:
        """Return kio's answer to ListOffsets."""
        module = answer_module(LIST_OFFSETS, version)
        is_committed = bool(getattr(asked, "isolation_level", 0))
        isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED

        def listed(number: int, found: FoundOffset, error: ErrorCode = NO_ERROR) -> Any:
            return entity(
                module.ListOffsetsPartitionResponse,
                partition_index=number,
                error_code=error,
                timestamp=found.timestamp,
                offset=found.offset,
                leader_epoch=found.leader_epoch,
            )

        async def find(partition: TopicIdPartition, each: Any) -> Any:
            spec, number = int(each.timestamp), int(each.partition_index)
            if spec < 0 and spec not in _NAMED:
                return listed(number, _NOTHING, ErrorCode(INVALID_REQUEST))
            return listed(number, await self._found(partition, spec, isolation))

        async def of_topic(topic: Any) -> Any:
            found = await self._of_topic(
                str(topic.name),
                topic.partitions,
                "partition_index",
                find,
                lambda number, code: listed(number, _NOTHING, code),
                may_describe,
            )
            return entity(module.ListOffsetsTopicResponse, name=topic.name, partitions=found)

        topics = [await of_topic(each) for each in elements(asked.topics)]
        return answer(LIST_OFFSETS, version, throttle_time=NO_TIME, topics=tuple(topics))

    async def offsets_for_epochs(self, version: int, asked: Any, may_describe: MayDescribe) -> Any:
        """Return kio's answer to OffsetForLeaderEpoch."""
        module = answer_module(OFFSET_FOR_LEADER_EPOCH, version)

        def ended(number: int, epoch: int, end: int, error: ErrorCode = NO_ERROR) -> Any:
            return entity(module.EpochEndOffset, error_code=error, partition=number, leader_epoch=epoch, end_offset=end)

        async def find(partition: TopicIdPartition, each: Any) -> Any:
            snapshot = await self._partitions.snapshot(partition, 0)
            end = snapshot.end_offset(Isolation.READ_UNCOMMITTED)
            found = end_offset_for(snapshot.lineage, int(each.leader_epoch), end)
            return ended(int(each.partition), *(found or (NO_EPOCH, NO_OFFSET)))

        async def of_topic(topic: Any) -> Any:
            found = await self._of_topic(
                str(topic.topic),
                topic.partitions,
                "partition",
                find,
                lambda number, code: ended(number, NO_EPOCH, NO_OFFSET, code),
                may_describe,
            )
            return entity(module.OffsetForLeaderTopicResult, topic=topic.topic, partitions=found)

        topics = [await of_topic(each) for each in elements(asked.topics)]
        return answer(OFFSET_FOR_LEADER_EPOCH, version, throttle_time=NO_TIME, topics=tuple(topics))

    async def _of_topic(
        self,
        name: str,
        asked: Any,
        number: str,
        find: Find,
        failed: Callable[[int, ErrorCode], Any],
        may_describe: MayDescribe,
    ) -> tuple[Any, ...]:
        """Return the answers for the partitions of a topic; `number` is the field that has a partition's number."""
        topic = (await self._catalog.topics()).find(name)
        one_at_a_time = asyncio.Semaphore(AT_ONCE)

        async def of_partition(each: Any) -> Any:
            at = int(getattr(each, number))
            if not may_describe(name):
                return failed(at, ErrorCode(TOPIC_AUTHORIZATION_FAILED))
            partition = None if topic is None else topic.partitions.get(at)
            if partition is None:
                return failed(at, ErrorCode(UNKNOWN_TOPIC_OR_PARTITION))
            async with one_at_a_time:
                try:
                    return await find(partition, each)
                except TieredStorageError as error:
                    self._failures.failed(name, at, KAFKA_STORAGE_ERROR, f"its offsets cannot be found: {error}")
                    return failed(at, ErrorCode(KAFKA_STORAGE_ERROR))

        return tuple(await asyncio.gather(*map(of_partition, elements(asked))))

    async def _found(self, partition: TopicIdPartition, spec: int, isolation: Isolation) -> FoundOffset:
        found = await self._partitions.offsets(partition, spec, isolation)
        return _NOTHING if found is None else found
