from __future__ import annotations

from collections.abc import Mapping

import pytest

from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import LIST_OFFSETS
from tiered_storage.kafka_wire.connections.error_codes import LEADER_NOT_AVAILABLE, PartitionError
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_offsets import ask_offsets
from tiered_storage.kafka_wire.partition_requests import ListedOffset

LED, LEADERLESS = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_partition_without_a_leader_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[TopicPartition]] = []
    error = PartitionError("orders", 1, LIST_OFFSETS, LEADER_NOT_AVAILABLE)

    def list_offsets(
        _: ClusterClient, wanted: Mapping[TopicPartition, int], **__: object
    ) -> dict[TopicPartition, ListedOffset | PartitionError]:
        asked.append(sorted(wanted))
        return {each: error if each == LEADERLESS else ListedOffset(7, -1, 0) for each in wanted}

    monkeypatch.setattr(ClusterClient, "list_offsets", list_offsets)
    client = ClusterClient.by_properties({"bootstrap.servers": "127.0.0.1:9092"})

    found = ask_offsets(client, [LED, LEADERLESS])

    assert found[LEADERLESS] == error
    assert asked == [[LED, LEADERLESS], [LED], [LED]]
