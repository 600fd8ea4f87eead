"""What the gateway asks a broker on a client's own connection, so that the client's rights decide.

Answers about offsets are used for a second. A topic's name never changes for its id; the id of a name does, if the
topic is created again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from tiered_storage.errors import ClusterRefusedError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH, LIST_OFFSETS, METADATA, Api
from tiered_storage.kafka_wire.connections.error_codes import NONE, UNKNOWN_TOPIC_OR_PARTITION
from tiered_storage.kafka_wire.connections.frames import decode_answer, elements, entity, request, request_module
from tiered_storage.kafka_wire.fetch import (
    FetchAnswer,
    FetchDecoder,
    FetchLimits,
    FetchPosition,
    IsolationLevel,
    fetch_request,
)
from tiered_storage.kafka_wire.fetch_layout import NO_EPOCH, AbortedTransaction
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.partition_requests import ListedOffset, ListOffsets, OffsetSpec

_MAX_AGE_SECONDS: Final = 1.0
_BY_ID: Final = 12
"""The first version of Metadata that takes topics by their ids."""
_BROKER_SECONDS: Final = 10.0
_ONE_BATCH: Final = FetchLimits(0.0, 0, 1, IsolationLevel.READ_COMMITTED)
"""A first batch comes whole, whatever the limit is."""


class Ask(Protocol):
    """Sends a request of the gateway's own on a client's connection."""

    async def version(self, api: Api) -> int:
        """Return the version of `api` that broker and gateway share. Raises ClusterRefusedError."""

    async def ask(
        self, api: Api, message: Any, decode: Callable[[memoryview, Api, int, int], Any] = decode_answer
    ) -> Any:
        """Return the broker's answer to kio's `message`: kio's, or what `decode` makes of it.

        Raises ClusterUnreachableError if the connection ends first, MalformedAnswerError.
        """


class NamedTopic(NamedTuple):
    """A topic by both of its names."""

    name: str
    topic_id: str


class BrokerQuestions:
    """Questions on one client's connection. For one event loop."""

    def __init__(self, asks: Ask, now: Callable[[], float] = time.monotonic) -> None:
        """Ask by `asks`; `now` (seconds) measures the age of answers."""
        self._asks = asks
        self._now = now
        self._names: dict[str, str] = {}
        self._ids: dict[str, tuple[float, str]] = {}
        self._offsets: dict[TopicPartition, tuple[float, PartitionOffsets]] = {}
        self._aborted: dict[TopicPartition, tuple[int, tuple[AbortedTransaction, ...]]] = {}

    async def topics(self, keys: Collection[str | bytes]) -> dict[str | bytes, NamedTopic]:
        """Return each topic by the name or the id of `keys`; without those that the client may not describe."""
        found: dict[str | bytes, NamedTopic] = {}
        unknown = set(keys)
        for key in keys:
            known = self._known(key)
            if known is not None:
                found[key] = known
                unknown.discard(key)
        if unknown:
            asked = await self._ask_topics(unknown)
            found.update((key, asked[key]) for key in unknown if key in asked)
        return found

    async def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets | int]:
        """Return the broker's offsets of each partition that it leads, or its error code; a second old at most."""
        now = self._now()
        found: dict[TopicPartition, PartitionOffsets | int] = {}
        unknown = []
        for each in partitions:
            seen = self._offsets.get(each)
            if seen is not None and now - seen[0] < _MAX_AGE_SECONDS:
                found[each] = seen[1]
            else:
                unknown.append(each)
        if unknown:
            found |= await self._ask_offsets(unknown, now)
        return found

    async def aborted_across(self, topic: NamedTopic, partition: int, offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that begin below `offset` and end at it or later, as the broker knows them.

        The broker must have `offset`. Raises ClusterRefusedError if it does not answer for the partition.
        """
        key = TopicPartition(topic.topic_id, partition)
        seen = self._aborted.get(key)
        if seen is not None and seen[0] == offset:
            return seen[1]
        position = FetchPosition(topic.name, partition, offset, 1, topic.topic_id)
        version = await self._asks.version(FETCH)
        answer: FetchAnswer = await self._asks.ask(
            FETCH, fetch_request(version, [position], _ONE_BATCH, ""), FetchDecoder([position])
        )
        [found] = answer.partitions or [None]
        if found is None or found.error is not None:
            raise ClusterRefusedError(f"{topic.name}-{partition}: its aborted transactions are not known: {found}")
        across = tuple(each for each in found.aborted if each.first_offset < offset)
        self._aborted[key] = offset, across
        return across

    def _known(self, key: str | bytes) -> NamedTopic | None:
        if isinstance(key, bytes):
            topic_id = encode_uuid(key)
            name = self._names.get(topic_id)
            return None if name is None else NamedTopic(name, topic_id)
        seen = self._ids.get(key)
        return NamedTopic(key, seen[1]) if seen and self._now() - seen[0] < _MAX_AGE_SECONDS else None

    async def _ask_topics(self, keys: Collection[str | bytes]) -> dict[str | bytes, NamedTopic]:
        now, version = self._now(), await self._asks.version(METADATA)
        if version < _BY_ID:
            keys = [key for key in keys if isinstance(key, str)]
        kind = request_module(METADATA, version).MetadataRequestTopic
        wanted = tuple(
            entity(kind, name=None, topic_id=UUID(bytes=key))
            if isinstance(key, bytes)
            else entity(kind, name=key, topic_id=None)
            for key in keys
        )
        answer = await self._asks.ask(
            METADATA,
            request(
                METADATA,
                version,
                topics=wanted,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            ),
        )
        found: dict[str | bytes, NamedTopic] = {}
        for topic in elements(answer.topics):
            raw = getattr(topic, "topic_id", None)
            if int(topic.error_code) != NONE or topic.name is None or raw is None:
                continue
            named = NamedTopic(str(topic.name), encode_uuid(raw.bytes))
            found[named.name] = found[raw.bytes] = named
            self._names[named.topic_id] = named.name
            self._ids[named.name] = now, named.topic_id
        return found

    async def _ask_offsets(
        self, partitions: Collection[TopicPartition], now: float
    ) -> dict[TopicPartition, PartitionOffsets | int]:
        # The ends first: a start that moves meanwhile is then reported, and never an end that is not there.
        stable = await self._list(partitions, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
        ends = await self._list(partitions, OffsetSpec.LATEST)
        starts = await self._list(partitions, OffsetSpec.EARLIEST)
        found: dict[TopicPartition, PartitionOffsets | int] = {}
        for each in partitions:
            answers = [starts.get(each), ends.get(each), stable.get(each)]
            offsets = [one.offset for one in answers if isinstance(one, ListedOffset)]
            if len(offsets) == len(answers):
                known = PartitionOffsets(*offsets)
                found[each] = known
                self._offsets[each] = now, known
            else:
                codes = [one for one in answers if isinstance(one, int)]
                found[each] = codes[0] if codes else UNKNOWN_TOPIC_OR_PARTITION
        return found

    async def _list(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Mapping[TopicPartition, ListedOffset | int]:
        asked = ListOffsets(dict.fromkeys(partitions, int(spec)), isolation)
        message = asked.build(
            await self._asks.version(LIST_OFFSETS), dict.fromkeys(partitions, NO_EPOCH), _BROKER_SECONDS
        )
        answer = await self._asks.ask(LIST_OFFSETS, message)
        return {each: found if code == NONE else code for each, code, found in asked.read(answer)}
