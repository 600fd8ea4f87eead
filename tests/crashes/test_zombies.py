"""Processes that stop until their lease expired and then continue are refused, and harm no other run."""

from __future__ import annotations

import pytest

from crashes.crash_points import CrashPoint
from crashes.programs import Program
from crashes.recovery import (
    GRACE_MS,
    LEASE_MS,
    CrashSite,
    all_segments,
    assert_readable,
    assert_settled,
    finished_ranges,
    run,
)
from support.command_line import run_on
from support.key_rings import ring_of_three
from support.remote_logs import BATCH_BYTES, ENABLED, RemoteLogFiles

PARTITIONS = {("orders", 0): 3, ("orders", 1): 2}
ALL = [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19)]
KEEPS_ONE_SEGMENT = {"orders": {**ENABLED, "retention.bytes": 3 * BATCH_BYTES}}
KEEPS_NOTHING_LOCAL = {"orders": {**ENABLED, "local.retention.bytes": 1}}

COPY_POINTS = [
    CrashPoint.AFTER_ACQUIRE,
    CrashPoint.BEFORE_STARTED,
    CrashPoint.AFTER_STARTED,
    CrashPoint.AFTER_JOB,
    CrashPoint.IN_DATA,
    CrashPoint.AFTER_DATA,
    CrashPoint.AFTER_INDEXES,
    CrashPoint.AFTER_MARKER,
    CrashPoint.AFTER_RESULT,
    CrashPoint.AFTER_DOCUMENT,
    CrashPoint.BEFORE_FINISHED,
]
EXPIRY_POINTS = [
    CrashPoint.AFTER_ACQUIRE,
    CrashPoint.AFTER_LOG_START,
    CrashPoint.AFTER_MARKED,
    CrashPoint.AFTER_OBJECT_GONE,
    CrashPoint.BEFORE_DELETED,
]


def continued(files: RemoteLogFiles, zombie: Program) -> int:
    """Let the zombie finish; return its exit code. It must not change the work of others."""
    with files.open() as remote_log:
        before = all_segments(remote_log)
        contents = {
            path: path.read_bytes()
            for path in files.objects()
            if any(segment.segment_id.id in path.name and segment.custom_metadata for segment in before)
        }
        code = zombie.proceed()
        assert all_segments(remote_log) == before
        assert {path: path.read_bytes() for path in contents} == contents
        assert_readable(remote_log)
    return code


def assert_refused(zombie: Program, code: int, *, may_find_nothing: bool) -> None:
    """Assert that `zombie` was refused because its lease ended, or, with `may_find_nothing`, found nothing to do."""
    if code == 0:
        assert may_find_nothing
    else:
        assert code == 1 and "by tiered-storage" in zombie.said, zombie.said


@pytest.mark.parametrize("point", COPY_POINTS)
def test_a_copy_that_wakes_up_after_its_lease_was_taken_over_commits_nothing(
    site: CrashSite, point: CrashPoint
) -> None:
    files = site.new(PARTITIONS)
    zombie = site.programs.stop("copy", "--json", "--config", files.config, at=point)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == ALL

    assert_refused(zombie, continued(files, zombie), may_find_nothing=point is CrashPoint.AFTER_ACQUIRE)
    assert zombie.rows == []

    site.clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


@pytest.mark.parametrize("point", [CrashPoint.IN_DATA, CrashPoint.AFTER_DATA])
def test_a_copy_of_encrypted_segments_wakes_up_and_their_later_copies_stay_readable(
    site: CrashSite, point: CrashPoint
) -> None:
    files = site.new(
        PARTITIONS,
        rsm_config_encryption_enabled=True,
        rsm_config_compression_enabled=True,
        rsm_config_encryption_key_ring_file=str(ring_of_three(site.root / "keys")),
        rsm_config_encryption_key_pair_id="third",
    )
    zombie = site.programs.stop("copy", "--json", "--config", files.config, at=point)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    assert_refused(zombie, continued(files, zombie), may_find_nothing=False)
    run(files, "audit", "--deep")
    site.clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.AFTER_FINISHED,
        CrashPoint.BEFORE_HEARTBEAT,
        CrashPoint.AFTER_HEARTBEAT,
        CrashPoint.BEFORE_RELEASE,
        CrashPoint.AFTER_RELEASE,
    ],
)
def test_a_copy_that_wakes_up_after_all_is_committed_does_no_harm(site: CrashSite, point: CrashPoint) -> None:
    files = site.new(PARTITIONS)
    zombie = site.programs.stop("copy", "--json", "--config", files.config, at=point)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    assert continued(files, zombie) == 0
    assert len(zombie.rows) == len(ALL)
    site.clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


@pytest.mark.parametrize("point", EXPIRY_POINTS)
def test_an_expiry_that_wakes_up_after_its_lease_was_taken_over_changes_nothing(
    site: CrashSite, point: CrashPoint
) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT)
    zombie = site.programs.stop("expire", "--config", files.config, at=point)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == [("orders-0", 20, 29), ("orders-1", 10, 19)]

    assert_refused(zombie, continued(files, zombie), may_find_nothing=True)
    assert_settled(files)


def test_a_stopped_trim_holds_kafkas_lock_and_finishes_when_it_continues(
    site: CrashSite,
) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_NOTHING_LOCAL)
    sleeper = site.programs.stop("retain", "--config", files.config, at=CrashPoint.AFTER_LOCAL_FILE_GONE, nth=2)
    site.clock.move_by(LEASE_MS + 1)
    for command in ("retain", "copy"):
        refused = run_on(files, command)
        assert refused.exit_code == 1
        assert "lock" in refused.err

    assert sleeper.proceed() == 0
    assert [files.local_starts(number=number) for number in (0, 1)] == [[30], [20]]
    run(files, "retain")
    assert_settled(files)


# The zombie's segments were deleted, grace and all, before it wrote their objects: metadata know them as gone.
@pytest.mark.parametrize("point", [CrashPoint.AFTER_JOB, CrashPoint.IN_DATA, CrashPoint.AFTER_INDEXES])
def test_the_audit_names_objects_that_a_zombie_wrote_after_their_deletion(site: CrashSite, point: CrashPoint) -> None:
    files = site.new(PARTITIONS)
    zombie = site.programs.stop("copy", "--config", files.config, at=point)
    site.clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    site.clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)

    assert continued(files, zombie) == 1
    site.clock.move_by(GRACE_MS + 1)
    audited = run_on(files, "audit", "--json")
    assert audited.exit_code == 1
    assert {row["kind"] for row in audited.rows} == {"unreferenced object"}
