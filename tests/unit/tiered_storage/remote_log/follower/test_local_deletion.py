from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import ENABLED, NOW, SEGMENT_BYTES, a_copied_remote_log, assert_clean, copy
from tiered_storage.kafka_log.files.log_segment import list_segments
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

NOTHING_KEPT = {"local.retention.ms": 1}


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 55 records, of which 30 are remote, with local retention over for all of them."""
    led = LedPartition(a_copied_remote_log(tmp_path, topics={"orders": ENABLED | NOTHING_KEPT}))
    led.append(4)
    return led


def _set(led: LedPartition, **properties: Any) -> None:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    led.files.properties["topics"]["orders"] = ENABLED | named


def _starts(led: LedPartition) -> list[int]:
    return [segment.base_offset for segment in list_segments(led.directory / "orders-0")]


def test_only_segments_that_the_remote_tier_holds_go(led: LedPartition) -> None:
    report = led.follow()

    assert report.deleted == 3
    assert (report.log_start_offset, report.local_start_offset) == (0, 30)
    assert _starts(led) == [30, 40, 50]
    with led.as_local_log().open() as remote_log:
        assert_clean(remote_log)
        assert copy(remote_log).is_whole
        assert_clean(remote_log)
    assert led.follow().local_start_offset == 50


def test_what_is_within_local_retention_stays(led: LedPartition) -> None:
    _set(led, local_retention_bytes=3 * SEGMENT_BYTES)

    led.follow()

    assert _starts(led) == [20, 30, 40, 50]


def test_after_total_retention_what_was_never_copied_goes_too(led: LedPartition) -> None:
    _set(led, retention_ms=led.files.clock() - NOW - 45_000, local_retention_ms=-2)

    led.follow()

    assert _starts(led) == [40, 50]


def test_nothing_goes_before_somebody_allowed_it(led: LedPartition) -> None:
    _set(led, local_retention_ms=1, local_deletion_allowed=False)

    assert led.follow().deleted == 0


def test_nothing_goes_while_deletions_are_stopped(led: LedPartition) -> None:
    with led.files.open() as remote_log:
        remote_log.context.safety.stop("a test", "test")

    assert led.follow().deleted == 0


def test_the_leader_epochs_of_what_went_stay(led: LedPartition) -> None:
    led.epoch = 1
    led.append(2)
    led.trim(before=10)
    led.follow()

    epochs = (led.directory / "orders-0" / "leader-epoch-checkpoint").read_text().split()
    assert epochs[2:] == ["0", "0", "1", "55"]
