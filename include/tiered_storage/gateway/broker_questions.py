"""Ask a broker for topics, offsets and aborted transactions on a client's own connection: the client's rights decide.

An answer about offsets is used for a second, or for ten where it cannot mislead. A topic id keeps its name, so the
gateway asks for the name once, and all connections of a process share it: an answer to Metadata is large, because it
describes every partition of a topic. A name gets another id when the topic is created again, so the gateway asks for
the id each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from tiered_storage.errors import ReadQuotaExceededError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH, LIST_OFFSETS, METADATA, Api, OffsetSpec
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
from tiered_storage.kafka_wire.partition_requests import ListedOffset, ListOffsets

_MAX_AGE_SECONDS: Final = 1.0
_MAX_AGE_BELOW_SECONDS: Final = 10.0
"""How long offsets are used for a client that reads below the broker's log start, which never moves back."""
_MOST_REMEMBERED: Final = 10_000
"""Partitions of one connection, or topics."""
_BY_ID: Final = 12
"""The first version of Metadata that takes topics by their ids."""
_BROKER_SECONDS: Final = 10.0
_ONE_BATCH: Final = FetchLimits(0.0, 0, 1, IsolationLevel.READ_COMMITTED)
"""Limits of a Fetch that needs one batch: a broker sends the first batch whole, however small the limit."""
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


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


class NamedPartition(NamedTuple):
    """A partition of a topic by both of its names."""

    topic: NamedTopic
    number: int

    @property
    def by_name(self) -> TopicPartition:
        """As a broker is asked for it."""
        return TopicPartition(self.topic.name, self.number)


class BrokerQuestions:
    """Questions on one client's connection. For one event loop."""

    def __init__(
        self, asks: Ask, now: Callable[[], float] = time.monotonic, names: dict[bytes, NamedTopic] | None = None
    ) -> None:
        """Ask by `asks`; `now` (seconds) measures the age of answers.

        `names` has topics by their ids; connections may share it. A connection must ask only for ids that its broker
        has let it see.
        """
        self._asks = asks
        self._now = now
        self._names = {} if names is None else names
        self._offsets: dict[NamedPartition, tuple[float, PartitionOffsets]] = {}
        self._aborted: dict[NamedPartition, tuple[int, tuple[AbortedTransaction, ...]]] = {}

    async def topics(self, keys: Collection[str | bytes]) -> dict[str | bytes, NamedTopic | int]:
        """Return each topic by the name or the id of `keys`, or the broker's error code for it."""
        found: dict[str | bytes, NamedTopic | int] = {
            key: self._names[key] for key in keys if isinstance(key, bytes) and key in self._names
        }
        unknown = [key for key in keys if key not in found]
        if unknown:
            asked = await self._ask_topics(unknown)
            found.update((key, asked.get(key, UNKNOWN_TOPIC_OR_PARTITION)) for key in unknown)
        return found

    async def offsets(
        self, partitions: Iterable[NamedPartition], *, now: bool = False
    ) -> dict[NamedPartition, PartitionOffsets | int]:
        """Return the broker's offsets of each partition that it leads, or its error code.

        They are a second old at most; with `now`, they are read after this call.
        """
        at = self._now()
        found: dict[NamedPartition, PartitionOffsets | int] = {}
        unknown = []
        for each in partitions:
            seen = self._offsets.get(each)
            if seen is not None and not now and at - seen[0] < _MAX_AGE_SECONDS:
                found[each] = seen[1]
            else:
                unknown.append(each)
        if unknown:
            found |= await self._ask_offsets(unknown, at)
        return found

    async def offsets_below(
        self, positions: Mapping[NamedPartition, int]
    ) -> dict[NamedPartition, PartitionOffsets | int]:
        """Return as `offsets`; where the broker's log begins after the position, they are ten seconds old at most.

        The broker's answer to the client has just shown that it still leads these partitions.
        """
        at = self._now()
        found: dict[NamedPartition, PartitionOffsets | int] = {}
        for each, position in positions.items():
            seen = self._offsets.get(each)
            if seen is not None and position < seen[1].start and at - seen[0] < _MAX_AGE_BELOW_SECONDS:
                found[each] = seen[1]
        return found | await self.offsets(each for each in positions if each not in found)

    async def high_watermarks(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the present high watermark of each partition (topic, number) that the broker leads."""
        asked = {each: TopicPartition(*each) for each in partitions}
        listed = await self._list(list(asked.values()), OffsetSpec.LATEST)
        return {key: found.offset for key, each in asked.items() if isinstance(found := listed.get(each), ListedOffset)}

    async def aborted_across(
        self, partition: NamedPartition, remote_end: int
    ) -> tuple[AbortedTransaction, ...] | int | None:
        """Return the aborted transactions that begin below `remote_end` and end at it or later.

        None if the broker cannot know them: its log begins later, or it begins there and the next transaction is open.
        An error code if it does not answer for the partition. Raises ReadQuotaExceededError while a quota holds its
        answers back.
        """
        seen = self._aborted.get(partition)
        if seen is not None and seen[0] == remote_end:
            return seen[1]
        known = (await self.offsets([partition], now=True))[partition]
        if isinstance(known, int):
            return known
        # At the last stable offset a broker gives no transactions, though some may have ended after it.
        at = remote_end if known.stable > remote_end else remote_end - 1
        if known.stable < remote_end or at < known.start:
            is_at_the_end = known.high_watermark == known.stable == remote_end
            return () if is_at_the_end else None
        answered = await self._ask_aborted(partition, at)
        if isinstance(answered, int):
            return answered
        across = tuple(each for each in answered if each.first_offset < remote_end)
        _remember(self._aborted, partition, (remote_end, across))
        return across

    async def _ask_aborted(self, partition: NamedPartition, offset: int) -> tuple[AbortedTransaction, ...] | int:
        topic, number = partition
        position = FetchPosition(topic.name, number, offset, 1, topic.topic_id)
        version = await self._asks.version(FETCH)
        answer: FetchAnswer = await self._asks.ask(
            FETCH, fetch_request(version, [position], _ONE_BATCH, ""), FetchDecoder([position])
        )
        if not answer.partitions:
            raise ReadQuotaExceededError(f"{topic.name}-{number}: a quota of the client holds back the broker's answer")
        [found] = answer.partitions
        return found.error_code or found.aborted

    async def _ask_topics(self, keys: Collection[str | bytes]) -> dict[str | bytes, NamedTopic | int]:
        version = await self._asks.version(METADATA)
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
        found: dict[str | bytes, NamedTopic | int] = {}
        for topic in elements(answer.topics):
            raw, code = getattr(topic, "topic_id", None), int(topic.error_code)
            if code == NONE and topic.name is not None and raw is not None:
                named = NamedTopic(str(topic.name), encode_uuid(raw.bytes))
                found[named.name] = found[raw.bytes] = named
                _remember(self._names, raw.bytes, named)
            elif topic.name is not None:
                found[str(topic.name)] = code or UNKNOWN_TOPIC_OR_PARTITION
            elif raw is not None:
                found[raw.bytes] = code or UNKNOWN_TOPIC_OR_PARTITION
        return found

    async def _ask_offsets(
        self, asked: Collection[NamedPartition], now: float
    ) -> dict[NamedPartition, PartitionOffsets | int]:
        partitions = [each.by_name for each in asked]
        # Ask for the ends before the starts: a start that moves meanwhile is then seen, and no end is too high.
        stable = await self._list(partitions, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
        ends = await self._list(partitions, OffsetSpec.LATEST)
        starts = await self._list(partitions, OffsetSpec.EARLIEST)
        found: dict[NamedPartition, PartitionOffsets | int] = {}
        for each in asked:
            answers = [listed.get(each.by_name) for listed in (starts, ends, stable)]
            offsets = [one.offset for one in answers if isinstance(one, ListedOffset)]
            if len(offsets) == len(answers):
                known = PartitionOffsets(*offsets)
                found[each] = known
                _remember(self._offsets, each, (now, known))
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


def _remember(known: dict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    """Keep `value`, and forget what was learned first if it is too much."""
    known.pop(key, None)
    if len(known) >= _MOST_REMEMBERED:
        known.pop(next(iter(known)))
    known[key] = value
