"""Answers to Fetch out of both tiers: whole batches, within the limits of the request.

    below the log start, or after the log's end     OFFSET_OUT_OF_RANGE
    where nothing can be read                       as fetch_errors has it
    at the end of the log                           no records, once the client's max wait is over: the log may grow, by
                                                    a copy for example

Source: KIP-74 (limits), KIP-98 (aborted transactions), KIP-516 (topic ids).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tiered_storage.errors import OffsetOutOfRangeError, TieredStorageError
from tiered_storage.gateway.connections.owed_answers import Filled
from tiered_storage.gateway.fetch_errors import kafka_code
from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.gateway.remote_partitions import (
    AT_ONCE,
    MEMORY_SECONDS,
    ReadKey,
    RemoteRead,
    RemoteRecords,
    read_wait_ms,
)
from tiered_storage.gateway.standalone.catalog import Topics
from tiered_storage.gateway.standalone.served_log import ServedLog
from tiered_storage.kafka_wire.connections.error_codes import (
    NONE,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.fetch_layout import (
    FLEXIBLE,
    NO_OFFSET,
    WITH_SESSIONS,
    encode_entry,
    encoded_end,
    encoded_size,
)
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.read_values import Isolation

LOOK_AGAIN_SECONDS: Final = 0.5
"""How often a Fetch at the end of the log looks for more, until its max wait is over."""
_INT32: Final = struct.Struct(">i")

MayRead = Callable[[str], bool]
"""Whether the client may read the topic of that name."""
Asked = tuple[tuple[str | bytes, int], AskedPartition]


@dataclass(slots=True)
class _Found:
    """A partition's result before its records are taken: an error code, or a read that is ready."""

    code: int = NONE
    offsets: tuple[int, int, int] = (NO_OFFSET, NO_OFFSET, NO_OFFSET)
    """Its high watermark, its last stable offset, and its log start."""
    read: RemoteRead | None = None
    key: ReadKey | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """The answer for a partition."""

    asked: tuple[str | bytes, int]
    found: _Found
    records: RemoteRecords | None

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


class LogFetch:
    """Answers one client's Fetches. For one event loop."""

    def __init__(self, client: int, log: ServedLog, memory: MemoryAccount) -> None:
        """Read `log` as `client`, the number of its connection; `memory` is the connection's account."""
        self._client = client
        self._log = log
        self._partitions = log.partitions
        self._memory = memory
        self._name = ClientName("", "")

    def close(self) -> None:
        """End the client's reads."""
        self._partitions.forget(self._client)

    async def answer(self, header: RequestHeader, request: FetchRequest, may_read: MayRead, user: str = "") -> Filled:
        """Return the answer to a Fetch of `user`, "" if nobody logs in."""
        loop = asyncio.get_running_loop()
        self._name = ClientName(user, header.client_id)
        end = loop.time() + request.max_wait_ms / 1000
        while True:
            topics = await self._log.catalog.topics()
            room = self._partitions.room(request.max_bytes, request.partitions.values())
            has_memory = not room or await self._memory.wait(room, MEMORY_SECONDS)
            entries = await self._read(request, topics, may_read, has_memory=has_memory)
            held = sum(each.records.memory for each in entries if each.records is not None)
            self._memory.settle(room if has_memory else 0, held)
            is_due = any(each.size or each.found.code != NONE for each in entries) or request.min_bytes <= 0
            left = end - loop.time()
            if is_due or left <= 0 or not request.partitions:
                return Filled(_encoded(header, request.version, entries), held)
            await asyncio.sleep(min(left, LOOK_AGAIN_SECONDS))

    async def _read(
        self, request: FetchRequest, topics: Topics, may_read: MayRead, *, has_memory: bool
    ) -> list[_Entry]:
        asked = list(request.partitions.items())
        left, entries = request.max_bytes if has_memory else 0, []
        is_first = True
        for at in range(0, len(asked), AT_ONCE):
            some = asked[at : at + AT_ONCE]
            if left > 0:
                share = left // len(some)
                found = await asyncio.gather(
                    *(
                        self._find_within(each, topics, request, min(share, each[1].max_bytes), may_read)
                        for each in some
                    )
                )
            else:
                found = [_Found() for _ in some]
            for (key, wanted), each in zip(some, found, strict=True):
                records = self._take(each, min(left, wanted.max_bytes), whole=is_first)
                if records is not None:
                    left -= records.size
                    is_first = False
                entries.append(_Entry(key, each, records))
        return entries

    async def _find_within(
        self, asked: Asked, topics: Topics, request: FetchRequest, wanted_bytes: int, may_read: MayRead
    ) -> _Found:
        """Find a partition's records, about `wanted_bytes`; none if store or metadata hang. Never raises our errors."""
        key, wanted = asked
        partition = _partition_of(key, topics, may_read)
        if isinstance(partition, int):
            return _Found(partition)
        try:
            async with asyncio.timeout(2 * read_wait_ms(request, self._log.most_wait_ms) / 1000):
                return await self._find(partition, wanted.offset, request, wanted_bytes)
        except TimeoutError:
            return _Found()
        except TieredStorageError as error:
            code, reason = kafka_code(error), f"offset {wanted.offset} is not read: {error}"
            self._log.failures.failed(partition.topic, partition.partition, code, reason)
            return _Found(code)

    async def _find(self, partition: TopicIdPartition, offset: int, request: FetchRequest, wanted_bytes: int) -> _Found:
        isolation = Isolation.READ_COMMITTED if request.is_committed else Isolation.READ_UNCOMMITTED
        snapshot = await self._partitions.snapshot(partition, offset)
        try:
            snapshot.check_range(offset)
        except OffsetOutOfRangeError:
            return _Found(OFFSET_OUT_OF_RANGE)
        high_watermark = snapshot.end_offset(Isolation.READ_UNCOMMITTED)
        stable = await self._partitions.visible_end(snapshot, isolation)
        found = _Found(NONE, (high_watermark, stable, snapshot.log_start_offset))
        if offset >= min(high_watermark, stable):
            # If a log directory cannot be read, the log may continue: this need not be its end.
            snapshot.ensure_not_hidden(offset)
            return found
        found.key = ReadKey(self._client, partition, isolation)
        wait_ms = read_wait_ms(request, self._log.most_wait_ms)
        read = self._partitions.open(found.key, offset, snapshot.remote_end, wait_ms)
        try:
            is_ready = await read.is_ready(wanted_bytes)
        except BaseException:
            self._partitions.end(read)
            raise
        if is_ready:
            found.read = read
        else:
            self._partitions.end(read)
        return found

    def _take(self, found: _Found, most_bytes: int, *, whole: bool) -> RemoteRecords | None:
        read, key = found.read, found.key
        if read is None or key is None:
            return None
        is_remote = read.is_remote
        records = read.take(most_bytes, whole=whole)
        self._partitions.keep(key, read)
        if records is not None and is_remote:
            self._log.metrics.served(key.partition.topic, self._name, records.size)
        return records


def _partition_of(key: tuple[str | bytes, int], topics: Topics, may_read: MayRead) -> TopicIdPartition | int:
    """Return a partition that the client may read, or the error code for it."""
    called, number = key
    topic = topics.find(called)
    name = topic.name if topic is not None else called
    if isinstance(name, str) and not may_read(name):
        return TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return UNKNOWN_TOPIC_ID if isinstance(called, bytes) else UNKNOWN_TOPIC_OR_PARTITION
    return topic.partitions.get(number, UNKNOWN_TOPIC_OR_PARTITION)


def _encoded(header: RequestHeader, version: int, entries: list[_Entry]) -> list[Buffer]:
    """Return the frame of an answer."""
    flexible = version >= FLEXIBLE
    topics = [(topic, list(some)) for topic, some in groupby(entries, key=lambda each: each.asked[0])]
    head = [_INT32.pack(header.correlation_id)]
    if flexible:
        head.append(b"\0")
    head.append(_INT32.pack(0))
    if version >= WITH_SESSIONS:
        head.append(struct.pack(">hi", NONE, 0))
    head.append(encoded_size(len(topics), flexible=flexible))
    buffers: list[Buffer] = [b"", b"".join(head)]
    for topic, some in topics:
        buffers.append(_name(topic, version) + encoded_size(len(some), flexible=flexible))
        for each in some:
            buffers.extend(_partition(version, each))
        buffers.append(encoded_end(version))
    buffers.append(encoded_end(version))
    buffers[0] = _INT32.pack(sum(map(len, buffers)))
    return buffers


def _name(topic: str | bytes, version: int) -> bytes:
    if isinstance(topic, bytes):
        return topic
    raw = topic.encode()
    return (encoded_size(len(raw), flexible=True) if version >= FLEXIBLE else struct.pack(">h", len(raw))) + raw


def _partition(version: int, entry: _Entry) -> Iterator[Buffer]:
    found, records = entry.found, entry.records
    aborted = None
    if found.key is not None and found.key.isolation is Isolation.READ_COMMITTED:
        aborted = () if records is None else records.aborted
    yield encode_entry(version, entry.asked[1], found.code, found.offsets, aborted, entry.size)
    if records is not None:
        yield from records.buffers
    yield encoded_end(version)
