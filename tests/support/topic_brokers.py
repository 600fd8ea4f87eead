"""Brokers of a metadata topic, in memory: their answers are what a test chooses, or what was written to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from support.remote_logs import NOW, topic_id
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchedPartition, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.metadata_writer import MetadataWriter, OutgoingRecord

SERVERS = "127.0.0.1:1"
KEPT = TopicConfigs.of({"retention.ms": "-1"})
"""The settings of a topic that keeps everything."""
_LED = (0, 1, 0, (1,), (1,), ())


@dataclass
class Answers:
    """What the brokers answer about `topic`: its settings, and the ends of its partitions, 0 where none is named.

    All leaders have the epoch `leader_epoch`. `epoch_ends` is where an earlier epoch ends, by partition.
    `logs` has the batches of its partitions. An answer is cut off after `most_bytes`, but has one whole batch.
    """

    topic: MetadataTopicId
    configs: TopicConfigs = KEPT
    ends: dict[int, int] = field(default_factory=dict)
    logs: dict[int, list[bytes]] = field(default_factory=dict)
    most_bytes: int = 1 << 20
    brokers: Sequence[int] = ()
    leader_epoch: int = 0
    epoch_ends: dict[int, int] = field(default_factory=dict)
    asked_for_epochs: list[dict[int, int]] = field(default_factory=list)
    """The questions where an epoch ends, by partition."""
    asked_offsets: int = 0
    """How often the brokers were asked for offsets."""
    before_offsets: Callable[[], None] | None = None
    """What happens, once, before the brokers answer with offsets."""

    def give(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client of a cluster get these answers."""
        monkeypatch.setattr(ClusterClient, "metadata", lambda *_, **__: self._metadata())
        monkeypatch.setattr(ClusterClient, "topic_configs", self._configs)
        monkeypatch.setattr(ClusterClient, "list_offsets", self._offsets)
        monkeypatch.setattr(ClusterClient, "fetch", self._fetch)
        monkeypatch.setattr(ClusterClient, "log_sizes", lambda *_, **__: {})
        monkeypatch.setattr(ClusterClient, "offsets_for_leader_epochs", self._epochs)

    def write(self, partition: int, *batches: bytes) -> None:
        """Append to a partition."""
        self.logs.setdefault(partition, []).extend(batches)
        self.ends[partition] = read_batch_header(batches[-1]).next_offset

    def create_again(self) -> None:
        """Delete the topic and create it under its name, empty."""
        self.topic = replace(self.topic, topic_id="topic-id-created-againA")
        self.ends = {}

    def _metadata(self) -> ClusterMetadata:
        partitions = {number: PartitionMetadata(number, *_LED) for number in range(self.topic.partitions)}
        topic = TopicMetadata(self.topic.name, self.topic.topic_id, 0, False, partitions)
        brokers = {each: Broker(each, BrokerAddress("127.0.0.1", 1)) for each in self.brokers}
        return ClusterMetadata(self.topic.cluster_id, 1, brokers, {topic.name: topic})

    def _configs(self, topics: Sequence[str], **_: object) -> dict[str, TopicConfigs]:
        return dict.fromkeys(topics, self.configs)

    def _offsets(self, wanted: Mapping[TopicPartition, int], **_: object) -> dict[TopicPartition, ListedOffset]:
        self.asked_offsets += 1
        before, self.before_offsets = self.before_offsets, None
        if before is not None:
            before()
        return {
            each: ListedOffset(
                self.ends.get(each.partition, 0) if spec == OffsetSpec.LATEST else 0, -1, self.leader_epoch
            )
            for each, spec in wanted.items()
        }

    def _epochs(self, wanted: Mapping[TopicPartition, int], **_: object) -> dict[TopicPartition, EpochEnd]:
        self.asked_for_epochs.append({each.partition: epoch for each, epoch in wanted.items()})
        return {each: EpochEnd(epoch, self.epoch_ends.get(each.partition, 0)) for each, epoch in wanted.items()}

    def _fetch(self, positions: Sequence[FetchPosition], *_: object, **__: object) -> FetchAnswer:
        [asked] = positions
        assert (asked.topic, asked.topic_id) == (self.topic.name, self.topic.topic_id)
        log, end = self.logs.get(asked.partition, []), self.ends.get(asked.partition, 0)
        batches = [each for each in log if read_batch_header(each).next_offset > asked.offset]
        records = b"".join(batches)[: max([self.most_bytes, *map(len, batches[:1])])]
        found = FetchedPartition(asked.topic, asked.partition, 0, end, end, 0, (), -1, memoryview(records))
        return FetchAnswer(0, (found,))


@dataclass
class MemoryTopic(Answers):
    """Brokers that take records, each a batch of its own. A reader mostly has to fetch more than once."""

    most_bytes: int = 1000

    def give(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client of a cluster get these answers, and every writer write here."""
        super().give(monkeypatch)
        monkeypatch.setattr(MetadataWriter, "write", lambda _, topic, records: self._write(topic, records))

    def create(self, name: str) -> None:
        """Create another topic, which replaces this one."""
        self.topic = replace(self.topic, name=name, topic_id=topic_id(name))
        self.ends, self.logs = {}, {}

    def _write(self, topic: MetadataTopicId, records: Sequence[OutgoingRecord]) -> list[int]:
        assert topic == self.topic
        offsets = []
        for each in records:
            offset = self.ends.get(each.partition, 0)
            self.write(each.partition, encode_batch([Record(offset, NOW, None, each.value)]))
            offsets.append(offset)
        return offsets
