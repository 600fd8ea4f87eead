"""Scenario 34 with a killed process: a repair dies anywhere, and the next one ends its work; nothing is lost by it."""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import (
    GRACE_MS,
    CrashSite,
    assert_repair_completes,
    assert_settled,
    cells,
    damage,
    lose_metadata,
    run,
)
from support.remote_logs import flip_bit

PARTITIONS = {("orders", 0): 3, ("orders", 1): 2}
ALL = [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19)]

REPAIR_CRASHES = [
    Crash(CrashPoint.AFTER_ACQUIRE),
    Crash(CrashPoint.AFTER_STARTED),
    Crash(CrashPoint.AFTER_JOB),
    Crash(CrashPoint.IN_DATA),
    *(Crash(CrashPoint.AFTER_DATA, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_INDEXES),
    *(Crash(CrashPoint.AFTER_MARKER, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_RESULT),
    Crash(CrashPoint.BEFORE_FINISHED),
    # The copy that replaces it can be read, and the damaged segment as well.
    Crash(CrashPoint.AFTER_FINISHED),
    *(Crash(CrashPoint.BEFORE_MARKED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_MARKED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.BEFORE_RELEASE, nth) for nth in (1, 2, 3, 4)),
    *(Crash(CrashPoint.AFTER_RELEASE, nth) for nth in (1, 2, 3)),
    *(Crash(CrashPoint.AFTER_LEFTOVER_GONE, nth) for nth in (1, 2)),
]


@pytest.mark.parametrize("crash", cells(REPAIR_CRASHES, daily=1))
def test_the_next_repair_finishes_a_killed_one(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS)
    damage(files)
    site.clock.move_by(2 * GRACE_MS)
    site.programs.kill("repair", "--deep", "--config", files.config, at=crash)
    assert_repair_completes(files, site.clock, ALL)


@pytest.mark.parametrize("point", [CrashPoint.AFTER_MARKER, CrashPoint.AFTER_FINISHED, CrashPoint.AFTER_MARKED])
def test_metadata_that_are_made_again_after_a_killed_repair_know_the_sound_copy(
    site: CrashSite, point: CrashPoint
) -> None:
    """The copy that replaces a damaged segment had its commit marker, whether or not readers could see it."""
    files = site.copied({("orders", 0): 3})
    data = files.objects(".log")[1]
    flip_bit(data, 100)
    site.programs.kill("repair", "--deep", "--config", files.config, at=Crash(point))
    lose_metadata(files)
    site.programs.start("rebuild-metadata", "--yes", "--config", files.config).wait()
    run(files, "topics", "allow-deletion", "orders")
    site.clock.move_by(GRACE_MS + 1)
    # Rebuilt metadata have no reading of a clock.
    run(files, "metadata", "trust-clock", "--yes")
    run(files, "expire")
    assert not data.exists()
    assert_settled(files)
