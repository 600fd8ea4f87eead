"""The layout of an answer to Fetch: where each partition's bytes are, without copying a record.

Versions 4 to 18; from 12 on strings and arrays are compact, and tagged fields end every structure:

    int32 throttle time (ms) | int16 error, int32 session id (from version 7 on) | topics
    topic       string name, or from version 13 on 16 bytes of topic id | partitions
    partition   int32 number | int16 error | int64 high watermark | int64 last stable offset
                | int64 log start offset (from version 5 on)
                | nullable array of aborted transactions (int64 producer id, int64 first offset)
                | int32 preferred read replica (from version 11 on) | nullable records
    tags of a partition     0: diverging epoch (int32 epoch, int64 end offset)   1: leader (int32 id, int32 epoch)
    tags of the answer      0: addresses of the leaders (from version 16 on)

Source: KIP-74, KIP-227, KIP-320, KIP-392, KIP-516, KIP-595, KIP-951; released Kafka's FetchResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, Cursor

OLDEST, LATEST = 4, 18
"""The versions of Fetch whose layout is known here, inclusive."""
WITH_LOG_START = 5
WITH_SESSIONS = 7
WITH_READ_REPLICA = 11
FLEXIBLE = 12
BY_TOPIC_ID = 13
"""The first version that names topics by their ids."""
NO_EPOCH = -1
NO_OFFSET = -1
NO_REPLICA = -1

UUID_BYTES = 16
_CORRELATION_ID: Final = 4
_NO_TAGS: Final = b"\0"
_HEAD: Final = struct.Struct(">ihqq")
"""A partition's number, error code, high watermark and last stable offset."""
_DIVERGING_EPOCH, _CURRENT_LEADER = 0, 1


class AbortedTransaction(NamedTuple):
    """FetchResponse's AbortedTransaction: the records of `producer_id` from `first_offset` to its abort marker."""

    producer_id: int
    first_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after its last record; -1 for both: the broker knows none."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """A broker's answer for one partition; `topic` is a name, or an id from version 13 on. Offsets are -1 if not given.

    It takes the bytes from `start` to `end` (exclusive) of the frame that was read; `records` is a view into them.
    """

    topic: str | bytes
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    preferred_read_replica: int
    records: memoryview
    diverging: EpochEnd | None
    current_leader: int
    current_leader_epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FetchLayout:
    """An answer to Fetch; `leaders` has the addresses of new leaders (KIP-951), if the broker gave any."""

    throttle_ms: int
    error_code: int
    entries: tuple[PartitionEntry, ...]
    tags: dict[int, Cursor]
    tags_start: int
    """Where the answer's own tagged fields begin; its end before version 12."""

    @property
    def records_size(self) -> int:
        """The bytes of all records."""
        return sum(len(each.records) for each in self.entries)


def read_fetch(cursor: Cursor, version: int) -> FetchLayout:
    """Read the body of an answer of `version`, from `cursor` to the end of its frame.

    Raises MalformedAnswerError unless the frame is one whole answer.
    """
    throttle_ms = cursor.int32()
    error_code = cursor.int16() if version >= WITH_SESSIONS else 0
    if version >= WITH_SESSIONS:
        cursor.int32()
    entries = tuple(_topics(cursor, version))
    tags_start = cursor.position
    tags = cursor.tagged_fields() if version >= FLEXIBLE else {}
    if cursor.left:
        raise MalformedAnswerError(f"Fetch version {version} has {cursor.left} bytes after its end")
    return FetchLayout(throttle_ms, error_code, entries, tags, tags_start)


def set_throttle_time(frame: memoryview, version: int, milliseconds: int) -> None:
    """Change the throttle time of a whole answer, which begins with its size and its header."""
    head = SIZE_BYTES + _CORRELATION_ID + (len(_NO_TAGS) if version >= FLEXIBLE else 0)
    struct.pack_into(">i", frame, head, milliseconds)


def encode_entry(
    version: int,
    partition: int,
    error_code: int,
    offsets: tuple[int, int, int],
    aborted: Sequence[AbortedTransaction] | None,
    records_size: int,
) -> bytes:
    """Return an answer for one partition up to its records; `encoded_end` comes after these.

    `offsets` are the high watermark, the last stable offset and the log start offset. `aborted` is None for a reader
    that also reads what is not committed.
    """
    flexible = version >= FLEXIBLE
    high_watermark, stable, log_start = offsets
    parts = [_HEAD.pack(partition, error_code, high_watermark, stable)]
    if version >= WITH_LOG_START:
        parts.append(struct.pack(">q", log_start))
    parts.append(encoded_size(None if aborted is None else len(aborted), flexible=flexible))
    for each in aborted or ():
        parts.append(struct.pack(">qq", *each))
        if flexible:
            parts.append(_NO_TAGS)
    if version >= WITH_READ_REPLICA:
        parts.append(struct.pack(">i", NO_REPLICA))
    parts.append(encoded_size(records_size, flexible=flexible))
    return b"".join(parts)


def encoded_end(version: int) -> bytes:
    """Return what ends a partition's answer after its records."""
    return _NO_TAGS if version >= FLEXIBLE else b""


def encoded_size(size: int | None, *, flexible: bool) -> bytes:
    """Return the length of an array, of bytes or of a string, None for null, as Cursor.size reads it."""
    value = -1 if size is None else size
    return encoded_varint(value + 1) if flexible else struct.pack(">i", value)


def encoded_varint(value: int) -> bytes:
    """Return an unsigned varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _topics(cursor: Cursor, version: int) -> Iterator[PartitionEntry]:
    flexible = version >= FLEXIBLE
    for _ in range(cursor.size(flexible=flexible) or 0):
        topic = read_topic(cursor, version)
        for _ in range(cursor.size(flexible=flexible) or 0):
            yield _partition(topic, cursor, version)
        if flexible:
            cursor.skip_tagged_fields()


def read_topic(cursor: Cursor, version: int) -> str | bytes:
    """Read a topic's name, or its id from version 13 on."""
    return bytes(cursor.take(UUID_BYTES)) if version >= BY_TOPIC_ID else cursor.string(flexible=version >= FLEXIBLE)


def _partition(topic: str | bytes, cursor: Cursor, version: int) -> PartitionEntry:
    flexible, start = version >= FLEXIBLE, cursor.position
    number, error_code, high_watermark, last_stable_offset = _HEAD.unpack(cursor.take(_HEAD.size))
    log_start_offset = cursor.int64() if version >= WITH_LOG_START else NO_OFFSET
    aborted = tuple(_aborted(cursor, flexible=flexible))
    replica = cursor.int32() if version >= WITH_READ_REPLICA else NO_REPLICA
    records = cursor.take(cursor.size(flexible=flexible) or 0)
    tags = cursor.tagged_fields() if flexible else {}
    diverging, leader = tags.get(_DIVERGING_EPOCH), tags.get(_CURRENT_LEADER)
    return PartitionEntry(
        topic,
        number,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        replica,
        records,
        EpochEnd(diverging.int32(), diverging.int64()) if diverging else None,
        leader.int32() if leader else -1,
        leader.int32() if leader else NO_EPOCH,
        start,
        cursor.position,
    )


def _aborted(cursor: Cursor, *, flexible: bool) -> Iterator[AbortedTransaction]:
    for _ in range(cursor.size(flexible=flexible) or 0):
        yield AbortedTransaction(cursor.int64(), cursor.int64())
        if flexible:
            cursor.skip_tagged_fields()
