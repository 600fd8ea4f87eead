"""Scenario 33 with a killed process: no process uses metadata before their rebuild is complete."""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import CrashSite, assert_rebuild_completes, cells, metadata_files, without_metadata

REBUILD_CRASHES = [
    *(Crash(CrashPoint.AFTER_TOPIC_DECIDED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_LEASES_BEGUN, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_ACQUIRE, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_LINEAGE),
    Crash(CrashPoint.AFTER_LOG_START),
    *(Crash(CrashPoint.AFTER_STARTED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.BEFORE_FINISHED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_FINISHED, nth) for nth in (1, 2)),
    Crash(CrashPoint.BEFORE_MARKED),
    Crash(CrashPoint.AFTER_MARKED),
    *(Crash(CrashPoint.AFTER_RELEASE, nth) for nth in (1, 2)),
    Crash(CrashPoint.BEFORE_BOUND_ANEW),
    Crash(CrashPoint.AFTER_BOUND_ANEW),
    *(Crash(CrashPoint.AFTER_DOCUMENT, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_DOCUMENT_GONE, nth) for nth in (1, 2)),
]


@pytest.mark.parametrize("crash", cells(REBUILD_CRASHES, daily=1))
def test_a_killed_rebuild_leaves_no_metadata_and_the_next_one_makes_them(site: CrashSite, crash: Crash) -> None:
    files = without_metadata(site)
    site.programs.kill("rebuild-metadata", "--yes", "--config", files.config, at=crash)
    assert metadata_files(files) == []
    assert_rebuild_completes(files, site.clock)
