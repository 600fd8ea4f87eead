"""DeleteRecords and DeleteTopics of clients reach the remote log, once the broker has done its part.

The broker's success for a partition or topic is the client's authorisation. Which topic ids the names of a request
have is asked before the broker gets it: afterwards a deleted topic has none, and one that was created again another.

    the broker answers          DeleteRecords                           DeleteTopics
    an error                    is passed on, and nothing happens       is passed on, and nothing happens
    success                     the global log start moves up to the offset    what is remote of the id is marked
    remotely refused            POLICY_VIOLATION                        success: it stays, for a person to decide
    remotely failed             KAFKA_STORAGE_ERROR: a client that      success: it stays, for a person to decide
                                asks again completes it
    remotely not in time        REQUEST_TIMED_OUT: goes on meanwhile    success: goes on meanwhile

A broker answers an offset below its own log start with success and its log start: it lies in the remote log then. The
low watermark of our answer is where the log begins over both tiers.

Source: KIP-107, KIP-405, KIP-516.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from tiered_storage.errors import DeletionRefusedError, MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.deletions.remote_deletions import LogStart, RemoteDeletions
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
)
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    decode_answer,
    decode_request,
    elements,
    encode_answer,
)
from tiered_storage.kafka_wire.server.frame_protocol import Buffer
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.remote_log.model import TopicIdPartition

DELETE_TOPICS: Final = Api(20, "DeleteTopics", 1, 6)
DELETE_RECORDS: Final = Api(21, "DeleteRecords", 0, 2)
DELETING: Final = frozenset({DELETE_RECORDS.key, DELETE_TOPICS.key})
LARGEST_REQUEST: Final = 256 << 10
"""Bytes: some twenty thousand partitions, or a thousand topics with the longest names."""
TO_THE_END: Final = -1
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 25.0
"""How long an answer waits for what is remote: clients wait for 30 seconds by default."""

Topics = Mapping[str | bytes, tuple[str, str] | int]
"""By the names and the ids of a request: each topic's name and id, or the broker's error for it."""
AskTopics = Callable[[Collection[str | bytes]], Awaitable[Topics]]


class Partitions(Protocol):
    """The remote log of one cluster, as far as clients read it."""

    def partition(self, topic: str, topic_id: str, number: int) -> TopicIdPartition:
        """Return a partition by its topic's id."""

    async def latest(self, partition: TopicIdPartition) -> object:
        """Look at a partition again. Raises what looking at it raises."""


class ClientDeletions:
    """The deletions of one client's connection. For one event loop."""

    def __init__(self, partitions: Partitions, ask_topics: AskTopics, deletions: RemoteDeletions) -> None:
        """Delete by `deletions` what the client asks for; its own rights decide which topics `ask_topics` shows."""
        self._partitions = partitions
        self._ask_topics = ask_topics
        self._deletions = deletions

    @staticmethod
    def decode(frame: memoryview, header: RequestHeader) -> Any:
        """Return kio's request. Raises MalformedAnswerError if it is garbled or too large."""
        if len(frame) > LARGEST_REQUEST:
            raise MalformedAnswerError(
                f"{header.api} has {len(frame):,} bytes, more than the {LARGEST_REQUEST:,} that the gateway takes: "
                "delete in several requests"
            )
        asked = decode_request(header.body(frame), header.api, header.version)
        if header.api.key == DELETE_RECORDS.key:
            _offsets_of(asked)
        return asked

    async def topics(self, asked: Any) -> Topics:
        """Return the topics of kio's request `asked`, as they are before the broker gets it."""
        return await self._ask_topics(_topics_of(asked))

    async def answer(self, frame: memoryview, header: RequestHeader, asked: Any, topics: Topics) -> list[Buffer]:
        """Delete what the broker authorised, and return the answer. Raises MalformedAnswerError."""
        answer = decode_answer(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        seconds = min(max(asked.timeout.total_seconds(), _LEAST_SECONDS), _MOST_SECONDS)
        if header.api.key == DELETE_TOPICS.key:
            await self._delete_topics(answer, topics, seconds)
            return [frame]
        changed = await self._delete_records(answer, asked, topics, seconds)
        return [encode_answer(changed, header.correlation_id)]

    async def _delete_topics(self, answer: Any, topics: Topics, seconds: float) -> None:
        deleted = [_deleted_topic(each, topics) for each in elements(answer.responses) if int(each.error_code) == NONE]
        work = asyncio.gather(
            *(
                self._deletions.delete_topic(self._partitions.partition(*topic, 0))
                for topic in deleted
                if topic is not None
            )
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(work, seconds)

    async def _delete_records(self, answer: Any, asked: Any, topics: Topics, seconds: float) -> Any:
        offsets = _offsets_of(asked)
        wanted: dict[TopicIdPartition, int] = {}
        named: dict[tuple[str, int], TopicIdPartition] = {}
        for topic in elements(answer.topics):
            known = topics.get(str(topic.name))
            for each in elements(topic.partitions):
                key = str(topic.name), int(each.partition_index)
                before = _deleted_before(each, offsets.get(key))
                if before is not None and isinstance(known, tuple):
                    named[key] = self._partitions.partition(*known, key[1])
                    wanted[named[key]] = before
        outcomes, code = await self._outcomes(wanted, seconds)

        def of_partition(name: str, each: Any) -> Any:
            key = name, int(each.partition_index)
            if int(each.error_code) != NONE:
                return each
            if key not in named:
                return _failed(each, KAFKA_STORAGE_ERROR)
            outcome = outcomes.get(named[key])
            if code != NONE:
                return _failed(each, code)
            if isinstance(outcome, TieredStorageError):
                return _failed(each, _code_of(outcome))
            return each if outcome is None else replace(each, low_watermark=type(each.low_watermark)(outcome))

        return replace(
            answer,
            topics=tuple(
                replace(topic, partitions=tuple(of_partition(str(topic.name), each) for each in topic.partitions))
                for topic in answer.topics
            ),
        )

    async def _outcomes(
        self, wanted: Mapping[TopicIdPartition, int], seconds: float
    ) -> tuple[Mapping[TopicIdPartition, LogStart], int]:
        """Delete records; return what became of each partition, or the error of all."""
        if not wanted:
            return {}, NONE
        try:
            outcomes = await asyncio.wait_for(self._deletions.delete_records(wanted), seconds)
        except TimeoutError:
            return {}, REQUEST_TIMED_OUT
        for partition, outcome in outcomes.items():
            if isinstance(outcome, int):
                # Otherwise the reader would use its last snapshot, and show what was just deleted.
                with suppress(TieredStorageError):
                    await self._partitions.latest(partition)
        return outcomes, NONE


def _topics_of(asked: Any) -> set[str | bytes]:
    """Return the names and ids of the topics in a request."""
    if hasattr(asked, "topic_names"):
        return {str(name) for name in elements(asked.topic_names)}
    return {
        str(topic.name) if topic.name is not None else topic.topic_id.bytes
        for topic in elements(asked.topics)
        if topic.name is not None or getattr(topic, "topic_id", None) is not None
    }


def _offsets_of(asked: Any) -> dict[tuple[str, int], int]:
    """Return the offsets before which records are deleted. Raises MalformedAnswerError for a partition named twice."""
    found: dict[tuple[str, int], int] = {}
    for topic in elements(asked.topics):
        for each in elements(topic.partitions):
            key = str(topic.name), int(each.partition_index)
            if key in found:
                raise MalformedAnswerError(f"DeleteRecords names {key[0]}-{key[1]} twice")
            found[key] = int(each.offset)
    return found


def _deleted_before(each: Any, asked: int | None) -> int | None:
    """Return the offset before which the broker has deleted, at the request for `asked`; None: nothing, or unclear."""
    low_watermark = int(each.low_watermark)
    if int(each.error_code) != NONE or asked is None or asked < TO_THE_END or asked > low_watermark:
        return None
    return low_watermark if asked == TO_THE_END else asked


def _deleted_topic(each: Any, topics: Topics) -> tuple[str, str] | None:
    """Return the topic that the broker deleted: by the id that it names, or else the one of the name before."""
    raw = getattr(each, "topic_id", None)
    found = topics.get(raw.bytes) if raw is not None else None
    if found is None and each.name is not None:
        found = topics.get(str(each.name))
    if not isinstance(found, tuple):
        return None
    return found if raw is None else (found[0], encode_uuid(raw.bytes))


def _failed(each: Any, code: int) -> Any:
    return replace(each, low_watermark=type(each.low_watermark)(-1), error_code=ErrorCode(code))


def _code_of(error: TieredStorageError) -> int:
    """Return what a client gets: only where a person forbids the deletion, asking again is of no use."""
    return POLICY_VIOLATION if isinstance(error, DeletionRefusedError) else KAFKA_STORAGE_ERROR
