"""The header of a request: which API and version it is, and where its body begins.

    int16 API key | int16 version | int32 correlation id | nullable string client id (int16 length in every version)
    | tagged fields, if the version is flexible

Source: KIP-482; released Kafka's RequestHeader.json.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, Api
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, Cursor, has_flexible_header

PRODUCE_KEY: Final = 0
_HEADER: Final = struct.Struct(">hhi")
_WITH_TRANSACTIONAL_ID: Final = 3
"""The first version of Produce that names a transaction."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request. `client_id` is what the client calls itself, for figures; it may be anything."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body_start: int
    """Where the body begins, in bytes from the frame's start (with its size)."""

    @property
    def is_known(self) -> bool:
        """Whether the API has the version; ApiVersions may come in any, as a client asks in its own latest one."""
        return self.api.oldest <= self.version <= self.api.latest

    def body(self, frame: memoryview) -> Cursor:
        """Return a cursor before the body of `frame`."""
        return Cursor(frame, self.body_start)


def read_header(frame: memoryview, apis: Mapping[int, Api]) -> RequestHeader:
    """Return the header of `frame`, which has its size.

    Raises MalformedAnswerError if it is cut off, or of an API or a version that `apis` does not have. ApiVersions
    passes in every version, with its header up to the client id only.
    """
    cursor = Cursor(frame, SIZE_BYTES)
    key, version, correlation_id = _HEADER.unpack(cursor.take(_HEADER.size))
    api = apis.get(key)
    if api is None:
        raise MalformedAnswerError(f"a request of API {key}, version {version}, is not served here")
    size = cursor.int16()
    client_id = bytes(cursor.take(size)).decode(errors="replace") if size >= 0 else ""
    if not api.oldest <= version <= api.latest:
        if api.key != API_VERSIONS.key:
            raise MalformedAnswerError(
                f"a request of {api}, version {version}, is not served here: only {api.oldest} to {api.latest}"
            )
    elif has_flexible_header(api, version):
        cursor.skip_tagged_fields()
    return RequestHeader(api, version, correlation_id, client_id, cursor.position)


def expects_answer(header: RequestHeader, frame: memoryview) -> bool:
    """Return whether a Produce is answered: with acks=0 it is not. Raises MalformedAnswerError."""
    cursor = header.body(frame)
    if header.version >= _WITH_TRANSACTIONAL_ID:
        flexible = has_flexible_header(header.api, header.version)
        size = cursor.varint() - 1 if flexible else cursor.int16()
        cursor.take(max(size, 0))
    return cursor.int16() != 0
