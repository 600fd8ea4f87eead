"""A client's Fetch: what it asks for, and what is changed in it before it goes to the broker.

Layout of the body in versions 4 to 18. From 12 on strings and arrays are compact, and tagged fields end each structure:

    int32 replica id (up to version 14) | int32 max wait (ms) | int32 min bytes | int32 max bytes | int8 isolation level
    | int32 session id, int32 session epoch (from version 7 on) | topics
    | forgotten topics (from version 7 on) | string rack (from version 11 on)
    topic       string name, or from version 13 on 16 bytes of topic id | partitions
    partition   int32 number | int32 current leader epoch (from version 9 on) | int64 offset
                | int32 epoch fetched last (from version 12 on) | int64 log start offset (from version 5 on)
                | int32 max bytes
    tags of the request     1: replica (int32 id, int64 epoch), from version 15 on

Source: KIP-227, KIP-320, KIP-392, KIP-516, KIP-903; released Kafka's FetchRequest.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.frames import Cursor
from tiered_storage.kafka_wire.fetch_layout import (
    FLEXIBLE,
    NO_EPOCH,
    WITH_LOG_START,
    WITH_READ_REPLICA,
    WITH_SESSIONS,
    read_topic,
)
from tiered_storage.kafka_wire.server.request_header import RequestHeader

CONSUMER: Final = -1
"""The replica id of a client that is not a broker."""
WITH_LEADER_EPOCH: Final = 9
REPLICA_IN_TAG: Final = 15
_REPLICA_STATE: Final = 1
_NO_SESSION: Final = struct.pack(">ii", 0, NO_EPOCH)
_INT32: Final = struct.Struct(">i")
_PARTITION_LAYOUTS: Final = (
    (FLEXIBLE, struct.Struct(">i4xq12xi")),
    (WITH_LEADER_EPOCH, struct.Struct(">i4xq8xi")),
    (WITH_LOG_START, struct.Struct(">iq8xi")),
    (0, struct.Struct(">iqi")),
)
"""By the first version that has it: number, offset and max bytes of a partition, without the rest."""


@dataclass(frozen=True, slots=True)
class AskedPartition:
    """From which offset on a client wants a partition, and up to how many bytes of it."""

    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What a client asks for, each partition by its topic's name or id and its number."""

    version: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_committed: bool
    partitions: Mapping[tuple[str | bytes, int], AskedPartition]

    @property
    def is_consumer(self) -> bool:
        """Whether no broker asks: a follower never gets what is remote."""
        return self.replica_id == CONSUMER


def take_fetch(frame: memoryview, header: RequestHeader, most_bytes: int, *, share: bool = False) -> FetchRequest:
    """Read a client's Fetch, and change it in place: no session, and `most_bytes` of records at most.

    Without a session each Fetch names all of its partitions. With `share`, if the Fetch has several partitions, the
    broker may fill only half of the answer: the rest is for remote records. Raises MalformedAnswerError.
    """
    version, cursor = header.version, header.body(frame)
    replica_id = cursor.int32() if version < REPLICA_IN_TAG else CONSUMER
    max_wait_ms, min_bytes = cursor.int32(), cursor.int32()
    limit_at = cursor.position
    max_bytes, isolation = cursor.int32(), cursor.int8()
    session_at = cursor.position
    if version >= WITH_SESSIONS:
        cursor.take(len(_NO_SESSION))
    asked = dict(_partitions(cursor, version))
    if version >= WITH_SESSIONS:
        _skip_forgotten(cursor, version)
    if version >= WITH_READ_REPLICA:
        cursor.string(flexible=version >= FLEXIBLE)
    if version >= FLEXIBLE:
        state = cursor.tagged_fields().get(_REPLICA_STATE)
        replica_id = state.int32() if state is not None and version >= REPLICA_IN_TAG else replica_id
    if cursor.left:
        raise MalformedAnswerError(f"Fetch version {version} has {cursor.left} bytes after its end")
    if version >= WITH_SESSIONS:
        frame[session_at : session_at + len(_NO_SESSION)] = _NO_SESSION
    max_bytes = min(max_bytes, most_bytes)
    _INT32.pack_into(frame, limit_at, max_bytes // 2 if share and len(asked) > 1 else max_bytes)
    return FetchRequest(version, replica_id, max_wait_ms, min_bytes, max_bytes, bool(isolation), asked)


def _partitions(cursor: Cursor, version: int) -> Iterator[tuple[tuple[str | bytes, int], AskedPartition]]:
    flexible = version >= FLEXIBLE
    layout = next(found for first, found in _PARTITION_LAYOUTS if version >= first)
    for _ in range(cursor.size(flexible=flexible) or 0):
        topic = read_topic(cursor, version)
        for _ in range(cursor.size(flexible=flexible) or 0):
            number, offset, max_bytes = layout.unpack(cursor.take(layout.size))
            yield (topic, number), AskedPartition(offset, max_bytes)
            if flexible:
                cursor.skip_tagged_fields()
        if flexible:
            cursor.skip_tagged_fields()


def _skip_forgotten(cursor: Cursor, version: int) -> None:
    flexible = version >= FLEXIBLE
    for _ in range(cursor.size(flexible=flexible) or 0):
        read_topic(cursor, version)
        cursor.take(4 * (cursor.size(flexible=flexible) or 0))
        if flexible:
            cursor.skip_tagged_fields()
