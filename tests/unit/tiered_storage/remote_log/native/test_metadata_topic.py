"""Read the metadata topic from brokers whose answers have no room for every partition, and from damaged logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.remote_logs import NOW
from tiered_storage.errors import SourceClusterError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset, OffsetSpec
from tiered_storage.remote_log.native.metadata_topic import TOPIC, BrokersMetadataTopic

BATCHES = 4


class OneBroker:
    """Brokers' answers about the topic: each Fetch has one batch at most, of the first partition that was asked for."""

    settings = SimpleNamespace(bootstrap=["a-broker:9092"])

    def __init__(self, partitions: int, per_answer: int = 1) -> None:
        self.logs = {number: [batch_at(offset) for offset in range(BATCHES)] for number in range(partitions)}
        self.per_answer = per_answer

    def metadata(self, topics: Sequence[str]) -> Any:
        found = SimpleNamespace(error_code=0, partitions=self.logs)
        return SimpleNamespace(topics=dict.fromkeys(topics, found))

    def list_offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ListedOffset]:
        earliest = int(OffsetSpec.EARLIEST)
        return {each: ListedOffset(0 if spec == earliest else BATCHES, -1, -1) for each, spec in asked.items()}

    def fetch(self, positions: Iterable[FetchPosition], _: FetchBuffer, limits: FetchLimits) -> FetchAnswer:
        del limits
        found = [
            self.logs[each.partition][each.offset] if at < self.per_answer else b"" for at, each in enumerate(positions)
        ]
        return FetchAnswer(
            0.0,
            tuple(
                FetchedPartition(TOPIC, each.partition, 0, BATCHES, BATCHES, 0, (), -1, memoryview(raw))
                for each, raw in zip(positions, found, strict=True)
            ),
        )

    def close(self) -> None:
        """Nothing is open."""


def test_partitions_that_an_answer_has_no_room_for_are_asked_for_again() -> None:
    topic = BrokersMetadataTopic(cast(ClusterClient, OneBroker(partitions=3)))

    found = {(record.partition, record.offset) for record in topic.read({})}

    assert found == {(number, offset) for number in range(3) for offset in range(BATCHES)}


def test_a_batch_that_never_comes_is_an_error() -> None:
    topic = BrokersMetadataTopic(cast(ClusterClient, OneBroker(partitions=2, per_answer=0)))

    with pytest.raises(SourceClusterError, match="partition 0 at 0, partition 1 at 0"):
        list(topic.read({}))


def batch_at(offset: int) -> bytes:
    return bytes(encode_batch([Record(offset, NOW, None, b"a value")]))
