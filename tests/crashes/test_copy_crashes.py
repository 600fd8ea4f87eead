"""Scenario 10: a copy killed anywhere. The next run completes, no reader sees half a segment, leftovers are deleted."""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import CrashSite, assert_copy_completes, cells

PARTITIONS = {("orders", 0): 3, ("orders", 1): 2}
ALL = [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19)]

CRASHES = [
    Crash(CrashPoint.AFTER_ACQUIRE),
    Crash(CrashPoint.BEFORE_STARTED),
    Crash(CrashPoint.AFTER_STARTED),
    Crash(CrashPoint.AFTER_LINEAGE),
    Crash(CrashPoint.AFTER_JOB),
    Crash(CrashPoint.IN_DATA),
    Crash(CrashPoint.IN_DATA, 4),
    Crash(CrashPoint.AFTER_DATA),
    Crash(CrashPoint.AFTER_DATA, 3),
    Crash(CrashPoint.AFTER_INDEXES),
    Crash(CrashPoint.AFTER_INDEXES, 3),
    Crash(CrashPoint.AFTER_MARKER),
    Crash(CrashPoint.AFTER_MARKER, 3),
    Crash(CrashPoint.AFTER_RESULT),
    Crash(CrashPoint.BEFORE_HEARTBEAT),
    Crash(CrashPoint.AFTER_HEARTBEAT),
    Crash(CrashPoint.AFTER_DOCUMENT),
    Crash(CrashPoint.AFTER_DOCUMENT, 2),
    Crash(CrashPoint.AFTER_LOG_START),
    Crash(CrashPoint.BEFORE_FINISHED),
    Crash(CrashPoint.AFTER_FINISHED),
    Crash(CrashPoint.BEFORE_RELEASE),
    Crash(CrashPoint.AFTER_RELEASE),
]


@pytest.mark.parametrize("crash", cells(CRASHES))
def test_the_run_after_a_killed_copy_completes_and_nothing_is_left_of_the_dead_one(
    site: CrashSite, crash: Crash
) -> None:
    files = site.new(PARTITIONS)
    site.programs.kill("copy", "--config", files.config, at=crash)
    assert_copy_completes(files, site.clock, ALL)
