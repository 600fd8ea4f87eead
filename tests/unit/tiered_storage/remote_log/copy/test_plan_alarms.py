"""The alarm of a retention that is too short, also of a partition that no plan can read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, a_remote_log
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog


def test_a_partition_that_cannot_be_read_still_has_the_alarm_of_its_short_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(_: int) -> float:
        raise CorruptRecordError("orders-0", 0, "no batch")

    def without_segments(log: PartitionLog) -> PartitionLog:
        rules = RollRules(1000, 100_000, 1 << 20, 4096, 1 << 20)
        unsegmented = UnsegmentedLog(rules, lambda _: 0, sample, lambda _: -1, lambda _: {})
        configs = TopicConfigs.of({"retention.ms": "60000"})
        return replace(log, segments=(), unsegmented=unsegmented, configs=configs)

    with a_remote_log(tmp_path).open() as remote_log:
        logs = [log for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
        shown = [without_segments(log) for log in logs if log.topic_id_partition == ORDERS_0]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(shown))
        plan = remote_log.plan_copy()

    assert [each.partition for each in plan.unreadable] == [str(ORDERS_0)]
    assert [each.partition for each in plan.alarms] == ["orders"]
