"""Logs as the brokers of a running cluster show them to a snapshot, made up for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog


@dataclass(frozen=True, slots=True)
class Logs:
    """A source with logs that only their brokers see."""

    logs: tuple[PartitionLog, ...]
    is_configured: bool = True

    def partitions(self) -> Iterator[PartitionLog]:
        yield from self.logs


def seen_at_brokers(
    partition: TopicIdPartition,
    stable_end: int,
    first_at: int,
    configs: TopicConfigs | None = None,
    **unsegmented: Any,
) -> PartitionLog:
    """Return a log as its brokers show it: up to `stable_end`, 100 bytes an offset, records since `first_at`."""
    rules = RollRules(1000, 60_000, 1 << 20, 4096, 1 << 20)
    answers: dict[str, Any] = {
        "offset_at": lambda _: 0,
        "bytes_an_offset": lambda _: 100.0,
        "timestamp_at": lambda _: first_at,
        "committed_offsets": lambda _: {},
    }
    unseen = UnsegmentedLog(rules, **{**answers, **unsegmented})
    return PartitionLog(
        partition, str(partition), (), 0, stable_end, (), high_watermark=stable_end, unsegmented=unseen, configs=configs
    )
