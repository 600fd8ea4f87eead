"""DeleteRecords and DeleteTopics of clients reach the remote log, once the broker has done its part.

The broker's success for a partition or topic is the client's authorisation.

    the broker answers          DeleteRecords                           DeleteTopics
    an error                    is passed on, and nothing happens       is passed on, and nothing happens
    success                     the global log start moves up to the    what is remote of the id is marked
                                offset
    remotely refused            POLICY_VIOLATION                        success: it stays, for a person to decide
    remotely failed             KAFKA_STORAGE_ERROR: a client that      success: it stays, for a person to decide
                                asks again completes it
    remotely not in time        REQUEST_TIMED_OUT                       success: continues meanwhile

DeleteTopics: the broker gets version 6 from every client, since only its answer names the topic id that was deleted.
An id that was asked for earlier could be that of an earlier topic of the name. librdkafka 2.16 sends version 4.

DeleteRecords: the gateway asks for topic ids first, and for the high watermark that -1 stands for: the low watermark of
the answer may be beyond it, where local retention continued. A broker answers an offset below its own log start with
success and its log start: it lies in the remote log then. The low watermark of our answer is where the log begins over
both tiers.

Source: KIP-107, KIP-405, KIP-516.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from tiered_storage.errors import DeletionRefusedError, MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.deletions.remote_deletions import LogStart, RemoteDeletions
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import (
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    NONE,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    TOPIC_DELETION_DISABLED,
)
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    answer,
    answer_module,
    decode_answer,
    decode_request,
    elements,
    encode_answer,
    encode_request,
    entity,
    request,
    request_module,
)
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END

DELETE_TOPICS: Final = Api(20, "DeleteTopics", 1, 6)
DELETE_RECORDS: Final = Api(21, "DeleteRecords", 0, 2)
DELETING: Final = frozenset({DELETE_RECORDS.key, DELETE_TOPICS.key})
LARGEST_REQUEST: Final = 32 << 10
"""Bytes: some 2,500 partitions, or a hundred topics with the longest names. It is decoded between other requests."""
_WITH_ID: Final = 6
"""The first version of DeleteTopics that names topic ids."""
_DISABLED_KNOWN: Final = 3
"""The first version of DeleteTopics in which a broker answers with TOPIC_DELETION_DISABLED."""
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 25.0
"""How long an answer waits for what is remote, from the request on: clients wait for 30 seconds by default."""

Topics = Mapping[str | bytes, tuple[str, str] | int]
"""By the names of a request: each topic's name and id, or the broker's error for it."""


class Questions(Protocol):
    """Asks the broker with the client's own rights."""

    async def topics(self, keys: Collection[str | bytes]) -> Topics:
        """Return each topic by its name, or the broker's error for it."""

    async def high_watermarks(self, partitions: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Return the present high watermark of each partition (topic, number) that the broker shows."""


class Brokers(Protocol):
    """The broker of a client's connection."""

    async def version(self, api: Api) -> int:
        """Return the version of `api` that broker and gateway share."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A request as the broker gets it; `asked` is what it asks for, the remote part ends at `deadline` (loop time)."""

    frame: Buffer
    version: int
    asked: Any
    topics: Topics
    deadline: float


class Partitions(Protocol):
    """The remote log of one cluster, as far as clients read it."""

    def partition(self, topic: str, topic_id: str, number: int) -> TopicIdPartition:
        """Return a partition by its topic's id."""

    async def latest(self, partition: TopicIdPartition) -> object:
        """Read a partition's snapshot again. Raises what reading it raises."""


class ClientDeletions:
    """The deletions of one client's connection. For one event loop."""

    def __init__(
        self, partitions: Partitions, questions: Questions, brokers: Brokers, deletions: RemoteDeletions
    ) -> None:
        """Delete by `deletions` what the client asks for; its own rights decide what `questions` show."""
        self._partitions = partitions
        self._questions = questions
        self._brokers = brokers
        self._deletions = deletions
        self._unanswered: dict[int, Deletion] = {}
        """Deletions of topics that the broker has not answered, by their correlation ids."""

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
        else:
            _topics_of(asked)
        return asked

    async def prepare(self, frame: memoryview, header: RequestHeader, asked: Any) -> Deletion:
        """Return what the broker gets for kio's request `asked` in `frame`. Raises TieredStorageError."""
        seconds = min(max(asked.timeout.total_seconds(), _LEAST_SECONDS), _MOST_SECONDS)
        loop = asyncio.get_running_loop()
        if header.api.key == DELETE_RECORDS.key:
            topics = await self._questions.topics({str(topic.name) for topic in elements(asked.topics)})
            bounded = await self._bounded(asked, topics)
            if bounded is not asked:
                frame = memoryview(encode_request(bounded, header.correlation_id, header.client_id))
            return Deletion(frame, header.version, bounded, topics, loop.time() + seconds)
        version = header.version
        if version < _WITH_ID and await self._brokers.version(DELETE_TOPICS) >= _WITH_ID:
            version = _WITH_ID
            frame = memoryview(encode_request(_by_version_6(asked), header.correlation_id, header.client_id))
        deletion = Deletion(frame, version, asked, {}, loop.time() + seconds)
        self._unanswered[header.correlation_id] = deletion
        return deletion

    async def _bounded(self, asked: Any, topics: Topics) -> Any:
        """Return the request with the high watermark in the place of each TO_THE_END, as far as the broker shows it."""
        wanted = [
            key
            for key, offset in _offsets_of(asked).items()
            if offset == TO_THE_END and isinstance(topics.get(key[0]), tuple)
        ]
        if not wanted:
            return asked
        ends = await self._questions.high_watermarks(wanted)

        def bounded(name: str, each: Any) -> Any:
            end = ends.get((name, int(each.partition_index))) if int(each.offset) == TO_THE_END else None
            return each if end is None else replace(each, offset=type(each.offset)(end))

        return _with_partitions(asked, bounded)

    async def answer(self, frame: memoryview, header: RequestHeader, deletion: Deletion) -> list[Buffer]:
        """Delete what the broker authorised, and return the answer. Raises MalformedAnswerError."""
        self._unanswered.pop(header.correlation_id, None)
        found = decode_answer(frame[SIZE_BYTES:], header.api, deletion.version, header.correlation_id)
        if header.api.key == DELETE_RECORDS.key:
            return [encode_answer(await self._delete_records(found, deletion), header.correlation_id)]
        await self._delete_topics(found, deletion)
        if deletion.version == header.version:
            return [frame]
        return [encode_answer(_by_version(found, header), header.correlation_id)]

    def close(self) -> None:
        """Report the deletions of topics that the broker did not answer."""
        for deletion in self._unanswered.values():
            self._deletions.lose_sight(_topics_of(deletion.asked), "the connection ended before the brokers answered")
        self._unanswered.clear()

    async def _delete_topics(self, found: Any, deletion: Deletion) -> None:
        deleted: list[TopicIdPartition] = []
        unclear: set[str] = set()
        for each in elements(found.responses):
            raw = getattr(each, "topic_id", None)
            code = int(each.error_code)
            if code == NONE and each.name is not None and raw is not None:
                deleted.append(self._partitions.partition(str(each.name), encode_uuid(raw.bytes), 0))
            elif code in {NONE, REQUEST_TIMED_OUT}:
                unclear |= {str(each.name)} if each.name is not None else set()
                unclear |= {encode_uuid(raw.bytes)} if raw is not None else set()
        if unclear:
            self._deletions.lose_sight(unclear, "the brokers' answer does not say which topic they deleted, or whether")
        if deleted:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(_at_least(deletion.deadline)):
                    await self._deletions.delete_topics(deleted)

    async def _delete_records(self, found: Any, deletion: Deletion) -> Any:
        offsets, topics = _offsets_of(deletion.asked), deletion.topics
        wanted: dict[TopicIdPartition, int] = {}
        named: dict[tuple[str, int], TopicIdPartition] = {}
        for topic in elements(found.topics):
            known = topics.get(str(topic.name))
            for each in elements(topic.partitions):
                key = str(topic.name), int(each.partition_index)
                before = _deleted_before(each, offsets.get(key))
                if before is not None and isinstance(known, tuple):
                    named[key] = self._partitions.partition(*known, key[1])
                    wanted[named[key]] = before
        outcomes, code = await self._outcomes(wanted, deletion.deadline)

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

        return _with_partitions(found, of_partition)

    async def _outcomes(
        self, wanted: Mapping[TopicIdPartition, int], deadline: float
    ) -> tuple[Mapping[TopicIdPartition, LogStart], int]:
        """Delete records; return what became of each partition, or the error of all."""
        if not wanted:
            return {}, NONE
        try:
            async with asyncio.timeout_at(_at_least(deadline)):
                outcomes = await self._deletions.delete_records(wanted)
                await asyncio.gather(*(self._renew(each) for each, at in outcomes.items() if isinstance(at, int)))
        except TimeoutError:
            return {}, REQUEST_TIMED_OUT
        return outcomes, NONE

    async def _renew(self, partition: TopicIdPartition) -> None:
        # Otherwise the reader would use its last snapshot, and show what was just deleted.
        with suppress(TieredStorageError):
            await self._partitions.latest(partition)


def _with_partitions(message: Any, changed: Callable[[str, Any], Any]) -> Any:
    """Return a DeleteRecords or its answer with each partition as `changed` returns it, by its topic's name."""
    return replace(
        message,
        topics=tuple(
            replace(topic, partitions=tuple(changed(str(topic.name), each) for each in topic.partitions))
            for topic in message.topics
        ),
    )


def _at_least(deadline: float) -> float:
    """Return `deadline`, or in a second if the broker took longer."""
    return max(deadline, asyncio.get_running_loop().time() + _LEAST_SECONDS)


def _topics_of(asked: Any) -> set[str]:
    """Return the names and ids of the topics in a DeleteTopics."""
    if hasattr(asked, "topic_names"):
        return {str(name) for name in elements(asked.topic_names)}
    return {
        str(topic.name) if topic.name is not None else encode_uuid(topic.topic_id.bytes)
        for topic in elements(asked.topics)
        if topic.name is not None or topic.topic_id is not None
    }


def _by_version_6(asked: Any) -> Any:
    """Return an earlier DeleteTopics in the version whose answer has topic ids."""
    kind = request_module(DELETE_TOPICS, _WITH_ID).DeleteTopicState
    topics = tuple(kind(name=name, topic_id=None) for name in elements(asked.topic_names))
    return request(DELETE_TOPICS, _WITH_ID, topics=topics, timeout=asked.timeout)


def _by_version(found: Any, header: RequestHeader) -> Any:
    """Return an answer to DeleteTopics in the version that the client asked in."""
    kind = answer_module(DELETE_TOPICS, header.version).DeletableTopicResult

    def code_of(each: Any) -> ErrorCode:
        is_unknown = int(each.error_code) == TOPIC_DELETION_DISABLED and header.version < _DISABLED_KNOWN
        return ErrorCode(INVALID_REQUEST) if is_unknown else each.error_code

    responses = tuple(
        entity(kind, name=each.name, error_code=code_of(each), error_message=each.error_message)
        for each in elements(found.responses)
    )
    return answer(DELETE_TOPICS, header.version, responses=responses, throttle_time=found.throttle_time)


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
    if int(each.error_code) != NONE or asked is None or not 0 <= asked <= int(each.low_watermark):
        return None
    return asked


def _failed(each: Any, code: int) -> Any:
    return replace(each, low_watermark=type(each.low_watermark)(-1), error_code=ErrorCode(code))


def _code_of(error: TieredStorageError) -> int:
    """Return a client's error: POLICY_VIOLATION is final, since a decision forbids the deletion."""
    return POLICY_VIOLATION if isinstance(error, DeletionRefusedError) else KAFKA_STORAGE_ERROR
