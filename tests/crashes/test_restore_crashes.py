"""Scenario 37 with a killed process: kill a restore into a directory at any point; no partition is half-restored.

Into a running cluster: tests/integration/restore/test_restore_into_real_kafka.py.
"""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import (
    CrashSite,
    assert_nothing_half_has_a_name,
    assert_restore_completes,
    cells,
    contents,
    restore,
)

PARTITIONS = {("orders", 0): 3, ("orders", 1): 2}
ENDS = {"orders-0": 30, "orders-1": 20}

RESTORE_CRASHES = [
    # Files of a partition, of the next one, what is being restored, and the checkpoints.
    *(Crash(CrashPoint.AFTER_FILE_SYNCED, nth) for nth in (1, 2, 5, 12, 20, 30, 36, 38, 40, 42, 44)),
    *(Crash(CrashPoint.BEFORE_PARTITION_PLACED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_PARTITION_PLACED, nth) for nth in (1, 2)),
]


@pytest.mark.parametrize("crash", cells(RESTORE_CRASHES, daily=5))
def test_the_same_command_finishes_a_killed_restore(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS)
    restore(files, site.root / "never killed")
    expected = contents(site.root / "never killed")
    target = site.root / "restored"
    command = ("restore", "orders", "--to-directory", target, "--workers", 1)
    site.programs.kill(*command, "--config", files.config, at=crash)

    assert_nothing_half_has_a_name(target, ENDS)
    assert_restore_completes(files, target, expected, ENDS)
