"""A clock that this site never read, or that several machines show, is compared with the newest time known."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from support.command_line import run_on
from support.metadata_files import remove_metadata
from support.remote_logs import RemoteLogFiles, copy
from tiered_storage.remote_log.manager import RemoteLogManager
from unit.tiered_storage.remote_log.retention.permission.clock_runs import (
    DAY,
    GRACE,
    HOUR,
    MINUTE,
    SKEW,
    YEAR,
    check,
    delete_records,
    expire,
    refused,
    run,
    trim,
)


def forget_reading(files: RemoteLogFiles) -> None:
    """Let the metadata be those of an earlier release, which read no clock."""
    with closing(sqlite3.connect(files.root / "state" / "remote_log_metadata.db")) as connection, connection:
        connection.execute("DELETE FROM clock_readings")


def rebuild(files: RemoteLogFiles) -> None:
    """Lose the metadata and make them again from the store, by what the clock shows."""
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    assert run_on(files, "topics", "allow-deletion", "orders").exit_code == 0


def rebuild_twice(files: RemoteLogFiles) -> None:
    """Make them again once more, as after something could not be read."""
    rebuild(files)
    rebuild(files)


def copy_more(files: RemoteLogFiles) -> None:
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2


def decide(files: RemoteLogFiles) -> None:
    for words in (("topics", "pause"), ("topics", "enable")):
        assert run_on(files, *words, "orders").exit_code == 0


def take_over(files: RemoteLogFiles) -> None:
    assert run_on(files, "metadata", "take-over", "--yes").exit_code == 0


def take_back(files: RemoteLogFiles) -> None:
    run_on(files, "undelete", "orders")


@pytest.mark.parametrize("lose", [forget_reading, rebuild, rebuild_twice])
@pytest.mark.parametrize("deletes", [expire, delete_records, trim])
def test_a_clock_that_was_never_read_is_held_against_the_newest_time_known(
    files: RemoteLogFiles, deletes: Callable[[RemoteLogManager], None], lose: Callable[[RemoteLogFiles], None]
) -> None:
    files.clock.step(YEAR)
    lose(files)
    for _ in range(2):
        refused(files, deletes, "never read.* 2023-11-.*365 days.* later.*trust-clock")
        files.clock.now += 3 * HOUR
    assert len(files.objects()) == 9
    assert files.local_starts() == [0, 10, 20, 30]


@pytest.mark.parametrize("writes", [copy_more, decide, take_over, take_back])
@pytest.mark.parametrize("lose", [forget_reading, rebuild])
def test_times_written_by_an_unread_clock_do_not_vouch_for_it(
    files: RemoteLogFiles, lose: Callable[[RemoteLogFiles], None], writes: Callable[[RemoteLogFiles], None]
) -> None:
    files.clock.step(YEAR)
    lose(files)
    writes(files)
    files.clock.now += 3 * HOUR
    refused(files, expire, "never read.* 2023-11-.*365 days.* later.*trust-clock")


@pytest.mark.parametrize("is_synchronised", [False, True])
@pytest.mark.parametrize("lose", [forget_reading, rebuild])
def test_a_clock_that_was_never_read_is_taken_if_ntp_synchronised_it_or_it_shows_the_newest_time(
    files: RemoteLogFiles, lose: Callable[[RemoteLogFiles], None], is_synchronised: bool
) -> None:
    files.clock.is_synchronised = is_synchronised
    files.clock.now += 90 * DAY if is_synchronised else SKEW
    lose(files)
    run(files, check)
    files.clock.now += 10 * DAY
    run(files, delete_records)


@pytest.mark.parametrize("lose", [forget_reading, rebuild])
def test_a_site_that_was_idle_and_has_no_ntp_needs_a_persons_word_once(
    files: RemoteLogFiles, lose: Callable[[RemoteLogFiles], None]
) -> None:
    files.clock.now += HOUR
    lose(files)
    refused(files, delete_records, "never read")
    refused(files, delete_records, "never read")
    run_on(files, "metadata", "trust-clock", "--yes")
    run(files, delete_records)


def test_a_run_since_the_last_copy_shows_the_time_too(files: RemoteLogFiles) -> None:
    """The store keeps when its generation was renewed."""
    files.clock.now += 5 * DAY
    run(files, expire)
    forget_reading(files)
    files.clock.now += SKEW
    run(files, check)


def test_a_clock_that_was_never_read_may_not_be_behind(files: RemoteLogFiles) -> None:
    forget_reading(files)
    files.clock.step(-2 * HOUR)
    refused(files, delete_records, "never read.* earlier, and nothing")


def test_segments_marked_before_the_first_reading_wait_their_grace_time_again(files: RemoteLogFiles) -> None:
    run(files, delete_records)
    forget_reading(files)
    files.clock.now += 2 * HOUR
    files.clock.is_synchronised = True
    run(files, expire)
    assert len(files.objects()) == 9
    files.clock.now += GRACE
    run(files, expire)
    assert len(files.objects()) == 3


def on_machine(files: RemoteLogFiles, boot_id: str, started: int) -> None:
    """Let the next run be one of the machine that runs since `started`; all machines show the same time."""
    files.clock.boot_id, files.clock.started = boot_id, started


def test_machines_that_take_turns_each_keep_their_grace_time(files: RemoteLogFiles) -> None:
    first, second = (files.clock.boot_id, files.clock.started), ("another", files.clock.started - DAY)
    files.clock.is_synchronised = True
    run(files, delete_records)
    on_machine(files, *second)
    run(files, check)
    for machine in (first, second, first):
        files.clock.now += GRACE // 3 + MINUTE
        on_machine(files, *machine)
        run(files, expire)

    assert len(files.objects()) == 3


def test_a_clock_that_is_behind_another_machines_deletes_nothing(files: RemoteLogFiles) -> None:
    first, second = (files.clock.boot_id, files.clock.started), ("another", files.clock.started - DAY)
    files.clock.now += 2 * HOUR
    files.clock.is_synchronised = True
    on_machine(files, *second)
    run(files, check)

    on_machine(files, *first)
    files.clock.now -= 2 * HOUR
    refused(files, delete_records, "another one showed .*2:00:00 later")
    assert run_on(files, "metadata", "trust-clock", "--yes").exit_code == 0
    run(files, delete_records)


def test_a_jump_is_found_whatever_machines_ran_in_between(files: RemoteLogFiles) -> None:
    first = (files.clock.boot_id, files.clock.started)
    files.clock.is_synchronised = True
    on_machine(files, "another", files.clock.started - DAY)
    run(files, check)
    on_machine(files, *first)
    files.clock.step(YEAR)

    refused(files, delete_records, "ahead by 365 days")


def test_a_dry_run_reports_a_clock_that_was_never_read_and_records_nothing(files: RemoteLogFiles) -> None:
    forget_reading(files)
    files.clock.step(YEAR)
    assert "never read" in run_on(files, "expire", "--dry-run").err
    with files.open() as remote_log:
        assert remote_log.context.store.clock_readings.latest() is None
