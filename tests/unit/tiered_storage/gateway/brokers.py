"""What a broker answers to the gateway's own questions, by a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH, LIST_OFFSETS, METADATA, Api, OffsetSpec
from tiered_storage.kafka_wire.connections.frames import decode_answer, entity
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchedPartition
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets

TOPIC = "orders"
RAW_ID = bytes(15) + b"\x07"
TOPIC_ID = encode_uuid(RAW_ID)
OFFSETS = PartitionOffsets(100, 200, 200)


@dataclass
class ScriptedBroker:
    """The leader of partitions of TOPIC. `aborted` answers a Fetch; an int is an error code, None a quota's silence."""

    offsets: PartitionOffsets | int = OFFSETS
    topic_code: int = 0
    topic_id: bytes = RAW_ID
    aborted: tuple[AbortedTransaction, ...] | int | None = ()
    asked: list[str] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    """The offsets of Fetches."""

    async def version(self, api: Api) -> int:
        return api.latest

    async def ask(
        self,
        api: Api,
        message: Any,
        decode: Callable[[memoryview, Api, int, int], Any] = decode_answer,  # noqa: ARG002 - nothing is encoded
    ) -> Any:
        self.asked.append(api.name)
        answers: dict[int, Callable[[Any], Any]] = {
            METADATA.key: self._metadata,
            LIST_OFFSETS.key: self._listed,
            FETCH.key: self._fetched,
        }
        return answers[api.key](message)

    def _metadata(self, message: Any) -> Any:
        kio = load_payload_module(METADATA.key, message.__version__, EntityType.response)
        topics = tuple(
            entity(
                kio.MetadataResponseTopic,
                error_code=ErrorCode(self.topic_code),
                name=TOPIC if each.name or not self.topic_code else None,
                topic_id=UUID(bytes=self.topic_id),
                partitions=(),
            )
            for each in message.topics
        )
        return entity(
            kio.MetadataResponse, throttle_time=timedelta(), error_code=ErrorCode.none, brokers=(), topics=topics
        )

    def _listed(self, message: Any) -> Any:
        kio = load_payload_module(LIST_OFFSETS.key, message.__version__, EntityType.response)

        def answer(each: Any) -> Any:
            if isinstance(self.offsets, int):
                return kio.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, error_code=ErrorCode(self.offsets)
                )
            end = self.offsets.stable if message.isolation_level else self.offsets.high_watermark
            offset = self.offsets.start if each.timestamp == OffsetSpec.EARLIEST else end
            return kio.ListOffsetsPartitionResponse(
                partition_index=each.partition_index, error_code=ErrorCode.none, offset=offset
            )

        return kio.ListOffsetsResponse(
            throttle_time=timedelta(),
            topics=tuple(
                kio.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(map(answer, topic.partitions)))
                for topic in message.topics
            ),
        )

    def _fetched(self, message: Any) -> FetchAnswer:
        [[partition]] = [topic.partitions for topic in message.topics]
        self.fetched.append(int(partition.fetch_offset))
        if self.aborted is None:
            return FetchAnswer(1.0, ())
        code, aborted = (self.aborted, ()) if isinstance(self.aborted, int) else (0, self.aborted)
        number = int(partition.partition)
        return FetchAnswer(0.0, (FetchedPartition(TOPIC, number, code, 0, 0, 0, aborted, -1, memoryview(b"")),))
