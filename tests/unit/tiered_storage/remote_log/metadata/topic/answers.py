"""Brokers of a metadata topic, whose answers a test chooses; they have no records to fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId

SERVERS = "127.0.0.1:1"
KEPT = TopicConfigs.of({"retention.ms": "-1"})
"""The settings of a topic that keeps everything."""
_LED = (0, 1, 0, (1,), (1,), ())


@dataclass
class Answers:
    """What the brokers answer about `topic`: its settings, and the ends of its partitions, 0 where none is named."""

    topic: MetadataTopicId
    configs: TopicConfigs = KEPT
    ends: dict[int, int] = field(default_factory=dict)
    before_offsets: Callable[[], None] | None = None
    """What happens, once, before the brokers answer with offsets."""

    def give(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client of a cluster get these answers."""
        monkeypatch.setattr(ClusterClient, "metadata", lambda *_, **__: self._metadata())
        monkeypatch.setattr(ClusterClient, "topic_configs", self._configs)
        monkeypatch.setattr(ClusterClient, "list_offsets", self._offsets)
        monkeypatch.setattr(ClusterClient, "log_sizes", lambda *_, **__: {})
        monkeypatch.setattr(
            ClusterClient, "offsets_for_leader_epochs", lambda _, asked, **__: dict.fromkeys(asked, EpochEnd(0, 0))
        )

    def create_again(self) -> None:
        """Delete the topic and create it under its name, empty."""
        self.topic = replace(self.topic, topic_id="topic-id-created-againA")
        self.ends = {}

    def _metadata(self) -> ClusterMetadata:
        partitions = {number: PartitionMetadata(number, *_LED) for number in range(self.topic.partitions)}
        topic = TopicMetadata(self.topic.name, self.topic.topic_id, 0, False, partitions)
        return ClusterMetadata(self.topic.cluster_id, 1, {}, {topic.name: topic})

    def _configs(self, topics: Sequence[str], **_: object) -> dict[str, TopicConfigs]:
        return dict.fromkeys(topics, self.configs)

    def _offsets(self, wanted: Mapping[TopicPartition, int], **_: object) -> dict[TopicPartition, ListedOffset]:
        before, self.before_offsets = self.before_offsets, None
        if before is not None:
            before()
        return {
            each: ListedOffset(self.ends.get(each.partition, 0) if spec == OffsetSpec.LATEST else 0, -1, 0)
            for each, spec in wanted.items()
        }
