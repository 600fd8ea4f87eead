from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from support.remote_logs import ORDERS_0
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.source.fetch_source import FetchSource


def test_a_look_at_a_partition_gives_each_call_the_seconds_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_of: dict[str, set[float]] = {}
    led = PartitionMetadata(0, 0, 1, 0, (1,), (1,), ())
    topics = {"orders": TopicMetadata("orders", ORDERS_0.topic_id, 0, False, {0: led})}
    answers: dict[str, Any] = {
        "metadata": lambda _: ClusterMetadata(ORDERS_0.cluster_id, 1, {}, topics),
        "topic_configs": lambda asked: dict.fromkeys(asked, TopicConfigs.of({"retention.ms": "-1"})),
        "list_offsets": lambda asked: dict.fromkeys(asked, ListedOffset(7, -1, 0)),
        "offsets_for_leader_epochs": lambda asked: dict.fromkeys(asked, EpochEnd(0, 7)),
    }

    def answered(name: str) -> Any:
        def answer(_: ClusterClient, asked: Iterable[Any], *, seconds: float, **__: object) -> Any:
            seconds_of.setdefault(name, set()).add(seconds)
            return answers[name](asked)

        return answer

    for name in answers:
        monkeypatch.setattr(ClusterClient, name, answered(name))

    source = FetchSource({"bootstrap.servers": "127.0.0.1:1"}, None, 1 << 20, call_seconds=3.0)

    assert source.partition(ORDERS_0) is not None
    assert seconds_of == {name: {3.0} for name in answers}
