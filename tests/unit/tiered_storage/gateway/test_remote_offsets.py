from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from support.command_line import mentions
from tiered_storage.errors import MetadataUnavailableError, TieredStorageError
from tiered_storage.gateway.allowed_apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tiered_storage.gateway.broker_questions import BrokerQuestions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_offsets import RemoteOffsets
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_answer, entity, request_module
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from unit.tiered_storage.gateway.brokers import TOPIC, ScriptedBroker

BROKER_START, REMOTE_START = 100, 20
EPOCHS = (EpochEntry(0, 0), EpochEntry(1, 40), EpochEntry(2, 70))
STORAGE_ERROR = 56


class Remote:
    """A remote log from REMOTE_START on, or the `failure` of whoever asks."""

    def __init__(
        self, failure: TieredStorageError | None = None, epochs: tuple[EpochEntry, ...] = (EpochEntry(0, 0),)
    ) -> None:
        self.failure = failure
        self.epochs = epochs

    async def snapshot(self, partition: TopicIdPartition, _: int) -> PartitionSnapshot:
        if self.failure is not None:
            raise self.failure
        epochs = self.epochs
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, f"{1:022}"), REMOTE_START, BROKER_START - 1, 1, 1, 1, epochs,
            SegmentState.COPY_SEGMENT_FINISHED,
        )  # fmt: skip
        return PartitionSnapshot(partition, None, Coverage.of([segment], epochs), 0, epochs)


def remote_offsets(broker: ScriptedBroker, remote: Remote) -> RemoteOffsets:
    partitions = RemotePartitions(cast(RemoteLogReader, remote), "a cluster", 1 << 20, MemoryBudget(1 << 20))
    return RemoteOffsets(partitions, BrokerQuestions(broker), ReadFailures(GatewayMetrics()))


def epoch_end(epoch: int, of_broker: tuple[int, int]) -> tuple[int, int]:
    """Answer an OffsetForLeaderEpoch for `epoch` of partition 0; the broker answers `of_broker`: an epoch, its end."""
    version = OFFSET_FOR_LEADER_EPOCH.latest
    kio = load_payload_module(OFFSET_FOR_LEADER_EPOCH.key, version, EntityType.response)
    asked = request_module(OFFSET_FOR_LEADER_EPOCH, version)
    found = entity(
        kio.EpochEndOffset, error_code=ErrorCode.none, partition=0, leader_epoch=of_broker[0], end_offset=of_broker[1]
    )
    topic = kio.OffsetForLeaderTopicResult(topic=TOPIC, partitions=(found,))
    answer = entity(kio.OffsetForLeaderEpochResponse, throttle_time=timedelta(), topics=(topic,))
    wanted = entity(asked.OffsetForLeaderPartition, partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    topic = asked.OffsetForLeaderTopic(topic=TOPIC, partitions=(wanted,))
    request = entity(asked.OffsetForLeaderEpochRequest, replica_id=-1, topics=(topic,))
    offsets = remote_offsets(ScriptedBroker(), Remote(epochs=EPOCHS))
    header = RequestHeader(OFFSET_FOR_LEADER_EPOCH, version, 5, "", 0)
    frame = memoryview(bytearray(encode_answer(answer, 5)))
    [buffer] = asyncio.run(offsets.offsets_for_leader_epochs(frame, header, request))
    [topic] = decode_answer(memoryview(buffer)[4:], OFFSET_FOR_LEADER_EPOCH, version, 5).topics
    [partition] = topic.partitions
    return int(partition.leader_epoch), int(partition.end_offset)


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
    offsets = remote_offsets(broker, remote)
    header = RequestHeader(LIST_OFFSETS, version, 5, "", 0)
    [buffer] = asyncio.run(offsets.list_offsets(frame, header, request))
    changed = decode_answer(memoryview(buffer)[4:], LIST_OFFSETS, version, 5)
    [[partition]] = [each.partitions for each in changed.topics]
    return partition


@pytest.mark.parametrize("version", range(LIST_OFFSETS.oldest, LIST_OFFSETS.latest + 1))
def test_the_first_offset_is_the_remote_one_in_every_version(version: int) -> None:
    found = earliest(version, ScriptedBroker(), Remote())

    assert (int(found.error_code), found.offset) == (0, REMOTE_START)


def test_the_start_of_a_topic_that_the_broker_does_not_describe_is_a_storage_error() -> None:
    found = earliest(LIST_OFFSETS.latest, ScriptedBroker(topic_code=5), Remote())

    assert int(found.error_code) == STORAGE_ERROR


def test_the_start_of_an_unavailable_remote_log_is_a_storage_error(caplog: pytest.LogCaptureFixture) -> None:
    found = earliest(LIST_OFFSETS.latest, ScriptedBroker(), Remote(MetadataUnavailableError("locked")))

    assert int(found.error_code) == STORAGE_ERROR
    assert mentions(caplog.text, "orders-0", "locked")


@pytest.mark.parametrize(
    ("epoch", "of_broker", "expected"),
    [
        pytest.param(0, (0, BROKER_START), (0, 40), id="forgotten-by-the-broker"),
        pytest.param(1, (1, BROKER_START), (1, 70), id="a-later-one-forgotten-by-the-broker"),
        pytest.param(0, (0, 30), (0, 30), id="truncated-by-an-unclean-election"),
        pytest.param(1, (0, 30), (0, 30), id="removed-by-an-unclean-election"),
        pytest.param(2, (2, 150), (2, 150), id="the-latest-remote-one"),
        pytest.param(3, (3, 180), (3, 180), id="the-broker-s-own"),
    ],
)
def test_an_epoch_ends_where_the_first_tier_ends_it(
    epoch: int, of_broker: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert epoch_end(epoch, of_broker) == expected
