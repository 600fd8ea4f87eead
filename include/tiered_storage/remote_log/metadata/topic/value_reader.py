"""Reads the fields that the values of the metadata topic are made of; `records` has their order.

Every length is checked against the bytes that are left before anything is read or allocated.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, TypeVar

from tiered_storage.errors import MalformedMetadataRecordError
from tiered_storage.kafka_log.files.kafka_uuid import RESERVED_UUIDS, UUID_BYTES, encode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import is_topic_name
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition

INT32: Final = struct.Struct(">i")
BROKER_AND_EVENT: Final = struct.Struct(">iq")
OFFSETS_AND_TIMES: Final = struct.Struct(">qqiqq")
EPOCH: Final = struct.Struct(">iq")

_EPOCH_BYTES = EPOCH.size + 1
_MOST_VARINT_BYTES = 5

_State = TypeVar("_State", bound=IntEnum)


class ValueReader:
    """Reads a value from its start. Raises MalformedMetadataRecordError."""

    def __init__(self, value: bytes) -> None:
        """Begin at the first byte of `value`."""
        self._value = value
        self.position = 0

    def partition(self, cluster_id: str) -> TopicIdPartition:
        """Read a topic-id-partition and its tags; it belongs to the cluster `cluster_id`."""
        at = self.position
        name = self.take(self.uvarint() - 1).decode("latin-1")
        if not is_topic_name(name):
            raise self.refused(f"{name!r} is not a topic name", at)
        topic_id = self.uuid()
        (number,) = INT32.unpack(self.take(INT32.size))
        if number < 0:
            raise self.refused(f"partition {number} is negative", self.position - INT32.size)
        self.tags()
        return TopicIdPartition(cluster_id, topic_id, number, name)

    def segment_id(self, cluster_id: str) -> RemoteLogSegmentId:
        """Read a segment's id with its partition, and its tags."""
        partition = self.partition(cluster_id)
        segment_id = RemoteLogSegmentId(partition, self.uuid())
        self.tags()
        return segment_id

    def uuid(self) -> str:
        """Read a UUID, which must not be one that Kafka reserves."""
        raw = self.take(UUID_BYTES)
        if raw in RESERVED_UUIDS:
            raise self.refused(f"the UUID 0x{raw.hex()} is one that Kafka reserves", self.position - UUID_BYTES)
        return encode_uuid(raw)

    def offsets_and_times(self) -> tuple[int, int, int, int, int]:
        """Read start offset, end offset (inclusive), broker id, largest timestamp and event timestamp (ms)."""
        at = self.position
        start, end, broker_id, max_timestamp, event_timestamp = OFFSETS_AND_TIMES.unpack(
            self.take(OFFSETS_AND_TIMES.size)
        )
        if not 0 <= start <= end:
            raise self.refused(f"offsets {start} to {end} are invalid", at)
        return start, end, broker_id, max_timestamp, event_timestamp

    def broker_and_event(self) -> tuple[int, int]:
        """Read broker id and event timestamp (ms)."""
        broker_id, event_timestamp = BROKER_AND_EVENT.unpack(self.take(BROKER_AND_EVENT.size))
        return broker_id, event_timestamp

    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Read the epochs, by rising number; of two entries with one number the last counts, as in Kafka."""
        at = self.position
        count = self.uvarint() - 1
        if not 0 < count <= self.left // _EPOCH_BYTES:
            raise self.refused(f"{count} leader epochs cannot be, with {self.left} bytes left", at)
        epochs: dict[int, int] = {}
        for _ in range(count):
            epoch, start_offset = EPOCH.unpack(self.take(EPOCH.size))
            epochs[epoch] = start_offset
            self.tags()
        return tuple(EpochEntry(epoch, epochs[epoch]) for epoch in sorted(epochs))

    def size(self) -> int:
        """Read a size in bytes."""
        (size,) = INT32.unpack(self.take(INT32.size))
        if size < 0:
            raise self.refused(f"a segment of {size} bytes is invalid", self.position - INT32.size)
        return int(size)

    def custom_metadata(self) -> bytes | None:
        """Read nullable compact bytes."""
        count = self.uvarint()
        return self.take(count - 1) if count else None

    def state(self, states: type[_State]) -> _State:
        """Read one of `states`, which are numbered from 0."""
        number = self.take(1)[0]
        if number >= len(states):
            raise self.refused(f"{states.__name__} {number} is unknown", self.position - 1)
        return states(number)

    def tags(self, flag: int | None = None) -> bool:
        """Skip a tags section; return the value of the boolean with tag `flag`, False if it is missing."""
        found = False
        for _ in range(self.uvarint()):
            at = self.position
            tag = self.uvarint()
            content = self.take(self.uvarint())
            if tag == flag:
                if len(content) != 1:
                    raise self.refused(f"a boolean has {len(content)} bytes", at)
                found = content != b"\0"
        return found

    def end(self) -> None:
        """Raise MalformedMetadataRecordError if any bytes follow."""
        if self.left:
            raise self.refused(f"{self.left} bytes follow the record")

    def refused(self, reason: str, at: int | None = None) -> MalformedMetadataRecordError:
        """Return the error that the byte `at` is wrong, by default the next one."""
        return MalformedMetadataRecordError(self.position if at is None else at, reason)

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self._value) - self.position

    def expect(self, name: str, known: int) -> None:
        """Read the unsigned varint called `name`, which must be `known`."""
        at = self.position
        found = self.uvarint()
        if found != known:
            raise self.refused(f"{name} {found} is unknown", at)

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        if not 0 <= size <= self.left:
            raise self.refused(f"a field has {size} bytes, where {self.left} are left")
        self.position += size
        return self._value[self.position - size : self.position]

    def uvarint(self) -> int:
        """Read an unsigned varint of at most five bytes."""
        at = self.position
        value = 0
        for byte in self._value[at : at + _MOST_VARINT_BYTES]:
            value |= (byte & 0x7F) << 7 * (self.position - at)
            self.position += 1
            if byte <= 0x7F:
                return value
        raise self.refused(
            f"a varint ends after byte {self.position - 1}, or has more than {_MOST_VARINT_BYTES} bytes", at
        )
