from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from support.command_line import mentions
from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import LIST_OFFSETS
from tiered_storage.kafka_wire.connections.error_codes import LEADER_NOT_AVAILABLE, PartitionError
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets, ask_lineages, ask_offsets
from tiered_storage.kafka_wire.partition_requests import ListedOffset, ListOffsets

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


@pytest.mark.parametrize("second", [6, 7, 8])
def test_a_log_start_that_goes_back_is_an_error(monkeypatch: pytest.MonkeyPatch, second: int) -> None:
    """Without a checksum the first answer may be wrong: copies over gaps would leave out what is there."""
    led = PartitionMetadata(0, 0, 1, 0, (1,), (1,), ())
    topics = {"orders": TopicMetadata("orders", None, 0, False, {0: led})}
    cluster = ClusterMetadata("lab", 1, {}, topics)
    monkeypatch.setattr(
        ClusterClient, "offsets_for_leader_epochs", lambda _, asked, **__: dict.fromkeys(asked, EpochEnd(0, 9))
    )
    monkeypatch.setattr(
        ClusterClient, "list_offsets", lambda _, asked, **__: dict.fromkeys(asked, ListedOffset(second, -1, 0))
    )
    client = ClusterClient.by_properties({"bootstrap.servers": "127.0.0.1:9092"})

    found = ask_lineages(client, cluster, {LED: PartitionOffsets(7, 9, 9)})[LED]

    if second >= 7:
        assert found == (EpochEntry(0, second),)
        return
    assert isinstance(found, PartitionError)
    assert found.retriable
    assert mentions(str(found), "orders-0", "log start 7", "next one 6")


@pytest.mark.parametrize("end", [8, 9])
def test_a_leader_elected_after_its_epoch_was_looked_up_is_an_error(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """Otherwise the lineage would give its records the epoch of the leader before."""
    led = PartitionMetadata(0, 0, 1, 3, (1,), (1,), ())
    topics = {"orders": TopicMetadata("orders", None, 0, False, {0: led})}
    ends = {3: EpochEnd(3, end), 2: EpochEnd(2, 5)}
    monkeypatch.setattr(
        ClusterClient, "offsets_for_leader_epochs", lambda _, asked, **__: {each: ends[asked[each]] for each in asked}
    )
    monkeypatch.setattr(
        ClusterClient, "list_offsets", lambda _, asked, **__: dict.fromkeys(asked, ListedOffset(5, -1, 3))
    )
    client = ClusterClient.by_properties({"bootstrap.servers": "127.0.0.1:9092"})

    found = ask_lineages(client, ClusterMetadata("lab", 1, {}, topics), {LED: PartitionOffsets(5, 12, 9)})[LED]

    if end >= 9:
        assert found == (EpochEntry(3, 5),)
        return
    assert isinstance(found, PartitionError)
    assert found.retriable
    assert mentions(str(found), "orders-0", "epoch 3", "offset 8", "stable offset 9")


@pytest.mark.parametrize("wrong", [{"offset": -(1 << 63) + 7}, {"timestamp": -2}, {"leader_epoch": -9}], ids=str)
def test_a_number_that_is_no_offset_is_malformed(wrong: dict[str, int]) -> None:
    kio: Any = load_payload_module(LIST_OFFSETS.key, LIST_OFFSETS.latest, EntityType.response)
    given = {"partition_index": 0, "error_code": ErrorCode.none, "offset": 7, "timestamp": -1, "leader_epoch": 0}
    for values in (given, given | wrong):
        partition = kio.ListOffsetsPartitionResponse(**values)
        topics = (kio.ListOffsetsTopicResponse(name="orders", partitions=(partition,)),)
        answer = kio.ListOffsetsResponse(throttle_time=timedelta(0), topics=topics)
        if values == given:
            assert list(ListOffsets({}).read(answer)) == [(LED, 0, ListedOffset(7, -1, 0))]
            continue
        with pytest.raises(MalformedAnswerError, match="orders-0"):
            list(ListOffsets({}).read(answer))
