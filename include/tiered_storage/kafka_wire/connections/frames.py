"""Frames of the Kafka protocol: a size, a header, and a message by kio.

    request     int32 size | int16 API key | int16 version | int32 correlation id | nullable string client id
                | tagged fields, if the version is flexible | message
    response    int32 size | int32 correlation id | tagged fields, if the version is flexible | message

The size does not count itself. A response to ApiVersions has no tagged fields in its header, whatever its version.
Nothing here knows a socket: the blocking client and the server half share it.

Source: KIP-482; the protocol guide; released Kafka's message schemas, which kio generates its classes from.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from functools import cache
from types import ModuleType, NoneType
from typing import Any, get_args, get_origin, get_type_hints

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, Api

SIZE_BYTES = 4
LARGEST_MESSAGE = 128 << 20
"""Bytes of the largest answer without records; a cluster's metadata of a million partitions has half of it."""

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{code}") for code in "bhiq")
_LONGEST_VARINT = 5
_RAISED_BY_KIO = (SerialError, ValueError, LookupError, TypeError, OverflowError)
"""A garbled message gives each of these: KeyError for an unknown tag, ValueError for an unknown error code."""


_request_schema = cache(load_request_schema)
_response_schema = cache(load_response_schema)


@cache
def request_module(api: Api, version: int) -> ModuleType:
    """Return kio's module with the classes of a request; the first import of one takes milliseconds."""
    return load_payload_module(api.key, version, EntityType.request)


def entity(kind: Any, **values: Any) -> Any:
    """Return kio's entity of `kind`, without those of `values` that its version does not have."""
    known = kind.__dataclass_fields__
    return kind(**{name: value for name, value in values.items() if name in known})


def request(api: Api, version: int, **values: Any) -> Any:
    """Return a request of kio, without those of `values` that its version does not have."""
    return entity(_request_schema(api.key, version), **values)


@cache
def answer_module(api: Api, version: int) -> ModuleType:
    """Return kio's module with the classes of an answer."""
    return load_payload_module(api.key, version, EntityType.response)


def answer(api: Api, version: int, **values: Any) -> Any:
    """Return an answer of kio, without those of `values` that its version does not have."""
    return entity(_response_schema(api.key, version), **values)


def encode_request(message: Any, correlation_id: int, client_id: str) -> bytes:
    """Return the whole frame of kio's request `message`."""
    buffer = io.BytesIO()
    buffer.write(bytes(SIZE_BYTES))
    header = message.__header_schema__(
        request_api_key=message.__api_key__,
        request_api_version=message.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(type(header))(buffer, header)
    entity_writer(type(message))(buffer, message)
    frame = buffer.getbuffer()
    _INT32.pack_into(frame, 0, len(frame) - SIZE_BYTES)
    return bytes(frame)


def encode_answer(message: Any, correlation_id: int) -> bytes:
    """Return the whole frame of kio's response `message`."""
    buffer = io.BytesIO()
    buffer.write(bytes(SIZE_BYTES))
    header = message.__header_schema__(correlation_id=correlation_id)
    entity_writer(type(header))(buffer, header)
    entity_writer(type(message))(buffer, message)
    frame = buffer.getbuffer()
    _INT32.pack_into(frame, 0, len(frame) - SIZE_BYTES)
    return bytes(frame)


def has_flexible_header(api: Api, version: int) -> bool:
    """Return whether the header of a request has tagged fields."""
    return bool(_request_schema(api.key, version).__flexible__)


def decode_size(raw: bytes | bytearray, largest: int) -> int:
    """Return the size of the frame that begins with the four bytes `raw`.

    Raises MalformedAnswerError if it cannot hold a header, or exceeds `largest` bytes.
    """
    (size,) = _INT32.unpack(raw)
    if not SIZE_BYTES <= size <= largest:
        raise MalformedAnswerError(
            f"the answer announces {size:,} bytes, not {SIZE_BYTES} to {largest:,}. The listener may expect TLS, or be "
            "another one: correct security.protocol, and the port in bootstrap.servers"
        )
    return int(size)


def body_of(frame: memoryview, api: Api, version: int, correlation_id: int) -> Cursor:
    """Return a cursor after the header of an answer; `frame` is without its size.

    Raises MalformedAnswerError if the header is invalid, or answers another request.
    """
    cursor = Cursor(frame)
    found = cursor.int32()
    if found != correlation_id:
        raise MalformedAnswerError(f"the answer has the correlation id {found} instead of {correlation_id}")
    if api.key != API_VERSIONS.key and _response_schema(api.key, version).__flexible__:
        cursor.skip_tagged_fields()
    return cursor


def decode_answer(frame: memoryview, api: Api, version: int, correlation_id: int) -> Any:
    """Return kio's response in `frame`, which is without its size.

    Raises MalformedAnswerError if the bytes are not one answer to that request, from the first byte to the last.
    """
    cursor = body_of(frame, api, version, correlation_id)
    return _decode(_response_schema(api.key, version), cursor, api, version, whole=True)


def decode_request(cursor: Cursor, api: Api, version: int) -> Any:
    """Return kio's request that begins at `cursor`, after the header.

    Bytes after its end do not matter, as to brokers: librdkafka sends some when it asks for all topics. Raises
    MalformedAnswerError if there is no such request.
    """
    return _decode(_request_schema(api.key, version), cursor, api, version)


def _decode(schema: Any, cursor: Cursor, api: Api, version: int, *, whole: bool = False) -> Any:
    walked = Cursor(cursor.view, cursor.position)
    _walk(schema)(walked)
    if whole and walked.left:
        raise MalformedAnswerError(f"{api} version {version} has {walked.left} bytes after its end")
    try:
        found, _ = entity_reader(schema)(cursor.view.toreadonly(), cursor.position)
    except _RAISED_BY_KIO as error:
        raise MalformedAnswerError(f"{api} version {version} cannot be decoded: {error}") from error
    return found


def elements(array: Any) -> Any:
    """Return an array of kio's. Raises MalformedAnswerError for null, which kio lets pass where no null may be."""
    if array is None:
        raise MalformedAnswerError("an array is null where null is not allowed")
    return array


class Cursor:
    """Reads the protocol's primitive types from `view`, from `position` (bytes) on.

    Methods raise MalformedAnswerError if the bytes end too early or a length is invalid.
    """

    __slots__ = ("position", "view")

    def __init__(self, view: memoryview, position: int = 0) -> None:
        self.view = view
        self.position = position

    @property
    def left(self) -> int:
        """The number of bytes from here to the end."""
        return len(self.view) - self.position

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes, without copying them."""
        if not 0 <= size <= self.left:
            raise MalformedAnswerError(f"{size} bytes are announced at byte {self.position}, {self.left} are left")
        start = self.position
        self.position += size
        return self.view[start : self.position]

    def int8(self) -> int:
        """Read a signed integer of 1 byte."""
        return int(_INT8.unpack(self.take(1))[0])

    def int16(self) -> int:
        """Read a signed integer of 2 bytes."""
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Read a signed integer of 4 bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        """Read a signed integer of 8 bytes."""
        return int(_INT64.unpack(self.take(8))[0])

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        for number in range(_LONGEST_VARINT):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise MalformedAnswerError(f"a varint that ends at byte {self.position} has more than 32 bits")

    def string(self, *, flexible: bool) -> str:
        """Read a string that is not null."""
        size = self.varint() - 1 if flexible else self.int16()
        raw = self.take(size)
        try:
            return bytes(raw).decode()
        except UnicodeDecodeError as error:
            raise MalformedAnswerError(f"the string before byte {self.position} is not UTF-8") from error

    def size(self, *, flexible: bool) -> int | None:
        """Read the length of an array or of bytes, at most the number of bytes left; None for null.

        An element takes a byte at least, so no array has more of them.
        """
        size = self.varint() - 1 if flexible else self.int32()
        if size < -1 or size > self.left:
            raise MalformedAnswerError(f"a length of {size} ends at byte {self.position}, where {self.left} are left")
        return None if size == -1 else size

    def skip_tagged_fields(self) -> None:
        """Skip a section of tagged fields, known or unknown."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def tagged_fields(self) -> dict[int, Cursor]:
        """Read a section of tagged fields: a cursor for each of them by its tag."""
        found = {}
        for _ in range(self.varint()):
            tag = self.varint()
            if tag in found:
                raise MalformedAnswerError(f"the tagged field {tag} before byte {self.position} is there twice")
            found[tag] = Cursor(self.take(self.varint()))
        return found


Walk = Callable[[Cursor], None]

_WIDTHS = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
"""Bytes of kio's types that have a fixed width."""


@cache
def _walk(kind: Any) -> Walk:
    """Return what walks over kio's entity of `kind`, and raises MalformedAnswerError for a length past the end.

    kio reserves memory for as many elements as an array announces, and ends the process if there is not so much.
    """
    hints = get_type_hints(kind)
    plain, tagged = [], {}
    for field in fields(kind):
        step = _walk_field(field, hints[field.name], flexible=kind.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = step
        else:
            plain.append(step)

    def walk(cursor: Cursor) -> None:
        for step in plain:
            step(cursor)
        if kind.__flexible__:
            for tag, inner in cursor.tagged_fields().items():
                if tag in tagged:
                    tagged[tag](inner)
                    if inner.left:
                        # kio ignores the announced size and would decode the rest, which was not checked.
                        raise MalformedAnswerError(f"the tagged field {tag} has {inner.left} bytes after its end")

    return walk


def _walk_field(field: Field[Any], hint: Any, *, flexible: bool) -> Walk:
    name = field.metadata.get("kafka_type", "")
    array = next((each for each in _alternatives(hint) if get_origin(each) is tuple), None)
    if array is None:
        return _walk_type(name, hint, flexible=flexible)
    width, step = _WIDTHS.get(name, 0), _walk_type(name, get_args(array)[0], flexible=flexible)

    def walk(cursor: Cursor) -> None:
        count = cursor.size(flexible=flexible) or 0
        if width:
            cursor.take(count * width)
            return
        for _ in range(count):
            step(cursor)

    return walk


def _walk_type(name: str, hint: Any, *, flexible: bool) -> Walk:
    if not name:
        return _walk(next(each for each in _alternatives(hint) if each is not NoneType))
    if name in _WIDTHS:
        width = _WIDTHS[name]
        return lambda cursor: _skip(cursor, width)
    if name == "string":
        return lambda cursor: _skip(cursor, (cursor.varint() - 1) if flexible else cursor.int16())
    return lambda cursor: _skip(cursor, cursor.size(flexible=flexible))


def _skip(cursor: Cursor, size: int | None) -> None:
    """Skip `size` bytes; None and -1 are null."""
    if size not in (None, -1):
        cursor.take(size or 0)


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, or the one type that it is."""
    yield from ([hint] if get_origin(hint) is tuple else get_args(hint) or [hint])
