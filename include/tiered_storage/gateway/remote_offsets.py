"""Offsets and leader epochs over both tiers: the broker answers first, and what is remote corrects its answer.

    EARLIEST (-2)                   the global log start, if anything is remote
    LATEST (-1), EARLIEST_LOCAL (-4)        the broker's
    MAX_TIMESTAMP (-3)              the remote record, if no record of the broker is later in time
    LATEST_TIERED (-5)              the last remote offset
    EARLIEST_PENDING_UPLOAD (-6)    the offset after it
    a time (ms)                     the remote record, if there is one: remote offsets come before all others
    an epoch's end                  the lower one: a broker that forgot the epochs before its log start answers with the
                                    start of a later epoch; after an unclean election, ours is of a log that was
                                    replaced

Source: KIP-320, KIP-405 (ListOffsets, OffsetForLeaderEpoch), KIP-734, KIP-1005, KIP-1023.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedTopic
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import end_offset_for
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import KAFKA_STORAGE_ERROR, NONE
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, decode_answer, elements, encode_answer
from tiered_storage.kafka_wire.partition_requests import CONSUMER
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import FoundOffset

AT_ONCE: Final = 16
"""Partitions of one request that are looked at, at the same time."""
_BROKERS_OWN: Final = frozenset({OffsetSpec.LATEST, OffsetSpec.EARLIEST_LOCAL})

Correct = Callable[[TopicIdPartition, Any, int], Awaitable[Any]]
"""Takes a partition, kio's answer for it, and what was asked for: a timestamp or an epoch."""


class RemoteOffsets:
    """Corrects answers on one client's connection. For one event loop."""

    def __init__(self, partitions: RemotePartitions, questions: BrokerQuestions, failures: ReadFailures) -> None:
        """Look into `partitions`; the client's own rights decide which topics `questions` know."""
        self._partitions = partitions
        self._questions = questions
        self._failures = failures

    async def list_offsets(self, frame: memoryview, header: RequestHeader, request: Any) -> list[Buffer]:
        """Return an answer to ListOffsets over both tiers. Raises MalformedAnswerError."""
        asked = {
            (str(topic.name), int(each.partition_index)): int(each.timestamp)
            for topic in elements(request.topics)
            for each in elements(topic.partitions)
            if request.replica_id == CONSUMER and int(each.timestamp) not in _BROKERS_OWN
        }
        if not asked:
            return [frame]
        answer = decode_answer(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        changed = await self._corrected(answer, "name", "partition_index", asked, self._listed)
        return [encode_answer(changed, header.correlation_id)]

    async def offsets_for_leader_epochs(self, frame: memoryview, header: RequestHeader, request: Any) -> list[Buffer]:
        """Return an answer to OffsetForLeaderEpoch over both tiers. Raises MalformedAnswerError."""
        if getattr(request, "replica_id", CONSUMER) not in {CONSUMER, _DEBUGGER}:
            return [frame]
        asked = {
            (str(topic.topic), int(each.partition)): int(each.leader_epoch)
            for topic in elements(request.topics)
            for each in elements(topic.partitions)
        }
        answer = decode_answer(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        changed = await self._corrected(answer, "topic", "partition", asked, self._ended)
        return [encode_answer(changed, header.correlation_id)]

    async def _corrected(
        self, answer: Any, name: str, number: str, asked: Mapping[tuple[str, int], int], correct: Correct
    ) -> Any:
        topics = elements(answer.topics)
        known = await self._questions.topics({str(getattr(topic, name)) for topic in topics})
        one_at_a_time = asyncio.Semaphore(AT_ONCE)

        async def of_partition(topic: NamedTopic | int, each: Any, wanted: int | None) -> Any:
            if wanted is None or int(each.error_code) != NONE:
                return each
            if isinstance(topic, int):
                # The broker's own answer alone would hide what is remote.
                return _changed(each, error_code=ErrorCode(KAFKA_STORAGE_ERROR))
            at = int(getattr(each, number))
            partition = self._partitions.partition(topic.name, topic.topic_id, at)
            async with one_at_a_time:
                try:
                    return await correct(partition, each, wanted)
                except TieredStorageError as error:
                    reason = f"the remote log cannot be asked for offsets: {error}"
                    self._failures.failed(topic.name, at, KAFKA_STORAGE_ERROR, reason)
                    return _changed(each, error_code=ErrorCode(KAFKA_STORAGE_ERROR))

        async def of_topic(topic: Any) -> Any:
            called = str(getattr(topic, name))
            found = await asyncio.gather(
                *(
                    of_partition(known[called], each, asked.get((called, int(getattr(each, number)))))
                    for each in elements(topic.partitions)
                )
            )
            return replace(topic, partitions=tuple(found))

        return replace(answer, topics=tuple(await asyncio.gather(*map(of_topic, topics))))

    async def _listed(self, partition: TopicIdPartition, each: Any, spec: int) -> Any:
        snapshot = await self._partitions.snapshot(partition, max(int(each.offset), 0))
        if not snapshot.coverage.ranges:
            return each
        found = await self._remote(partition, snapshot, spec)
        if found is None or not _is_before(found, each, spec):
            return each
        return _changed(each, offset=found.offset, timestamp=found.timestamp, leader_epoch=found.leader_epoch)

    async def _remote(self, partition: TopicIdPartition, snapshot: PartitionSnapshot, spec: int) -> FoundOffset | None:
        if spec == OffsetSpec.EARLIEST:
            return FoundOffset(snapshot.log_start_offset, leader_epoch=snapshot.epoch_at(snapshot.log_start_offset))
        if spec == OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return FoundOffset(snapshot.remote_end, leader_epoch=snapshot.epoch_at(snapshot.remote_end))
        return await self._partitions.offsets(partition, spec)

    async def _ended(self, partition: TopicIdPartition, each: Any, epoch: int) -> Any:
        snapshot = await self._partitions.snapshot(partition, max(int(each.end_offset), 0))
        found = end_offset_for(snapshot.lineage, epoch, NO_END) if snapshot.coverage.ranges else None
        if found is None or not 0 <= found[1] <= snapshot.remote_end or 0 <= int(each.end_offset) <= found[1]:
            return each
        return _changed(each, leader_epoch=found[0], end_offset=found[1])


def _changed(each: Any, **values: Any) -> Any:
    """Return kio's entity with those of `values` that its version has."""
    known = {field.name for field in fields(each)}
    return replace(each, **{name: value for name, value in values.items() if name in known})


def _is_before(found: FoundOffset, each: Any, spec: int) -> bool:
    """Return whether the remote answer counts rather than the broker's."""
    if spec in {OffsetSpec.LATEST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD} or int(each.offset) < 0:
        return True
    if spec == OffsetSpec.MAX_TIMESTAMP and found.timestamp != int(each.timestamp):
        return found.timestamp > int(each.timestamp)
    return found.offset < int(each.offset)


NO_END: Final = -1
"""Only the broker knows where the latest epoch of the remote log ends."""
_DEBUGGER: Final = -2
"""The replica id with which tools may ask any replica."""
