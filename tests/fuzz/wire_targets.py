"""Targets: answers in Kafka's protocol, after the frame's size."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from fuzz.target import Target
from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH, METADATA
from tiered_storage.kafka_wire.connections.frames import decode_answer, entity
from tiered_storage.kafka_wire.fetch import FetchDecoder, FetchPosition
from tiered_storage.kafka_wire.metadata import read_metadata

CORRELATION_ID = 1
_TOPIC_ID = UUID(int=7 << 70)
_DECODER = FetchDecoder([FetchPosition("orders", 0, 0, topic_id=encode_uuid(_TOPIC_ID.bytes))])
_VERSIONS = (FETCH.oldest, 12, 13, FETCH.latest)
"""Without tagged fields, with them, by topic id, and with the latest of all."""


def _framed(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return struct.pack(">i", CORRELATION_ID) + (b"\0" if message.__flexible__ else b"") + buffer.getvalue()


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
        topic = entity(kio.FetchableTopicResponse, topic="orders", topic_id=_TOPIC_ID, partitions=(partition,))
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
        error_code=ErrorCode.none, name="orders", topic_id=_TOPIC_ID, partitions=(partition,)
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


WIRE_TARGETS = (
    Target("fetch_answer", _fetched, _fetched_seeds),
    Target("metadata_answer", _described, _described_seeds),
)
