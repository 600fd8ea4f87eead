"""Targets: answers in Kafka's protocol, after the frame's size."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from fuzz.target import Target
from tiered_storage.errors import MalformedAnswerError, SourceClusterError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import (
    API_VERSIONS,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    ApiVersions,
)
from tiered_storage.kafka_wire.connections.frames import decode_answer, entity
from tiered_storage.kafka_wire.controller_clock import read_controller_clock
from tiered_storage.kafka_wire.fetch import FetchDecoder, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition, read_groups, read_metadata
from tiered_storage.kafka_wire.partition_requests import (
    CommittedOffsetsOfGroup,
    DeleteRecords,
    ListOffsets,
    OffsetsForLeaderEpochs,
    read_log_sizes,
)
from tiered_storage.kafka_wire.rights import read_cluster_rights
from tiered_storage.kafka_wire.topic_configs import read_topic_configs

CORRELATION_ID = 1
TOPIC_ID = UUID(int=7 << 70)
STRING = "segment.bytes"
NUMBER = 1
"""With TOPIC_ID, what fields of filled entities have."""
_DECODER = FetchDecoder([FetchPosition("orders", 0, 0, topic_id=encode_uuid(TOPIC_ID.bytes))])
_VERSIONS = (FETCH.oldest, 12, 13, FETCH.latest)
"""Without tagged fields, with them, by topic id, and with the latest of all."""


def _framed(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    has_tags = message.__flexible__ and message.__api_key__ != API_VERSIONS.key
    return struct.pack(">i", CORRELATION_ID) + (b"\0" if has_tags else b"") + buffer.getvalue()


def _fetched(content: bytes) -> None:
    """The first byte chooses the version."""
    if not content:
        return
    with suppress(MalformedAnswerError):
        found = _DECODER(memoryview(content)[1:], FETCH, _VERSIONS[content[0] % len(_VERSIONS)], CORRELATION_ID)
        assert sum(len(each.records) for each in found.partitions) <= len(content)
        assert all((each.topic, each.partition) == ("orders", 0) for each in found.partitions)


def _fetched_seeds() -> Iterable[bytes]:
    for number, version in enumerate(_VERSIONS):
        kio = load_payload_module(FETCH.key, version, EntityType.response)
        partition = kio.PartitionData(
            partition_index=0,
            error_code=ErrorCode.none,
            high_watermark=10,
            aborted_transactions=(kio.AbortedTransaction(producer_id=1, first_offset=2),),
            records=b"records",
            **({"diverging_epoch": kio.EpochEndOffset(epoch=1, end_offset=2)} if version > FETCH.oldest else {}),
        )
        topic = entity(kio.FetchableTopicResponse, topic="orders", topic_id=TOPIC_ID, partitions=(partition,))
        answer = kio.FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, responses=(topic,))
        yield bytes([number]) + _framed(answer)


def _described(content: bytes) -> None:
    with suppress(MalformedAnswerError):
        read_metadata(decode_answer(memoryview(content), METADATA, METADATA.latest, CORRELATION_ID))


def _described_seeds() -> Iterable[bytes]:
    kio = load_payload_module(METADATA.key, METADATA.latest, EntityType.response)
    partition = kio.MetadataResponsePartition(
        error_code=ErrorCode.none, partition_index=0, leader_id=1, replica_nodes=(1, 2), isr_nodes=(1,)
    )
    topic = kio.MetadataResponseTopic(
        error_code=ErrorCode.none, name="orders", topic_id=TOPIC_ID, partitions=(partition,)
    )
    yield _framed(
        kio.MetadataResponse(
            throttle_time=timedelta(0),
            brokers=(kio.MetadataResponseBroker(node_id=1, host="kafka-1", port=9092, rack="a"),),
            cluster_id="cluster",
            topics=(topic,),
            error_code=ErrorCode.none,
        )
    )


_READERS: tuple[tuple[Api, Callable[[Any], object]], ...] = (
    (API_VERSIONS, partial(ApiVersions.of, "kafka-1:9092")),
    (LIST_OFFSETS, lambda answer: list(ListOffsets({}).read(answer))),
    (OFFSET_FOR_LEADER_EPOCH, lambda answer: list(OffsetsForLeaderEpochs({}).read(answer))),
    (DELETE_RECORDS, lambda answer: list(DeleteRecords({}).read(answer))),
    (OFFSET_FETCH, lambda answer: list(CommittedOffsetsOfGroup(TopicPartition("orders", 0), "me").read(answer))),
    (LIST_GROUPS, read_groups),
    (DESCRIBE_QUORUM, read_controller_clock),
    (DESCRIBE_CLUSTER, read_cluster_rights),
    (DESCRIBE_CONFIGS, read_topic_configs),
    (DESCRIBE_LOG_DIRS, read_log_sizes),
    (SASL_HANDSHAKE, lambda answer: answer.mechanisms),
    (SASL_AUTHENTICATE, lambda answer: answer.session_lifetime.total_seconds()),
)
_ANSWERS = [(api, version, read) for api, read in _READERS for version in sorted({api.oldest, api.latest})]
_VALUES: dict[str, Any] = {
    "bool": False,
    "bytes": b"bytes",
    "datetime_i64": datetime(2026, 1, 1, tzinfo=UTC),
    "error_code": ErrorCode.none,
    "records": b"records",
    "string": STRING,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(hours=1),
    "uuid": TOPIC_ID,
}
"""Values of fields by kio's types; the others are numbers."""


def _answered(content: bytes) -> None:
    """The first byte chooses the request and its version."""
    if not content:
        return
    api, version, read = _ANSWERS[content[0] % len(_ANSWERS)]
    with suppress(SourceClusterError):
        read(decode_answer(memoryview(content)[1:], api, version, CORRELATION_ID))


def _answered_seeds() -> Iterable[bytes]:
    for number, (api, version, _) in enumerate(_ANSWERS):
        yield bytes([number]) + _framed(filled(load_response_schema(api.key, version)))


def filled(kind: Any) -> Any:
    """Return kio's entity of `kind` with a value in each field, and one element in each array."""
    hints = get_type_hints(kind)
    return kind(**{each.name: _value(each.metadata.get("kafka_type", ""), hints[each.name]) for each in fields(kind)})


def _value(name: str, hint: Any) -> Any:
    alternatives = [hint] if get_origin(hint) is tuple else get_args(hint) or [hint]
    array = next((each for each in alternatives if get_origin(each) is tuple), None)
    if array is not None:
        return (_value(name, get_args(array)[0]),)
    return _VALUES.get(name, NUMBER) if name else filled(alternatives[0])


WIRE_TARGETS = (
    Target("fetch_answer", _fetched, _fetched_seeds),
    Target("metadata_answer", _described, _described_seeds),
    Target("broker_answer", _answered, _answered_seeds),
)
