"""The fields of control records: end markers, and those that KRaft writes into the cluster's metadata log.

Their types and the layout of end markers are in control_record.py. The values of KRaft's begin with an int16 version;
an array is its length + 1 and then its elements, a text its length + 1 in bytes and then UTF-8, both lengths unsigned
varints; every structure ends with tagged fields: their count, then for each its tag, size and content (varints).

    leader change      leader id int32, voters, granting voters: arrays of (voter id int32, from version 1 on
                       directory id uuid)
    snapshot header    last contained log timestamp int64
    snapshot footer    nothing
    KRaft version      KRaft version int16
    KRaft voters       voters: an array of (voter id int32, directory id uuid, endpoints: an array of (name text, host
                       text, port uint16), KRaft versions: (lowest int16, highest int16))

Source: KIP-595, KIP-630, KIP-853; released Kafka.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import TypeVar

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.control_record import ControlRecordType, read_control_type
from tiered_storage.kafka_log.records.record import Record

Fields = dict[str, object]
_Element = TypeVar("_Element")

_END_MARKER = struct.Struct(">hi")
_MOST_ELEMENTS = 100_000
_MOST_VARINT_BYTES = 5


def describe_control_record(record: Record) -> Fields:
    """Return the control record's fields, by Kafka's names.

    An end marker has `endTxnMarker` and `coordinatorEpoch`. Any other has `controlType`, and either `control` with its
    fields, or `key` and `value` unparsed if its type or version is unknown or it is corrupt.
    """
    try:
        kind = read_control_type(record.key)
    except CorruptRecordError:
        kind = ControlRecordType.UNKNOWN
    value = record.value or b""
    if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT) and len(value) >= _END_MARKER.size:
        _, coordinator_epoch = _END_MARKER.unpack_from(value)
        return {"endTxnMarker": kind.name, "coordinatorEpoch": coordinator_epoch}
    fields = _decode(kind, value)
    if fields is None:
        return {"controlType": kind.name, "key": record.key, "value": record.value}
    return {"controlType": kind.name, "control": fields}


def _decode(kind: ControlRecordType, value: bytes) -> Fields | None:
    decode = _DECODERS.get(kind)
    if decode is None:
        return None
    try:
        reader = _Reader(value)
        version = reader.number(">h")
        highest, read = decode
        return {"version": version, **read(reader, version)} if 0 <= version <= highest else None
    except (struct.error, IndexError, ValueError):
        return None


class _Reader:
    """Reads a message from its start. Raises struct.error, IndexError or ValueError if it is corrupt."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._content, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def uuid(self) -> str:
        return base64.urlsafe_b64encode(self._take(16)).decode().rstrip("=")

    def text(self) -> str:
        return self._take(self._varint() - 1).decode()

    def array(self, element: Callable[[], _Element]) -> list[_Element]:
        count = self._varint() - 1
        if not 0 <= count <= _MOST_ELEMENTS:
            raise ValueError(f"an array has {count} elements")
        return [element() for _ in range(count)]

    def skip_tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _take(self, size: int) -> bytes:
        taken = self._content[self._position : self._position + size]
        if size < 0 or len(taken) != size:
            raise ValueError(f"a field has {size} bytes, the message {len(taken)}")
        self._position += size
        return taken

    def _varint(self) -> int:
        value = 0
        for i in range(_MOST_VARINT_BYTES):
            byte = self._content[self._position]
            self._position += 1
            value |= (byte & 0x7F) << (7 * i)
            if byte <= 0x7F:
                return value
        raise ValueError(f"a varint is longer than {_MOST_VARINT_BYTES} bytes")


def _leader_change(reader: _Reader, version: int) -> Fields:
    def voter() -> Fields:
        fields: Fields = {"voterId": reader.number(">i")}
        if version >= 1:
            fields["voterDirectoryId"] = reader.uuid()
        reader.skip_tags()
        return fields

    return {
        "leaderId": reader.number(">i"),
        "voters": reader.array(voter),
        "grantingVoters": reader.array(voter),
    }


def _snapshot_header(reader: _Reader, _: int) -> Fields:
    return {"lastContainedLogTimestamp": reader.number(">q")}


def _snapshot_footer(_reader: _Reader, _: int) -> Fields:
    return {}


def _kraft_version(reader: _Reader, _: int) -> Fields:
    return {"kRaftVersion": reader.number(">h")}


def _kraft_voters(reader: _Reader, _: int) -> Fields:
    def endpoint() -> Fields:
        fields: Fields = {"name": reader.text(), "host": reader.text(), "port": reader.number(">H")}
        reader.skip_tags()
        return fields

    def feature() -> Fields:
        fields: Fields = {
            "minSupportedVersion": reader.number(">h"),
            "maxSupportedVersion": reader.number(">h"),
        }
        reader.skip_tags()
        return fields

    def voter() -> Fields:
        fields: Fields = {
            "voterId": reader.number(">i"),
            "voterDirectoryId": reader.uuid(),
            "endpoints": reader.array(endpoint),
            "kRaftVersionFeature": feature(),
        }
        reader.skip_tags()
        return fields

    return {"voters": reader.array(voter)}


_DECODERS: dict[ControlRecordType, tuple[int, Callable[[_Reader, int], Fields]]] = {
    ControlRecordType.LEADER_CHANGE: (1, _leader_change),
    ControlRecordType.SNAPSHOT_HEADER: (0, _snapshot_header),
    ControlRecordType.SNAPSHOT_FOOTER: (0, _snapshot_footer),
    ControlRecordType.KRAFT_VERSION: (0, _kraft_version),
    ControlRecordType.KRAFT_VOTERS: (0, _kraft_voters),
}
"""The highest version that is known, and how its fields are read."""
