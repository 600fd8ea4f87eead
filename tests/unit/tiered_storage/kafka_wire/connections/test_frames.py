from __future__ import annotations

import struct
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, APIS, FETCH, METADATA, SASL_HANDSHAKE, Api
from tiered_storage.kafka_wire.connections.frames import Cursor, decode_answer, decode_size, encode_request, request
from tiered_storage.kafka_wire.metadata import read_metadata
from unit.tiered_storage.kafka_wire.scripted_broker import framed


def cursor(data: bytes) -> Cursor:
    return Cursor(memoryview(data))


def metadata_frame() -> bytes:
    kio = load_payload_module(METADATA.key, 13, EntityType.response)
    partition = kio.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=7,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
        offline_replicas=(),
    )
    topic = kio.MetadataResponseTopic(
        error_code=ErrorCode.none, name="orders", topic_id=UUID(int=7 << 70), is_internal=False, partitions=(partition,)
    )
    answer = kio.MetadataResponse(
        throttle_time=timedelta(0),
        brokers=(kio.MetadataResponseBroker(node_id=1, host="kafka-1", port=9092, rack="a"),),
        cluster_id="cluster",
        controller_id=1,
        topics=(topic,),
        error_code=ErrorCode.none,
    )
    return framed(answer, 5)[4:]


@pytest.mark.parametrize("api", APIS, ids=str)
def test_every_version_that_is_used_is_one_of_kios(api: Api) -> None:
    for version in range(api.oldest, api.latest + 1):
        if api is API_VERSIONS and version not in (0, 3):
            continue
        assert load_request_schema(api.key, version).__version__ == version
        assert load_response_schema(api.key, version).__version__ == version


def test_a_request_of_a_flexible_version_has_tagged_fields_in_its_header() -> None:
    assert encode_request(
        request(API_VERSIONS, 3, client_software_name="remote-log", client_software_version="0.1.0"), 258, "me"
    ) == bytes.fromhex(
        "0000001f"  # size
        "0012 0003 00000102 0002 6d65 00"  # ApiVersions, version 3, correlation id, client id, no tagged fields
        "0b 72656d6f74652d6c6f67 06 302e312e30 00"  # remote-log, 0.1.0, no tagged fields
    )


def test_a_request_of_an_older_version_has_no_tagged_fields() -> None:
    assert encode_request(request(SASL_HANDSHAKE, 1, mechanism="PLAIN"), 1, "me") == bytes.fromhex(
        "00000013 0011 0001 00000001 0002 6d65 0005 504c41494e"
    )


def test_an_answer_is_decoded_after_its_header() -> None:
    found = read_metadata(decode_answer(memoryview(metadata_frame()), METADATA, 13, 5))
    assert found.cluster_id == "cluster"
    assert found.brokers[1].rack == "a"
    assert str(found.brokers[1].address) == "kafka-1:9092"
    assert found.topics["orders"].partitions[0].leader_epoch == 7
    assert found.topics["orders"].partitions[0].replicas == (1, 2)


def test_an_answer_to_another_request_is_malformed() -> None:
    with pytest.raises(MalformedAnswerError, match=r"\b5\b.*\b6\b"):
        decode_answer(memoryview(metadata_frame()), METADATA, 13, 6)


def test_bytes_after_an_answer_are_malformed() -> None:
    with pytest.raises(MalformedAnswerError, match=r"Metadata version 13 .*\b2 bytes"):
        decode_answer(memoryview(metadata_frame() + b"\0\0"), METADATA, 13, 5)


def test_an_array_that_no_memory_holds_is_malformed() -> None:
    """kio would reserve memory for it, and end the process without."""
    frame = bytearray(metadata_frame())
    brokers = 4 + 1 + 4  # correlation id, tagged fields, throttle time
    frame[brokers : brokers + 1] = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(MalformedAnswerError, match=r"\b4294967294\b.*byte 14\b"):
        decode_answer(memoryview(frame), METADATA, 13, 5)


def test_a_text_that_is_not_utf8_is_malformed() -> None:
    frame = metadata_frame().replace(b"orders", b"\xff" * 6)
    with pytest.raises(MalformedAnswerError, match="Metadata version 13"):
        decode_answer(memoryview(frame), METADATA, 13, 5)


def test_null_instead_of_an_array_is_malformed() -> None:
    frame = bytearray(metadata_frame())
    brokers = 4 + 1 + 4  # correlation id, tagged fields, throttle time
    assert frame[brokers] == 2
    del frame[brokers + 1 : frame.index(b"\x08cluster")]
    frame[brokers] = 0
    with pytest.raises(MalformedAnswerError, match="null"):
        read_metadata(decode_answer(memoryview(frame), METADATA, 13, 5))


@given(st.data())
def test_a_garbled_answer_gives_a_value_or_is_malformed(data: st.DataObject) -> None:
    frame = bytearray(metadata_frame())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]
    with suppress(MalformedAnswerError):
        read_metadata(decode_answer(memoryview(frame), METADATA, 13, 5))


@pytest.mark.parametrize("size", [-1, 0, 3, 101, 0x15030300, (1 << 31) - 1])
def test_an_impossible_size_is_malformed(size: int) -> None:
    with pytest.raises(MalformedAnswerError, match=r"\b100\b.*TLS"):
        decode_size(struct.pack(">i", size), 100)


def test_a_possible_size_is_read() -> None:
    assert [decode_size(struct.pack(">i", size), 100) for size in (4, 100)] == [4, 100]


@given(st.integers(0, (1 << 32) - 1))
def test_varints_are_read(value: int) -> None:
    encoded, left = bytearray(), value
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    reader = cursor(bytes(encoded))
    assert (reader.varint(), reader.left) == (value, 0)


@pytest.mark.parametrize("data", ["ffffffffff01", "ffffffff1f", "ff", ""])
def test_other_varints_are_malformed(data: str) -> None:
    with pytest.raises(MalformedAnswerError):
        cursor(bytes.fromhex(data)).varint()


@pytest.mark.parametrize(("data", "flexible"), [("7fffffff", False), ("fffffffe", False), ("ffffffff0f", True)])
def test_a_length_past_the_end_is_malformed(data: str, flexible: bool) -> None:
    with pytest.raises(MalformedAnswerError, match="a length of"):
        cursor(bytes.fromhex(data)).size(flexible=flexible)


@pytest.mark.parametrize(("data", "flexible"), [("ffffffff", False), ("00", True)])
def test_null_has_no_length(data: str, flexible: bool) -> None:
    assert cursor(bytes.fromhex(data)).size(flexible=flexible) is None


@pytest.mark.parametrize(("data", "flexible"), [("0001ff", False), ("02ff", True), ("ffff", False), ("00", True)])
def test_a_string_that_is_null_or_not_utf8_is_malformed(data: str, flexible: bool) -> None:
    with pytest.raises(MalformedAnswerError):
        cursor(bytes.fromhex(data)).string(flexible=flexible)


def test_unknown_tagged_fields_are_skipped() -> None:
    reader = cursor(bytes.fromhex("02 07 02 ffff 09 00 2a"))
    reader.skip_tagged_fields()
    assert reader.int8() == 42
    assert set(cursor(bytes.fromhex("02 07 02 ffff 09 00")).tagged_fields()) == {7, 9}


def versions_frame() -> tuple[bytes, bytes]:
    """Return an answer to ApiVersions up to its count of tagged fields, and the one field with its tag and size."""
    kio = load_payload_module(API_VERSIONS.key, 3, EntityType.response)
    feature = kio.SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
    answer = kio.ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(), throttle_time=timedelta(0), supported_features=(feature,)
    )
    frame = framed(answer, 5)[4:]
    at = 4 + 2 + 1 + 4  # correlation id, error code, API keys, throttle time
    assert frame[at : at + 2] == b"\x01\x00"
    return frame[:at], frame[at + 1 :]


def test_a_tagged_field_that_is_there_twice_is_malformed() -> None:
    """Only one of them would be walked before kio reserves memory for both."""
    head, features = versions_frame()
    assert decode_answer(memoryview(head + b"\x01" + features), API_VERSIONS, 3, 5).supported_features
    with pytest.raises(MalformedAnswerError, match=r"field 0 .*byte \d+ .*twice"):
        decode_answer(memoryview(head + b"\x02" + features * 2), API_VERSIONS, 3, 5)


def test_a_tagged_field_that_is_longer_than_its_content_is_malformed() -> None:
    """kio would read what is left of it as the next field."""
    head, features = versions_frame()
    longer = features[:1] + bytes([features[1] + 1]) + features[2:] + b"\0"
    with pytest.raises(MalformedAnswerError, match=r"field 0 .*\b1 bytes"):
        decode_answer(memoryview(head + b"\x01" + longer), API_VERSIONS, 3, 5)


def test_the_oldest_fetch_is_not_flexible_and_the_latest_is() -> None:
    """What the header's layout depends on."""
    assert not load_response_schema(FETCH.key, FETCH.oldest).__flexible__
    assert load_response_schema(FETCH.key, FETCH.latest).__flexible__
