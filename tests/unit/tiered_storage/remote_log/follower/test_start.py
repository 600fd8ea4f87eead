"""Where a follower starts if the remote log lacks segments; test_follower.py has the usual starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.remote_logs import SEGMENT_OFFSETS, a_copied_remote_log, held_by, segments_of
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 35 records, of which 30 are remote, in three segments."""
    return LedPartition(a_copied_remote_log(tmp_path))


def _lose(led: LedPartition, *starts: int) -> None:
    """Let the remote log lose the segments that begin there."""
    with led.files.open() as remote_log:
        context, lease = remote_log.context, held_by(remote_log, "test")
        lost = [each for each in segments_of(remote_log) if each.start_offset in starts]
        ended = SegmentState.DELETE_SEGMENT_STARTED
        steps = [(RemoteLogSegmentMetadataUpdate(each.segment_id, ended, context.clock()), lease) for each in lost]
        done: Sequence[object] = context.segments.update_remote_log_segments(steps)
        assert [type(each) for each in done] == [RemoteLogSegmentMetadata] * len(starts)
        context.leases.release(lease)


@pytest.mark.parametrize(("lost", "start"), [([10], 10), ([20], 20), ([0], 0), ([0, 10, 20], 0)])
def test_from_the_last_tiered_offset_it_fetches_what_the_remote_log_lost_and_the_leader_has(
    led: LedPartition, lost: list[int], start: int
) -> None:
    _lose(led, *lost)

    report = led.follow(follower_fetch_last_tiered_offset_enable=True)

    assert [each.offset for each in report.starts] == [start]
    assert led.follower_content() == led.content(start)


def test_a_gap_below_the_leaders_log_moves_no_start(led: LedPartition) -> None:
    _lose(led, 0)
    led.trim(before=SEGMENT_OFFSETS + SEGMENT_OFFSETS)

    report = led.follow(follower_fetch_last_tiered_offset_enable=True)

    assert [each.offset for each in report.starts] == [30]


def test_records_that_neither_tier_has_any_more_are_refused_also_if_nothing_is_remote(led: LedPartition) -> None:
    _lose(led, 0, 10, 20)
    led.trim(before=SEGMENT_OFFSETS)

    with pytest.raises(RemoteObjectNotFoundError, match="offset 9"):
        led.follow()

    assert not (led.directory / "orders-0" / f"{SEGMENT_OFFSETS:020d}.log").exists()
