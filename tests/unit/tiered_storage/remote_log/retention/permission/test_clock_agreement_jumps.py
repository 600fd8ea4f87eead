"""Nothing is deleted by a clock that jumped, where the store may have the same clock."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_remote_log, copy, states_of
from tiered_storage.clock import as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.retention.permission.clock_agreement import GraceTime
from unit.tiered_storage.remote_log.retention.permission.clock_runs import (
    DAY,
    GRACE,
    HOUR,
    MINUTE,
    SKEW,
    YEAR,
    check,
    delete_records,
    delete_topic,
    expire,
    refused,
    repair,
    run,
    trim,
)


@pytest.mark.parametrize("deletes", [expire, delete_records, delete_topic, trim, repair])
def test_two_runs_under_a_clock_a_year_ahead_delete_nothing(
    files: RemoteLogFiles, deletes: Callable[[RemoteLogManager], None]
) -> None:
    files.clock.step(YEAR)
    for _ in range(3):
        refused(files, deletes, "this machine's clock shows 2024-11-.*should show 2023-11-.*ahead by 365 days")
        files.clock.now += HOUR
    with files.open() as remote_log:
        assert [state for _, state in states_of(remote_log)] == ["COPY_SEGMENT_FINISHED"] * 3
    assert len(files.objects()) == 9
    assert deletes is delete_topic or files.local_starts() == [0, 10, 20, 30]


def test_a_clock_that_jumps_does_not_shorten_a_grace_time(files: RemoteLogFiles) -> None:
    run(files, delete_records)
    files.clock.step(2 * HOUR)
    refused(files, expire, "ahead by 2:00:00")
    assert len(files.objects()) == 9


def test_a_clock_that_was_set_back_marks_nothing_so_that_the_right_one_finds_it_in_its_grace_time(
    files: RemoteLogFiles,
) -> None:
    files.clock.step(-2 * HOUR)
    refused(files, delete_records, "back by 2:00:00")
    files.clock.step(2 * HOUR)
    run(files, delete_records, expire)
    assert len(files.objects()) == 9


def test_copying_continues_under_a_clock_that_jumped_and_does_not_let_it_pass(files: RemoteLogFiles) -> None:
    files.clock.step(YEAR)
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2
    refused(files, expire)


@pytest.mark.parametrize("by", [-SKEW, -2_000, 2_000, SKEW])
def test_a_step_by_ntp_passes(files: RemoteLogFiles, by: int) -> None:
    files.clock.step(by)
    run(files, delete_records, expire)
    files.clock.now += GRACE + SKEW
    run(files, expire)
    assert len(files.objects()) == 3


def test_a_machine_that_slept_or_was_idle_for_months_passes(files: RemoteLogFiles) -> None:
    """The time since the machine started counts what it slept."""
    files.clock.now += 90 * DAY
    run(files, expire)
    files.clock.now += GRACE
    run(files, expire)
    assert files.objects() == []


def test_a_virtual_machine_that_was_paused_is_refused_until_a_person_trusts_its_clock(files: RemoteLogFiles) -> None:
    files.clock.step(3 * HOUR)
    refused(files, delete_records, "ahead by 3:00:00, or the machine was paused.*metadata trust-clock")
    done = run_on(files, "metadata", "trust-clock", "--yes")
    assert done.exit_code == 0 and mentions(done.err, "note: ", as_date(files.clock.now))
    run(files, delete_records)


def test_a_clock_that_creeps_is_compared_with_where_it_was(files: RemoteLogFiles) -> None:
    run(files, check)
    files.clock.step(SKEW - MINUTE)
    run(files, check)
    files.clock.step(SKEW - MINUTE)
    refused(files, check, "ahead by 0:08:00")


@pytest.mark.parametrize("off_for", [MINUTE, SKEW])
def test_after_a_short_restart_the_clock_is_taken(files: RemoteLogFiles, off_for: int) -> None:
    files.clock.restart(off_for)
    run(files, delete_records)


def test_time_that_the_machine_ran_since_its_restart_needs_no_proof(files: RemoteLogFiles) -> None:
    files.clock.restart()
    files.clock.now += 30 * DAY
    run(files, delete_records)


@pytest.mark.parametrize("deletes", [expire, delete_records, delete_topic, trim, repair])
def test_a_clock_that_a_restart_set_ahead_deletes_nothing(
    files: RemoteLogFiles, deletes: Callable[[RemoteLogManager], None]
) -> None:
    """The hardware clock is 23 hours further ahead at each of ten restarts."""
    for _ in range(10):
        files.clock.restart(off_for=23 * HOUR)
        # What finds nothing to do says nothing.
        with suppress(DeletionRefusedError):
            run(files, deletes)
    refused(files, deletes, "restarted, or is another one.*9 days, 14:00:00 later.*Wait until NTP.*trust-clock")
    files.clock.now += 30 * DAY
    refused(files, deletes)
    assert len(files.objects()) == 9
    assert deletes is delete_topic or files.local_starts() == [0, 10, 20, 30]


def test_a_machine_that_was_off_for_long_waits_for_ntp(files: RemoteLogFiles) -> None:
    files.clock.restart(off_for=30 * DAY)
    refused(files, delete_records, "30 days.* later.*Wait until NTP has synchronised")
    files.clock.is_synchronised = True
    run(files, delete_records)
    files.clock.is_synchronised = False
    run(files, expire)


def test_another_machine_that_runs_for_longer_waits_for_ntp(files: RemoteLogFiles) -> None:
    """How long it has been running says nothing about the time since the other one read its clock."""
    files.clock.restart()
    files.clock.started -= YEAR
    refused(files, delete_records, "or is another one")
    files.clock.is_synchronised = True
    run(files, delete_records)


def test_a_jump_without_a_restart_needs_a_persons_word_though_ntp_agrees(files: RemoteLogFiles) -> None:
    files.clock.is_synchronised = True
    files.clock.step(3 * HOUR)
    refused(files, delete_records, "or the machine was paused.*trust-clock")


def test_after_a_restart_the_clock_may_not_be_earlier(files: RemoteLogFiles) -> None:
    for files.clock.is_synchronised in (False, True):
        files.clock.restart(off_for=-HOUR)
        refused(files, delete_records, "restarted.* earlier, and nothing proves")


@pytest.mark.parametrize("deletes", [expire, trim])
def test_the_grace_time_begins_again_at_each_restart(
    files: RemoteLogFiles, deletes: Callable[[RemoteLogManager], None]
) -> None:
    """Nobody knows how long a machine was off: two restarts do not make what was marked older than one."""
    run(files, delete_records)
    files.clock.is_synchronised = True
    for off_for in (23 * HOUR, MINUTE, 50 * MINUTE):
        files.clock.restart(off_for)
        run(files, deletes, expire)
    assert len(files.objects()) == 9
    with files.open() as remote_log:
        [due] = remote_log.deletions.pending_deletions()
        assert (due.segments, due.waiting, due.all_due_at) == (0, 2, files.clock() + GRACE)
    files.clock.now += GRACE - 1
    run(files, expire)
    assert len(files.objects()) == 9
    files.clock.now += 1
    run(files, expire)
    assert len(files.objects()) == 3


def test_a_restart_after_a_persons_word_keeps_the_grace_time(files: RemoteLogFiles) -> None:
    run(files, delete_records)
    files.clock.step(3 * HOUR)
    run_on(files, "metadata", "trust-clock", "--yes")
    files.clock.now += MINUTE
    files.clock.restart(MINUTE)
    run(files, expire)
    assert len(files.objects()) == 9


def test_segments_marked_by_a_wrong_clock_wait_again_after_trust_clock(tmp_path: Path) -> None:
    """The first reading of all may be that of a clock that is behind."""
    files = a_remote_log(tmp_path, remote_log_deletion_grace_ms=GRACE)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        delete_records(remote_log)
    files.clock.step(2 * HOUR)
    refused(files, check)
    run_on(files, "metadata", "trust-clock", "--yes")
    run(files, expire)
    assert len(files.objects()) == 9
    files.clock.now += GRACE
    run(files, expire)
    assert len(files.objects()) == 3


def test_local_retention_waits_as_long_for_what_can_be_undeleted(files: RemoteLogFiles) -> None:
    run(files, delete_records)
    marked_at = files.clock()
    files.clock.restart()
    run(files, check)
    for passed, is_settled in ((GRACE - 1, False), (1, True)):
        files.clock.now += passed
        with files.open() as remote_log:
            assert (remote_log.deletions.clocks.grace(GRACE).over_for(files.clock()) >= marked_at) is is_settled


def test_a_person_is_asked_and_may_say_no(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.clock.step(YEAR)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    done = run_on(files, "metadata", "trust-clock")
    assert done.exit_code == 1
    assert "2024-11-14 01:00:00 UTC" in done.err
    refused(files, expire)


def test_a_clock_that_jumps_within_a_run_marks_and_deletes_no_more(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
        assert plan is not None
        clocks = remote_log.deletions.clocks
        files.clock.step(HOUR)
        with pytest.raises(DeletionRefusedError, match="trust-clock"):
            clocks.ensure_not_ahead(ORDERS_0, ())


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_clock_that_jumps_between_two_batches_ends_the_deletion(files: RemoteLogFiles, by: int) -> None:
    """By whichever clock the first batch was found due: one of the two is wrong."""
    files.properties["deletion.batch.segments"] = 1
    run(files, delete_records)
    files.clock.now += GRACE
    with files.open() as remote_log:
        report = remote_log.deletions.delete_marked("expire", on_moved=lambda *_: files.clock.step(by))
        assert len(report.deleted) == 1
        assert ["trust-clock" in failure.reason for failure in report.failures] == [True]
    assert len(files.objects()) == 6


@pytest.mark.parametrize(
    "command",
    [
        ("expire", "--dry-run"),
        ("retain", "--dry-run"),
        ("delete-records", "orders", "0", "--before", "20", "--dry-run"),
    ],
)
def test_a_dry_run_says_that_nothing_would_be_deleted(files: RemoteLogFiles, command: tuple[str, ...]) -> None:
    assert "nothing is deleted" not in run_on(files, *command).err
    files.clock.step(YEAR)
    assert mentions(run_on(files, *command).err, "note: nothing is deleted", "metadata trust-clock")


def test_doctor_reports_it(files: RemoteLogFiles) -> None:
    files.clock.step(YEAR)
    [found] = [row for row in run_on(files, "doctor", "--json").rows if row["check"] == "clock"]
    assert found["verdict"] == "wrong"
    assert "ahead by 365 days" in found["message"]


def test_a_store_with_its_own_clock_overrides_the_recorded_clock_reading(files: RemoteLogFiles) -> None:
    """Nobody is asked for their word where the store's clock agrees."""
    with files.open() as remote_log:
        clocks = replace(remote_log.deletions.clocks, is_store_independent=True)
        files.clock.step(YEAR)
        assert clocks.why_refused() is None
        clocks.ensure_agrees()
        assert clocks.grace(GRACE) == GraceTime(GRACE)
