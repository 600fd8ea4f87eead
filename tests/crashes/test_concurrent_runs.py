"""Scenario 36: several runs at once over the same partitions, as processes on one store and one metadata store.

They stand still when they have planned and before they take a lease: then all of them continue at the same moment, each
with a plan that holds everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from crashes.crash_points import CrashPoint
from crashes.programs import BACKFILL, Program
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
from support.remote_logs import BATCH_BYTES, ENABLED, NOW, SEGMENT_OFFSETS, RemoteLogFiles

PARTITIONS = {("orders", number): 4 for number in range(4)}
ALL = sorted((f"orders-{number}", start, start + 9) for number in range(4) for start in range(0, 40, SEGMENT_OFFSETS))
WINDOW_ENDS = [NOW + 1000 * offset for offset in (15, 25, 1000)]
"""A past window holds what was closed by then: the first segment, then the second, then all."""


def start_all(site: CrashSite, files: RemoteLogFiles, *commands: str) -> list[Program]:
    """Start a backfill and so many commands, and stop them where they take their first lease."""
    backfill = site.programs.stop(
        files.config, "backfill", *WINDOW_ENDS, at=CrashPoint.BEFORE_ACQUIRE, program=BACKFILL
    )
    others = [
        site.programs.stop(command, "--json", "--config", files.config, at=CrashPoint.BEFORE_ACQUIRE)
        for command in commands
    ]
    return [backfill, *others]


def continue_at_once(programs: Iterable[Program]) -> list[Program]:
    """Let all continue, then wait for all."""
    programs = list(programs)
    for program in programs:
        program.let_proceed()
    for program in programs:
        program.wait()
    return programs


def copied_by(programs: Iterable[Program]) -> list[tuple[object, object]]:
    """Return partition and start offset of every segment that a run reports as committed."""
    return sorted((row["partition"], row["start_offset"]) for program in programs for row in program.rows)


@pytest.mark.parametrize("turn", range(3))
def test_a_scheduled_run_a_backfill_a_manual_run_and_a_zombie_copy_each_segment_once(
    site: CrashSite, turn: int
) -> None:
    files = site.new(PARTITIONS)
    zombie_at = (CrashPoint.AFTER_STARTED, CrashPoint.AFTER_DATA, CrashPoint.BEFORE_FINISHED)[turn]
    zombie = site.programs.stop("copy", "--json", "--config", files.config, at=zombie_at)
    site.clock.move_by(LEASE_MS + 1)
    healthy = start_all(site, files, "copy", "copy")
    continue_at_once([*healthy, zombie])

    for program in healthy:
        assert program.wait() == 0 or "works on it until" in program.said, program.said
    with files.open() as remote_log:
        assert sorted(finished_ranges(remote_log)) == ALL
        assert_readable(remote_log)
        begun = Counter((str(one.topic_id_partition), one.start_offset) for one in all_segments(remote_log))
    # The zombie may commit what nobody took over meanwhile; everything else is refused.
    assert copied_by([zombie, *healthy]) == [(partition, start) for partition, start, _ in ALL]
    # One attempt is the zombie's, the other the lease holder's.
    assert set(begun.values()) <= {1, 2}

    site.clock.move_by(LEASE_MS + GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


def test_copies_expiry_and_trims_at_once_leave_every_record_that_is_to_stay(site: CrashSite) -> None:
    kept = {"orders": {**ENABLED, "retention.bytes": 5 * BATCH_BYTES, "local.retention.bytes": 3 * BATCH_BYTES}}
    files = site.copied(PARTITIONS, topics=kept)
    for number in range(4):
        files.append(4, number=number)
    standing = start_all(site, files, "copy", "expire", "expire")
    trims = [site.programs.start("retain", "--json", "--config", files.config) for _ in range(2)]
    continue_at_once([*standing, *trims])
    with files.open() as remote_log:
        assert_readable(remote_log)

    site.clock.move_by(LEASE_MS + GRACE_MS + 1)
    for command in ("copy", "expire"):
        run(files, command)
    site.clock.move_by(GRACE_MS + 1)
    for command in ("expire", "retain"):
        run(files, command)
    with files.open() as remote_log:
        assert {start for _, start, _ in finished_ranges(remote_log)} == {40, 50}
    assert [files.local_starts(number=number) for number in range(4)] == [[50, 60]] * 4
    assert_settled(files)
