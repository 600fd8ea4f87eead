"""A service that is killed or stands still anywhere in a copy: other runs complete it, and nothing is there twice."""

from __future__ import annotations

from typing import Any

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.programs import Program
from crashes.recovery import LEASE_MS, CrashSite, assert_copy_completes, assert_settled, cells, finished_ranges, run
from support.remote_logs import RemoteLogFiles
from support.waiting import wait_for

PARTITIONS = {("orders", 0): 3, ("orders", 1): 2}
ALL = [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19)]
SECONDS = 60
OFTEN: dict[str, Any] = {"remote_log_manager_task_interval_ms": 100}

CRASHES = [
    Crash(CrashPoint.AFTER_ACQUIRE),
    Crash(CrashPoint.AFTER_STARTED),
    Crash(CrashPoint.IN_DATA),
    Crash(CrashPoint.AFTER_DATA),
    Crash(CrashPoint.AFTER_MARKER),
    Crash(CrashPoint.AFTER_RESULT),
    Crash(CrashPoint.BEFORE_FINISHED),
    Crash(CrashPoint.AFTER_FINISHED),
]


def started(site: CrashSite, files: RemoteLogFiles) -> Program:
    return site.programs.start("service", "--config", files.config)


def is_copied(files: RemoteLogFiles) -> bool:
    with files.open() as remote_log:
        return finished_ranges(remote_log) == ALL


@pytest.mark.parametrize("crash", cells(CRASHES))
def test_a_run_after_a_killed_service_completes_and_nothing_is_left_of_the_dead_one(
    site: CrashSite, crash: Crash
) -> None:
    files = site.new(PARTITIONS, **OFTEN)
    site.programs.kill("service", "--config", files.config, at=crash)
    assert_copy_completes(files, site.clock, ALL)


def test_the_next_service_takes_what_a_killed_one_held_once_its_leases_have_expired(site: CrashSite) -> None:
    files = site.new(PARTITIONS, **OFTEN, scheduled_deletion_enable=True)
    site.programs.kill("service", "--config", files.config, at=Crash(CrashPoint.AFTER_DATA))
    service = started(site, files)
    site.clock.move_by(LEASE_MS + 1)
    wait_for(lambda: is_copied(files), lambda: service.said, SECONDS)

    # The dead one's objects go after the grace time, by the service too.
    site.clock.move_by(2 * 3_600_000)
    wait_for(lambda: len(files.objects(".log")) == len(ALL), lambda: service.said, SECONDS)

    assert service.terminate() == 0
    assert_settled(files)


def test_a_service_that_stood_still_commits_nothing_that_another_run_did(site: CrashSite) -> None:
    files = site.new(PARTITIONS, **OFTEN)
    zombie = site.programs.stop("service", "--config", files.config, at=CrashPoint.BEFORE_FINISHED)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == ALL

    def is_refused() -> bool:
        zombie.let_proceed()
        return "copier: orders-" in zombie.said

    wait_for(is_refused, lambda: (zombie.state, zombie.said), SECONDS)
    assert zombie.terminate() == 0

    with files.open() as remote_log:
        assert finished_ranges(remote_log) == ALL
    site.clock.move_by(2 * 3_600_000)
    run(files, "expire")
    assert_settled(files)
