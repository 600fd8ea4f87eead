from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.remote_logs import (
    NOW,
    ORDERS_0,
    a_copied_remote_log,
    begin,
    copy,
    end_below,
    partition_of,
    ranges,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    earliest_log_offset,
    list_remote_segments,
    register_partitions,
)
from tiered_storage.remote_log.model import TopicIdPartition


class _OwnManager:
    """Answers by itself what it is asked for."""

    def __init__(self) -> None:
        self.registered: list[TopicIdPartition] = []

    def earliest_log_offset(self, partition: TopicIdPartition) -> int | None:
        return 7 if partition == ORDERS_0 else None

    def register_partitions(self, partitions: Sequence[TopicIdPartition]) -> None:
        self.registered += partitions


def test_segments_are_listed_from_an_offset_on(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(2)
    with files.open() as remote_log:
        begin(remote_log)
        metadata = remote_log.context.segments

        assert ranges(list_remote_segments(metadata, ORDERS_0)) == [(0, 9), (10, 19), (20, 29)]
        assert ranges(list_remote_segments(metadata, ORDERS_0, 19)) == [(10, 19), (20, 29)]
        assert ranges(list_remote_segments(metadata, ORDERS_0, 30)) == []


def test_the_earliest_offset_is_that_of_the_remote_log(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        metadata = remote_log.context.segments

        assert earliest_log_offset(metadata, partition_of("unknown")) is None
        assert earliest_log_offset(metadata, ORDERS_0) == 0
        end_below(remote_log, 15)
        assert earliest_log_offset(metadata, ORDERS_0) == 15


def test_a_managers_own_answers_count() -> None:
    own: Any = _OwnManager()

    assert earliest_log_offset(own, ORDERS_0) == 7
    register_partitions(own, [ORDERS_0])
    assert own.registered == [ORDERS_0]


def test_what_is_before_a_time_is_cleaned_up_by_whole_segments(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        deletions = remote_log.deletions
        assert deletions.plan_cleanup_until(ORDERS_0, NOW + 9_000) is None
        plan = deletions.plan_cleanup_until(ORDERS_0, NOW + 25_000)
        assert plan is not None
        deletions.mark_expired([plan], "test")

        assert earliest_log_offset(remote_log.context.segments, ORDERS_0) == 20
        assert copy(remote_log).is_whole
