from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.errors import MetadataUnavailableError, TieredStorageError
from tiered_storage.gateway.allowed_apis import LIST_OFFSETS
from tiered_storage.gateway.broker_questions import BrokerQuestions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.metrics import GatewayMetrics
from tiered_storage.gateway.remote_offsets import RemoteOffsets
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_answer, entity, request_module
from tiered_storage.kafka_wire.partition_requests import OffsetSpec
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_view import PartitionView
from unit.tiered_storage.gateway.brokers import TOPIC, ScriptedBroker

BROKER_START, REMOTE_START = 100, 20
STORAGE_ERROR = 56


class Remote:
    """A remote log from REMOTE_START on, or the `failure` of whoever asks."""

    def __init__(self, failure: TieredStorageError | None = None) -> None:
        self.failure = failure

    async def view(self, partition: TopicIdPartition, _: int) -> PartitionView:
        if self.failure is not None:
            raise self.failure
        epochs = (EpochEntry(0, 0),)
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, f"{1:022}"), REMOTE_START, BROKER_START - 1, 1, 1, 1, epochs,
            SegmentState.COPY_SEGMENT_FINISHED,
        )  # fmt: skip
        return PartitionView(partition, None, Coverage.of([segment], epochs), 0, epochs)


def earliest(version: int, broker: ScriptedBroker, remote: Remote) -> Any:
    """Answer a ListOffsets of `version` for the first offset of partition 0; the broker has its own."""
    kio, asked = (
        load_payload_module(LIST_OFFSETS.key, version, EntityType.response),
        request_module(LIST_OFFSETS, version),
    )
    found = entity(
        kio.ListOffsetsPartitionResponse,
        partition_index=0,
        error_code=ErrorCode.none,
        timestamp=-1,
        offset=BROKER_START,
    )
    topic = kio.ListOffsetsTopicResponse(name=TOPIC, partitions=(found,))
    answer = entity(kio.ListOffsetsResponse, throttle_time=timedelta(), topics=(topic,))
    frame = memoryview(bytearray(encode_answer(answer, 5)))
    wanted = entity(asked.ListOffsetsPartition, partition_index=0, timestamp=int(OffsetSpec.EARLIEST))
    topic = asked.ListOffsetsTopic(name=TOPIC, partitions=(wanted,))
    request = entity(asked.ListOffsetsRequest, replica_id=-1, isolation_level=0, timeout=timedelta(), topics=(topic,))
    partitions = RemotePartitions(cast(RemoteLogReader, remote), "a cluster", 1 << 20)
    offsets = RemoteOffsets(partitions, BrokerQuestions(broker), ReadFailures(GatewayMetrics()))
    header = RequestHeader(LIST_OFFSETS, version, 5, "", 0)
    [piece] = asyncio.run(offsets.list_offsets(frame, header, request))
    changed = decode_answer(memoryview(piece)[4:], LIST_OFFSETS, version, 5)
    [[partition]] = [each.partitions for each in changed.topics]
    return partition


@pytest.mark.parametrize("version", range(LIST_OFFSETS.oldest, LIST_OFFSETS.latest + 1))
def test_the_first_offset_is_the_remote_one_in_every_version(version: int) -> None:
    found = earliest(version, ScriptedBroker(), Remote())

    assert (int(found.error_code), found.offset) == (0, REMOTE_START)


def test_a_topic_that_the_broker_does_not_describe_begins_nowhere() -> None:
    found = earliest(LIST_OFFSETS.latest, ScriptedBroker(topic_code=5), Remote())

    assert int(found.error_code) == STORAGE_ERROR


def test_a_remote_log_that_cannot_be_asked_begins_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    found = earliest(LIST_OFFSETS.latest, ScriptedBroker(), Remote(MetadataUnavailableError("locked")))

    assert int(found.error_code) == STORAGE_ERROR
    assert "orders-0: the remote log cannot be asked for offsets: locked" in caplog.text
