from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import decode_request, encode_request, request
from tiered_storage.kafka_wire.server.request_header import expects_answer, read_header

METADATA = Api(3, "Metadata", 0, 13)
API_VERSIONS = Api(18, "ApiVersions", 0, 4)
PRODUCE = Api(0, "Produce", 3, 13)
APIS = {api.key: api for api in (METADATA, API_VERSIONS, PRODUCE)}


def arrived(message: Any, client_id: str = "a client") -> memoryview:
    return memoryview(bytearray(encode_request(message, 12, client_id)))


@pytest.mark.parametrize("version", range(METADATA.oldest, METADATA.latest + 1))
def test_the_body_begins_after_the_header_of_each_version(version: int) -> None:
    sent = request(
        METADATA,
        version,
        topics=None if version else (),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    frame = arrived(sent)

    header = read_header(frame, APIS)

    assert (header.api, header.version, header.correlation_id, header.client_id) == (METADATA, version, 12, "a client")
    assert decode_request(header.body(frame), METADATA, version) == sent


@pytest.mark.parametrize(("key", "version"), [(21, 0), (3, 14), (3, -1), (-5, 0)])
def test_an_api_or_a_version_that_is_not_listed_is_refused(key: int, version: int) -> None:
    frame = memoryview(bytearray(4) + key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True))
    frame = memoryview(bytearray(bytes(frame) + bytes(20)))

    with pytest.raises(MalformedAnswerError, match="not served"):
        read_header(frame, APIS)


def test_api_versions_passes_in_a_version_that_nobody_knows_yet() -> None:
    frame = memoryview(bytearray(4) + struct.pack(">hhih", 18, 9, 12, -1) + b"?")

    header = read_header(frame, APIS)

    assert (header.version, header.correlation_id, header.is_known) == (9, 12, False)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(content: bytes) -> None:
    try:
        header = read_header(memoryview(bytearray(bytes(4) + content)), APIS)
    except MalformedAnswerError:
        return
    assert header.api in APIS.values()
    assert header.body_start <= 4 + len(content)


@pytest.mark.parametrize("version", range(PRODUCE.oldest, PRODUCE.latest + 1))
@pytest.mark.parametrize("transactional_id", [None, "transfers"])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_produce_without_acknowledgements_has_no_answer(
    version: int, transactional_id: str | None, acks: int
) -> None:
    frame = arrived(
        request(PRODUCE, version, transactional_id=transactional_id, acks=acks, timeout=timedelta(), topic_data=())
    )

    assert expects_answer(read_header(frame, APIS), frame) is (acks != 0)
