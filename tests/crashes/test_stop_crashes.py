"""The stop of all deletions, with killed processes: it is in force or not, and every deletion sees which."""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import LEASE_MS, CrashSite, assert_readable, assert_settled, finished_ranges, run
from support.command_line import run_on
from support.remote_logs import BATCH_BYTES, ENABLED, RemoteLogFiles, assert_clean

PARTITIONS = {("orders", 0): 3, ("orders", 1): 3}
KEEPS_ONE_SEGMENT = {"orders": {**ENABLED, "retention.bytes": 3 * BATCH_BYTES}}
LEFT = [("orders-0", 20, 29), ("orders-1", 20, 29)]
STOPPED = "stopped all deletions"


def assert_the_rest_goes(files: RemoteLogFiles) -> None:
    run(files, "stop-deletions", "--lift")
    run(files, "expire")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == LEFT
    assert_settled(files)


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_SWITCH, CrashPoint.AFTER_SWITCH])
def test_a_killed_stop_has_stopped_all_or_nothing(site: CrashSite, point: CrashPoint) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT)
    site.programs.kill("stop-deletions", "--reason", "look first", "--config", files.config, at=Crash(point))
    before = files.objects()
    ended = run_on(files, "expire")
    if point is CrashPoint.AFTER_SWITCH:
        assert (ended.exit_code, STOPPED in ended.err, "look first" in ended.err) == (1, True, True)
        assert files.objects() == before
        with files.open() as remote_log:
            assert_clean(remote_log)
    else:
        assert ended.exit_code == 0, ended.err
        assert_settled(files)
    assert_the_rest_goes(files)


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_SWITCH, CrashPoint.AFTER_SWITCH])
def test_a_killed_lift_has_lifted_all_or_nothing(site: CrashSite, point: CrashPoint) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT)
    run(files, "stop-deletions")
    site.programs.kill("stop-deletions", "--lift", "--config", files.config, at=Crash(point))
    ended = run_on(files, "expire")
    assert (ended.exit_code, STOPPED in ended.err) == ((0, False) if point is CrashPoint.AFTER_SWITCH else (1, True))
    with files.open() as remote_log:
        assert_readable(remote_log)
    assert_the_rest_goes(files)


@pytest.mark.parametrize(
    "point",
    [CrashPoint.AFTER_LOG_START, CrashPoint.AFTER_MARKED, CrashPoint.AFTER_OBJECT_GONE, CrashPoint.AFTER_DELETED],
)
def test_a_deletion_under_way_ends_at_a_stop_whose_process_was_killed_afterwards(
    site: CrashSite, point: CrashPoint
) -> None:
    """A batch is one segment: a begun batch is finished, and no other begins."""
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT, deletion_batch_segments=1)
    under_way = site.programs.stop("expire", "--config", files.config, at=point)
    stop = Crash(CrashPoint.AFTER_SWITCH)
    site.programs.kill("stop-deletions", "--reason", "look first", "--config", files.config, at=stop)
    data = files.objects(".log")
    assert under_way.proceed() == 1
    assert STOPPED in under_way.said
    assert len(data) - len(files.objects(".log")) <= 1
    with files.open() as remote_log:
        assert_readable(remote_log)
        assert_clean(remote_log)
    assert_the_rest_goes(files)


def test_a_deletion_that_was_killed_before_a_stop_continues_after_its_lift(site: CrashSite) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT)
    site.programs.kill("expire", "--config", files.config, at=Crash(CrashPoint.AFTER_OBJECT_GONE, 2))
    run(files, "stop-deletions")
    site.clock.move_by(LEASE_MS + 1)
    assert run_on(files, "expire").exit_code == 1
    with files.open() as remote_log:
        assert_clean(remote_log)
    assert_the_rest_goes(files)
