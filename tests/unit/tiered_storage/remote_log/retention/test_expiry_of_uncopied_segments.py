"""Total retention also ends what was never copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.metadata_stores import a_segment, a_step
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    copy,
    flip_bit,
    held_by,
    location_of,
    offsets_read,
    record,
    segments_of,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)
from tiered_storage.remote_log.retention.expiry import plan_expiry
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage.settings.topics import TopicSettings
from unit.tiered_storage.remote_log.retention.expiries import TOTAL, expire, keeping


def the_store_is_away(root: Path, **limits: Any) -> RemoteLogFiles:
    """Lay out three segments that were never copied, of a topic with these limits."""
    topic = {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}
    return a_remote_log(root, topics={"orders": topic})


@pytest.mark.parametrize(
    ("limits", "now", "log_start"),
    [
        ({"retention_ms": 60_000}, record(9).timestamp + 60_000, None),
        ({"retention_ms": 60_000}, record(9).timestamp + 60_001, 10),
        ({"retention_ms": 60_000}, record(29).timestamp + 10**9, 30),
        ({"retention_bytes": TOTAL}, NOW, None),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES + 1}, NOW, None),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES}, NOW, 10),
        ({"retention_bytes": 1}, NOW, 30),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES, "retention_ms": 60_000}, record(19).timestamp + 60_001, 20),
        ({}, NOW * 2, None),
    ],
)
def test_total_retention_ends_also_what_was_never_copied_but_never_the_active_segment(
    tmp_path: Path, limits: dict[str, int], now: int, log_start: int | None
) -> None:
    files = the_store_is_away(tmp_path, **limits)
    with files.open() as remote_log:
        plans, left = remote_log.deletions.plan_expiry(EVERYTHING, now)
        assert left == []
        assert [plan.new_log_start for plan in plans] == ([] if log_start is None else [log_start])
        never_copied = [segment for segment in files.local_segments() if segment.base_offset < (log_start or 0)]
        assert [(plan.never_copied_segments, plan.never_copied_bytes) for plan in plans] == (
            []
            if log_start is None
            else [(len(never_copied), sum(segment.log_path.stat().st_size for segment in never_copied))]
        )

        remote_log.deletions.mark_expired(plans, "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == log_start
        assert [planned.base_offset for planned in remote_log.plan_copy().segments] == [
            base for base in (0, 10, 20) if base >= (log_start or 0)
        ]


def test_only_local_segments_past_total_retention_are_trimmed_before_their_copy(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=TOTAL - 2 * SEGMENT_BYTES)
    with files.open() as remote_log:
        expire(remote_log)
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert remote_log.deletions.enforce_local_retention(plans).failures == ()

        assert files.local_starts() == [20, 30]
        assert offsets_read(remote_log, 20) == list(range(20, 35))
        assert [segment.start_offset for segment in copy(remote_log).committed] == [20]


def test_records_above_the_stable_offset_never_expire(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=1)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 20})

    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert plan.new_log_start == 20


def test_local_segments_of_a_topic_that_is_not_tiered_do_not_expire(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=1, remote_storage_enable=False)
    with files.open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


def test_a_local_segment_that_is_broken_stays_and_is_reported(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_ms=1)
    flip_bit(files.local_segments()[0].log_path, 100)

    with files.open() as remote_log:
        plans, [left] = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert plans == []
        assert "00000000000000000000.log" in left.message


def test_local_segments_in_a_hole_of_the_remote_log_keep_their_turn(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.ms": 1}})
    with files.open() as remote_log:
        [_, hole, _] = segments_of(remote_log)
        lease = held_by(remote_log, "test")
        marking = a_step(hole, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(marking, lease)
        remote_log.context.leases.release(lease)
        flip_bit(files.local_segments()[1].log_path, 100)

        _, [left] = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert "00000000000000000010.log" in left.message


BYTE_A_RECORD = TopicSettings.parse("defaults", {"retention.ms": -1, "remote.storage.enable": True})


def of_a_byte_each(start: int, end: int, segment_id: str) -> RemoteLogSegmentMetadata:
    found = replace(a_segment(Lease(ORDERS_0, "test", 1, 0), start, end), state=SegmentState.COPY_SEGMENT_FINISHED)
    return replace(found, segment_id=RemoteLogSegmentId(ORDERS_0, segment_id), size=end - start + 1)


@pytest.mark.parametrize(
    ("remote", "local", "held"),
    [
        ([(10, 999)], [(0, 999)], 1000),
        ([(0, 999), (1000, 1999)], [(0, 899), (900, 2099)], 2100),
        ([(0, 99), (200, 299)], [(50, 349)], 350),
        ([(0, 99), (50, 149), (100, 199), (150, 249)], [], 250),
    ],
)
@pytest.mark.parametrize("excess", [0, 10, 100, 200])
def test_never_more_than_the_excess_ends_where_boundaries_differ(
    tmp_path: Path, remote: list[tuple[int, int]], local: list[tuple[int, int]], held: int, excess: int
) -> None:
    """Every record is a byte, so the global log start counts what ended."""
    metadata = mock.Mock(spec=RemoteLogMetadataManager)
    metadata.list_remote_log_segments.return_value = [of_a_byte_each(*one, f"s{one[0]}") for one in remote]
    metadata.partition_state.return_value = PartitionState(0, (EpochEntry(0, 0),))
    active = LocalSegment(held, None, 10, location_of(LogSegment(held, tmp_path).log_path))
    closed = [
        LocalSegment(start, end, end - start + 1, location_of(LogSegment(start, tmp_path).log_path))
        for start, end in local
    ]
    log = PartitionLog(ORDERS_0, str(tmp_path), (*closed, active), 0, held + 10, (EpochEntry(0, 0),))
    limit = held + 10 - excess
    settings = TopicSettings.parse("orders", {"retention.bytes": limit}).over(BYTE_A_RECORD, "orders")

    plan = plan_expiry(ORDERS_0, metadata, settings, NOW, log)

    assert (0 if plan is None else plan.new_log_start) <= excess
    if excess >= 100 and remote[0][0] == 0:
        assert (plan is not None) == (remote[0][1] < excess)


def test_segments_that_were_never_copied_count_against_the_limit(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert (plan.new_log_start, plan.never_copied_segments, plan.count) == (20, 2, 2)
