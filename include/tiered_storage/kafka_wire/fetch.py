"""Fetch: a request by kio, and an answer that is walked by hand, so that record bytes are never copied.

An answer lands in a FetchBuffer; the records of each partition are a view into it (see fetch_layout). Sessions are off:
session id 0 and epoch -1 ask for every partition each time.

Source: KIP-74, KIP-227, KIP-320, KIP-392, KIP-516, KIP-595; released Kafka's FetchRequest.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from itertools import groupby
from typing import Any
from uuid import UUID

from tiered_storage.errors import ConfigurationError, MalformedAnswerError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH, Api
from tiered_storage.kafka_wire.connections.error_codes import NONE, PartitionError, error_name
from tiered_storage.kafka_wire.connections.frames import body_of, entity, request, request_module
from tiered_storage.kafka_wire.fetch_layout import (
    BY_TOPIC_ID,
    NO_EPOCH,
    AbortedTransaction,
    EpochEnd,
    PartitionEntry,
    read_fetch,
)

LARGEST_FRAME = (1 << 31) - 1
"""An answer larger than its buffer is reported by its size, whatever that is."""
NOT_RECORDS = 64 << 10
"""Bytes of an answer that are left for what is not records."""
_SMALLEST_BUFFER = 64 << 10


class IsolationLevel(IntEnum):
    """Which transactional records a broker shows: Kafka's isolation levels."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """From which offset to read one partition, and up to how many bytes (a first batch that is larger comes whole).

    With `topic_id`, in Kafka's text form, another topic of the same name gives the error UNKNOWN_TOPIC_ID.
    `leader_epoch` is the epoch that must be current, or the broker answers FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH;
    None: that of the cluster's metadata.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = 8 << 20
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What one answer may hold, and how long a broker may wait for `min_bytes` of it."""

    max_wait_seconds: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A broker's answer for one partition; offsets are -1 if it gave none, mostly beside an error.

    `records` has batches as the broker stores them, the last one possibly cut off, and is valid until the buffer's next
    use. `leader_epoch` is the one that the request gave. `diverging` and the leader are only set beside an error.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    preferred_read_replica: int
    records: memoryview
    leader_epoch: int = NO_EPOCH
    diverging: EpochEnd | None = None
    current_leader: int = -1
    current_leader_epoch: int = NO_EPOCH

    @property
    def error(self) -> PartitionError | None:
        """The error with its name and remedy; None: there is none."""
        return PartitionError(self.topic, self.partition, FETCH, self.error_code) if self.error_code else None


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The answer to one Fetch. `throttle_seconds`: the broker's quota delayed it, and mutes the connection so long."""

    throttle_seconds: float
    partitions: tuple[FetchedPartition, ...]


class FetchBuffer:
    """Memory for answers, used again for each, that grows up to `most` bytes. For one thread."""

    def __init__(self, most: int) -> None:
        """Allocate nothing yet."""
        self.most = most
        self._memory = bytearray()

    def room(self, size: int) -> memoryview:
        """Return a view of `size` bytes. It may overwrite what earlier views show.

        Raises ConfigurationError if they exceed `most`.
        """
        if size > self.most:
            raise ConfigurationError(
                f"an answer has {size:,} bytes, more than the {self.most:,} of its buffer, because a batch is larger "
                "than the request allowed: make the buffer larger than the topic's max.message.bytes"
            )
        if size > len(self._memory):
            # A view may still use the old memory, which then cannot be resized: allocate new memory.
            self._memory = bytearray(min(self.most, max(_SMALLEST_BUFFER, 1 << (size - 1).bit_length())))
        return memoryview(self._memory)[:size]


def fetch_request(version: int, positions: Sequence[FetchPosition], limits: FetchLimits, rack: str) -> Any:
    """Return kio's request. From version 13 on each position needs its `topic_id`; without an epoch, any is current."""
    module = request_module(FETCH, version)
    topics = tuple(
        entity(
            module.FetchTopic,
            topic=topic,
            topic_id=UUID(bytes=decode_uuid(topic_id)) if topic_id and version >= BY_TOPIC_ID else None,
            partitions=tuple(
                entity(
                    module.FetchPartition,
                    partition=each.partition,
                    current_leader_epoch=_asked_epoch(each),
                    fetch_offset=each.offset,
                    partition_max_bytes=each.max_bytes,
                )
                for each in some
            ),
        )
        for (topic, topic_id), some in _by_topic(positions)
    )
    return request(
        FETCH,
        version,
        replica_id=-1,
        max_wait=timedelta(milliseconds=round(limits.max_wait_seconds * 1000)),
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=int(limits.isolation),
        topics=topics,
        forgotten_topics_data=(),
        rack_id=rack,
    )


def failed_partition(position: FetchPosition, code: int) -> FetchedPartition:
    """Return the answer for a position that no broker was asked for."""
    return FetchedPartition(
        position.topic, position.partition, code, -1, -1, -1, (), -1, memoryview(b""), _asked_epoch(position)
    )


class FetchDecoder:
    """Decodes the answer to a request with these positions. It fits Connection.receive."""

    def __init__(self, positions: Sequence[FetchPosition]) -> None:
        self._partitions = sorted((each.topic, each.partition) for each in positions)
        self._asked: dict[tuple[str | bytes, int], FetchPosition] = {}
        for each in positions:
            self._asked[each.topic, each.partition] = each
            if each.topic_id:
                self._asked[decode_uuid(each.topic_id), each.partition] = each

    def __call__(self, frame: memoryview, api: Api, version: int, correlation_id: int) -> FetchAnswer:
        """Decode `frame`. Raises MalformedAnswerError, also if it does not answer exactly once for each partition asked
        for.

        An answer that a quota holds back has no partitions.
        """
        found = read_fetch(body_of(frame, api, version, correlation_id), version)
        throttle_ms = found.throttle_ms
        if found.error_code != NONE:
            raise MalformedAnswerError(f"the whole Fetch failed with {error_name(found.error_code)}")
        partitions = tuple(self._partition(each) for each in found.entries)
        answered = sorted((each.topic, each.partition) for each in partitions)
        if answered != self._partitions and (answered or throttle_ms <= 0):
            raise MalformedAnswerError(
                f"it answers for {_named(answered) or 'no partition'}, and was asked for {_named(self._partitions)}"
            )
        return FetchAnswer(max(0, throttle_ms) / 1000, partitions)

    def _partition(self, entry: PartitionEntry) -> FetchedPartition:
        topic, number = entry.topic, entry.partition
        position = self._asked.get((topic, number))
        if position is None:
            name = topic if isinstance(topic, str) else f"0x{topic.hex()}"
            raise MalformedAnswerError(f"Fetch answers for partition {number} of {name}, which was not asked for")
        return FetchedPartition(
            position.topic,
            number,
            entry.error_code,
            entry.high_watermark,
            entry.last_stable_offset,
            entry.log_start_offset,
            entry.aborted,
            entry.preferred_read_replica,
            entry.records,
            _asked_epoch(position),
            entry.diverging,
            entry.current_leader,
            entry.current_leader_epoch,
        )


def _named(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions)


def _asked_epoch(position: FetchPosition) -> int:
    return NO_EPOCH if position.leader_epoch is None else position.leader_epoch


def _by_topic(positions: Iterable[FetchPosition]) -> Iterator[tuple[tuple[str, str | None], list[FetchPosition]]]:
    """Yield the positions of each topic; the topics in the order of their names, each one's in the caller's order."""

    def key(position: FetchPosition) -> tuple[str, str]:
        return position.topic, position.topic_id or ""

    for (topic, topic_id), some in groupby(sorted(positions, key=key), key):
        yield (topic, topic_id or None), list(some)
