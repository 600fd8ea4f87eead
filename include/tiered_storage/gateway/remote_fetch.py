"""Fill what a broker answers to a Fetch with remote records, where its own log begins after the offset asked for.

The broker answers first, so its rights, quotas and epochs decide. Only a partition that it answers with
OFFSET_OUT_OF_RANGE is looked for in the remote log:

    above the broker's end, or not in the remote log of this topic id   OFFSET_OUT_OF_RANGE stays
    below our log start                                                 OFFSET_OUT_OF_RANGE stays
    remote                                                              whole batches, within the limits of the Fetch
    between the remote log's end and the broker's log start (a hole)    KAFKA_STORAGE_ERROR

Source: KIP-74 (limits), KIP-98 (aborted transactions), KIP-405 (remote fetch).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedTopic
from tiered_storage.gateway.fetch_errors import kafka_code, needs_a_person
from tiered_storage.gateway.figures import GatewayFigures
from tiered_storage.gateway.remote_partitions import ReadKey, RemotePartitions, RemoteRead, RemoteRecords
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
)
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, body_of
from tiered_storage.kafka_wire.fetch_layout import (
    NO_OFFSET,
    AbortedTransaction,
    FetchLayout,
    PartitionEntry,
    encode_entry,
    encoded_end,
    read_fetch,
)
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.kafka_wire.server.frame_protocol import Piece
from tiered_storage.kafka_wire.server.frame_splice import Replacement, spliced
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.remote_log.read.partition_view import PartitionView
from tiered_storage.remote_log.read.read_values import Isolation

_log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Partitions of one Fetch that are read at the same time: each may hold a chunk."""
LEAST_WAIT_MS: Final = 500
"""How long a remote read may take though the client would wait for less: KIP-1018's default."""


@dataclass(frozen=True, slots=True)
class _Position:
    """A partition that a client may read remotely: the broker has just authorised it, and has only later offsets."""

    entry: PartitionEntry
    asked: AskedPartition
    topic: NamedTopic
    offsets: PartitionOffsets


@dataclass(slots=True)
class _Found:
    """What is known of a partition before its records are taken: an error code, or a read that is ready."""

    code: int = NONE
    log_start: int = NO_OFFSET
    read: RemoteRead | None = None
    key: ReadKey | None = None
    across: tuple[AbortedTransaction, ...] | None = ()
    """Aborted transactions that end in the broker's log; None: the broker no longer knows them."""


class RemoteFetch:
    """Fills the answers to one client's Fetches. For one event loop."""

    def __init__(
        self,
        client: int,
        partitions: RemotePartitions,
        questions: BrokerQuestions,
        figures: GatewayFigures,
        most_wait_ms: int,
    ) -> None:
        """Read as `client`, the number of its connection; one read takes `most_wait_ms` at most."""
        self._client = client
        self._partitions = partitions
        self._questions = questions
        self._figures = figures
        self._most_wait_ms = most_wait_ms

    def close(self) -> None:
        """End the client's reads."""
        self._partitions.forget(self._client)

    @staticmethod
    def layout(frame: memoryview, header: RequestHeader) -> FetchLayout:
        """Read the broker's answer. Raises MalformedAnswerError."""
        body = body_of(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        return read_fetch(body, header.version)

    @staticmethod
    def is_concerned(request: FetchRequest, layout: FetchLayout) -> bool:
        """Return whether any partition of the answer may be remote."""
        return request.is_consumer and any(each.error_code == OFFSET_OUT_OF_RANGE for each in layout.entries)

    async def fill(
        self, frame: memoryview, request: FetchRequest, layout: FetchLayout, more: Sequence[Replacement]
    ) -> list[Piece]:
        """Return the broker's answer with remote records; `more` replaces what comes after its partitions."""
        positions = await self._positions(request, layout)
        left, is_first = request.max_bytes - layout.records_size, layout.records_size == 0
        replacements: list[Replacement] = []
        for at in range(0, len(positions), AT_ONCE):
            some = positions[at : at + AT_ONCE]
            if left <= 0 and not is_first:
                found = [_Found() for _ in some]
            else:
                found = await asyncio.gather(*(self._find(each, request) for each in some))
            for position, each in zip(some, found, strict=True):
                records = self._take(position, each, min(left, position.asked.max_bytes), whole=is_first)
                if records is not None:
                    left -= len(records.content)
                    is_first = False
                replacements.append(_entry(request, position, each, records))
        return spliced(frame, [*replacements, *more])

    async def _positions(self, request: FetchRequest, layout: FetchLayout) -> list[_Position]:
        """Return what the broker does not have, or no longer; entries without an answer of the broker's stay."""
        entries = [
            each
            for each in layout.entries
            if each.error_code == OFFSET_OUT_OF_RANGE and (each.topic, each.partition) in request.partitions
        ]
        topics = await self._questions.topics({each.topic for each in entries})
        named = {
            TopicPartition(topics[each.topic].name, each.partition): each for each in entries if each.topic in topics
        }
        offsets = await self._questions.offsets(named)
        found = []
        for partition, entry in named.items():
            asked, known = request.partitions[entry.topic, entry.partition], offsets[partition]
            # A broker that does not lead the partition any more says so at the next Fetch.
            if isinstance(known, PartitionOffsets) and asked.offset <= known.high_watermark:
                found.append(_Position(entry, asked, topics[entry.topic], known))
        return found

    async def _find(self, position: _Position, request: FetchRequest) -> _Found:
        """Look for a position in the remote log, and wait for its first records. Never raises our own errors."""
        try:
            return await self._look(position, request)
        except TieredStorageError as error:
            code = kafka_code(error)
            self._figures.failed(position.topic.name, code)
            level = logging.ERROR if needs_a_person(code) else logging.INFO
            _log.log(
                level,
                "%s-%s: offset %s is not read: %s",
                position.topic.name, position.entry.partition, position.asked.offset, error,
            )  # fmt: skip
            return _Found(code)

    async def _look(self, position: _Position, request: FetchRequest) -> _Found:
        topic, offset = position.topic, position.asked.offset
        if offset >= position.offsets.start:
            # The broker has it now, or again.
            return _Found(NONE, position.offsets.start)
        partition = self._partitions.partition(topic.name, topic.topic_id, position.entry.partition)
        view = await self._partitions.view(partition, offset)
        if not (view.coverage.ranges or view.is_log_start_known) or offset < view.log_start_offset:
            return _Found(OFFSET_OUT_OF_RANGE)
        if view.remote_range(offset) is None:
            self._missing(position, view)
            return _Found(KAFKA_STORAGE_ERROR, view.log_start_offset)
        isolation = Isolation.READ_COMMITTED if request.is_committed else Isolation.READ_UNCOMMITTED
        key = ReadKey(self._client, partition, isolation)
        wait_ms = min(max(request.max_wait_ms, LEAST_WAIT_MS), self._most_wait_ms)
        read = self._partitions.open(key, offset, wait_ms)
        try:
            is_ready = await read.is_ready()
            across = await self._across(position, view) if request.is_committed and is_ready else ()
        except BaseException:
            self._partitions.end(read)
            raise
        if not is_ready:
            self._partitions.end(read)
            return _Found(NONE, view.log_start_offset)
        return _Found(NONE, view.log_start_offset, read, key, across)

    async def _across(self, position: _Position, view: PartitionView) -> tuple[AbortedTransaction, ...] | None:
        """Return the aborted transactions that end after the remote log; None if the broker has lost their ends."""
        if position.offsets.start > view.remote_end:
            return None
        if position.offsets.high_watermark <= view.remote_end:
            return ()
        return await self._questions.aborted_across(position.topic, position.entry.partition, view.remote_end)

    def _take(self, position: _Position, found: _Found, most_bytes: int, *, whole: bool) -> RemoteRecords | None:
        read, key = found.read, found.key
        if read is None or key is None:
            return None
        records = read.take(most_bytes, whole=whole)
        self._partitions.keep(key, read)
        if records is None:
            return None
        if found.across is None and records.is_transactional:
            # Whether these transactions were aborted is written in the hole after the remote log.
            found.code = KAFKA_STORAGE_ERROR
            return None
        self._figures.served(position.topic.name, len(records.content))
        return records

    def _missing(self, position: _Position, view: PartitionView) -> None:
        self._figures.failed(position.topic.name, KAFKA_STORAGE_ERROR)
        _log.error(
            "%s-%s: offset %s is in neither tier: the remote log ends at offset %s, and the broker's begins at %s: "
            "'tiered-storage audit' reports the gap",
            position.topic.name, position.entry.partition, position.asked.offset, view.remote_end,
            position.offsets.start,
        )  # fmt: skip


def _entry(request: FetchRequest, position: _Position, found: _Found, records: RemoteRecords | None) -> Replacement:
    """Return what comes instead of the broker's answer for a partition."""
    entry, known = position.entry, position.offsets
    content: Piece = b"" if records is None else records.content
    aborted = _aborted(found, records) if request.is_committed else None
    offsets = (NO_OFFSET, NO_OFFSET, NO_OFFSET)
    if found.code == NONE:
        offsets = (known.high_watermark, known.stable, found.log_start)
    head = encode_entry(request.version, entry.partition, found.code, offsets, aborted, len(content))
    return Replacement(SIZE_BYTES + entry.start, SIZE_BYTES + entry.end, [head, content, encoded_end(request.version)])


def _aborted(found: _Found, records: RemoteRecords | None) -> list[AbortedTransaction]:
    if records is None:
        return []
    across = [each for each in found.across or () if each.first_offset < records.end_offset]
    return sorted({*records.aborted, *across}, key=lambda each: (each.first_offset, each.producer_id))
