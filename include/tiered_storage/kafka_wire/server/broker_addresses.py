"""Replace brokers' addresses in answers: a client that keeps an original one would bypass the program in between.

    Metadata        throttle time (from version 3 on), then brokers: int32 id | string host | int32 port
                    | nullable string rack (from version 1 on)
    Produce         from version 10 on, and Fetch from 16 on: tag 0 at the end has such an array

FindCoordinator and DescribeCluster are small, and kio's.

Source: KIP-951; released Kafka's MetadataResponse.json, ProduceResponse.json and FetchResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tiered_storage.kafka_wire.connections.apis import METADATA
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    Cursor,
    body_of,
    decode_answer,
    elements,
    encode_answer,
)
from tiered_storage.kafka_wire.fetch_layout import UUID_BYTES, encoded_size, encoded_varint
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer, Replacement, spliced

Translate = Callable[[int, str, int], tuple[str, int]]
"""Takes a broker's id, host and port, and returns the host and port that a client gets instead."""

METADATA_WITH_THROTTLE: Final = 3
METADATA_WITH_RACK: Final = 1
METADATA_FLEXIBLE: Final = 9
PRODUCE_WITH_ENDPOINTS: Final = 10
PRODUCE_BY_TOPIC_ID: Final = 13
FETCH_WITH_ENDPOINTS: Final = 16
NODE_ENDPOINTS: Final = 0
"""The tag of the leaders' addresses."""
_INT32: Final = struct.Struct(">i")


def in_metadata(frame: memoryview, header: RequestHeader, translate: Translate) -> list[Buffer]:
    """Return an answer to Metadata with other addresses. Raises MalformedAnswerError."""
    flexible = header.version >= METADATA_FLEXIBLE
    cursor = body_of(frame[SIZE_BYTES:], METADATA, header.version, header.correlation_id)
    if header.version >= METADATA_WITH_THROTTLE:
        cursor.int32()
    start = cursor.position
    brokers = _nodes(cursor, translate, flexible=flexible, with_rack=header.version >= METADATA_WITH_RACK)
    return spliced(frame, [Replacement(SIZE_BYTES + start, SIZE_BYTES + cursor.position, [brokers])])


def in_tags(frame: memoryview, start: int, translate: Translate) -> Replacement | None:
    """Return what replaces the tagged fields that end `frame` from `start` on; None if they have no address.

    Raises MalformedAnswerError.
    """
    tags = Cursor(frame, start).tagged_fields()
    if NODE_ENDPOINTS not in tags:
        return None
    encoded = [encoded_varint(len(tags))]
    for tag, content in tags.items():
        value = (
            _nodes(content, translate, flexible=True, with_rack=True)
            if tag == NODE_ENDPOINTS
            else bytes(content.take(content.left))
        )
        encoded += [encoded_varint(tag), encoded_varint(len(value)), value]
    return Replacement(start, len(frame), encoded)


def in_produce(frame: memoryview, header: RequestHeader, translate: Translate) -> list[Buffer]:
    """Return an answer to Produce, of a version with addresses, with other ones. Raises MalformedAnswerError."""
    cursor = body_of(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
    for _ in range(cursor.size(flexible=True) or 0):
        cursor.take(UUID_BYTES if header.version >= PRODUCE_BY_TOPIC_ID else cursor.varint() - 1)
        for _ in range(cursor.size(flexible=True) or 0):
            _skip_produced(cursor)
        cursor.skip_tagged_fields()
    cursor.int32()
    found = in_tags(frame, SIZE_BYTES + cursor.position, translate)
    return [frame] if found is None else spliced(frame, [found])


def in_coordinators(frame: memoryview, header: RequestHeader, translate: Translate) -> list[Buffer]:
    """Return an answer to FindCoordinator with other addresses. Raises MalformedAnswerError."""
    answer = decode_answer(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
    if hasattr(answer, "coordinators"):
        changed = tuple(_moved(each, "node_id", translate) for each in elements(answer.coordinators))
        answer = replace(answer, coordinators=changed)
    else:
        answer = _moved(answer, "node_id", translate)
    return [encode_answer(answer, header.correlation_id)]


def in_cluster(frame: memoryview, header: RequestHeader, translate: Translate) -> list[Buffer]:
    """Return an answer to DescribeCluster with other addresses. Raises MalformedAnswerError."""
    answer = decode_answer(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
    changed = tuple(_moved(each, "broker_id", translate) for each in elements(answer.brokers))
    return [encode_answer(replace(answer, brokers=changed), header.correlation_id)]


def _moved(node: Any, name: str, translate: Translate) -> Any:
    node_id = int(getattr(node, name))
    if node_id < 0:
        # No leader is known: the answer has an error instead.
        return node
    host, port = translate(node_id, str(node.host), int(node.port))
    return replace(node, host=host, port=port)


def _nodes(cursor: Cursor, translate: Translate, *, flexible: bool, with_rack: bool) -> bytes:
    """Read an array of brokers, and return it with other addresses."""
    count = cursor.size(flexible=flexible)
    encoded = [encoded_size(count, flexible=flexible)]
    for _ in range(count or 0):
        node_id = cursor.int32()
        host, port = translate(node_id, cursor.string(flexible=flexible), cursor.int32())
        encoded += [_INT32.pack(node_id), *_string(host.encode(), flexible=flexible), _INT32.pack(port)]
        start = cursor.position
        if with_rack:
            size = cursor.varint() - 1 if flexible else cursor.int16()
            cursor.take(max(size, 0))
        if flexible:
            cursor.skip_tagged_fields()
        encoded.append(bytes(cursor.view[start : cursor.position]))
    return b"".join(encoded)


def _string(raw: bytes, *, flexible: bool) -> tuple[bytes, bytes]:
    return encoded_varint(len(raw) + 1) if flexible else struct.pack(">h", len(raw)), raw


def _skip_produced(cursor: Cursor) -> None:
    """Skip one partition of an answer to Produce."""
    cursor.take(4 + 2 + 8 + 8 + 8)
    for _ in range(cursor.size(flexible=True) or 0):
        cursor.int32()
        cursor.take(max(cursor.varint() - 1, 0))
        cursor.skip_tagged_fields()
    cursor.take(max(cursor.varint() - 1, 0))
    cursor.skip_tagged_fields()
