"""Nothing is deleted by a clock that jumped, where the store may have the same clock."""

from __future__ import annotations

import io
import os
import runpy
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.command_line import mentions, run_on
from support.object_stores import OWN_STORE
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    copy,
    states_of,
    topic_id,
)
from tiered_storage.clock import as_date, is_synchronised_by_ntp, machine_boot_time
from tiered_storage.errors import DeletionRefusedError, RemoteStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.retention.permission.clock_agreement import GraceTime, has_own_clock
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY
SKEW = 5 * MINUTE
GRACE = HOUR


@pytest.fixture
def without_cloud_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What the machine of the tests has set does not count."""
    for name in os.environ:
        if name.upper().startswith(("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three segments of a topic that keeps a week were copied by a right clock; a grace time of an hour."""
    kept = {**ENABLED, "retention.ms": 7 * DAY, "local.retention.ms": 7 * DAY}
    return a_copied_remote_log(tmp_path, topics={"orders": kept}, remote_log_deletion_grace_ms=GRACE)


def expire(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    remote_log.deletions.mark_expired(plans, "expire")
    remote_log.deletions.delete_marked("expire")


def delete_records(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
    assert plan is not None
    remote_log.deletions.mark_expired([plan], "delete-records")


def delete_topic(remote_log: RemoteLogManager) -> None:
    shutil.rmtree(remote_log.context.settings.log_dirs[0] / "orders-0", ignore_errors=True)
    plan = remote_log.deletions.plan_topic_deletion("orders", topic_id("orders"))
    remote_log.deletions.mark_topic_deleted(plan, "delete-topic")


def trim(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, remote_log.context.clock())
    remote_log.deletions.enforce_local_retention(plans)


def repair(remote_log: RemoteLogManager) -> None:
    plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
    remote_log.repairs.carry_out(plan, "repair", lambda _: pytest.fail())


def check(remote_log: RemoteLogManager) -> None:
    remote_log.deletions.clocks.ensure_agrees()


def run(files: RemoteLogFiles, *operations: Callable[[RemoteLogManager], None]) -> None:
    with files.open() as remote_log:
        for operation in operations:
            operation(remote_log)


def refused(files: RemoteLogFiles, operation: Callable[[RemoteLogManager], None], match: str = "trust-clock") -> None:
    with files.open() as remote_log, pytest.raises(DeletionRefusedError, match=match):
        operation(remote_log)


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


def forget_reading(files: RemoteLogFiles) -> None:
    """Let the metadata be those of an earlier release, which read no clock."""
    with closing(sqlite3.connect(files.root / "state" / "remote_log_metadata.db")) as connection, connection:
        connection.execute("DELETE FROM clock_readings")


def rebuild(files: RemoteLogFiles) -> None:
    """Lose the metadata and make them again from the store, by what the clock shows."""
    for path in (files.root / "state").glob("remote_log_metadata.db*"):
        path.unlink()
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


def test_a_store_with_a_clock_of_its_own_stands_above_the_reading(files: RemoteLogFiles) -> None:
    """Nobody is asked for their word where the store's clock agrees."""
    with files.open() as remote_log:
        clocks = replace(remote_log.deletions.clocks, is_store_independent=True)
        files.clock.step(YEAR)
        assert clocks.why_refused() is None
        clocks.ensure_agrees()
        assert clocks.grace(GRACE) == GraceTime(GRACE)


@pytest.mark.parametrize(
    ("url", "endpoint", "environ", "is_own"),
    [
        ("file:///tmp/store", None, {}, False),
        ("hdfs://namenode:8020/folder", None, {}, False),
        ("s3://bucket/prefix", "http://localhost:9000", {}, False),
        ("s3://bucket/prefix", "http://[::ffff:127.0.0.1]:9000", {}, False),
        ("s3://bucket/prefix", "http://0.0.0.0:9000", {}, False),
        ("s3://bucket/prefix", "http://minio:9000", {}, False),
        ("s3://bucket/prefix", "https://s3.eu-central-1.amazonaws.com", {}, False),
        ("s3://bucket/prefix", None, {"AWS_ENDPOINT": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"aws_endpoint_url": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"AZURE_STORAGE_USE_EMULATOR": "true"}, False),
        ("s3://bucket/prefix", None, {"GOOGLE_BASE_URL": "http://gcs:4443"}, False),
        ("s3://bucket/prefix", None, {"GOOGLE_SERVICE_ACCOUNT": "/etc/key.json"}, False),
        ("s3://bucket/prefix", None, {"AWS_REGION": "r", "AWS_ACCESS_KEY_ID": "k", "MY_ENDPOINT": "e"}, True),
        ("s3://bucket/prefix", None, {}, True),
    ],
)
def test_only_a_store_without_an_endpoint_has_a_clock_of_its_own(
    url: str, endpoint: str | None, environ: dict[str, str], is_own: bool, without_cloud_variables: pytest.MonkeyPatch
) -> None:
    """Any endpoint may be this very machine."""
    for name, value in environ.items():
        without_cloud_variables.setenv(name, value)
    options = ObjectStoreOptions(endpoint=endpoint, region="r", allow_http=True)
    with closing(ObjectRemoteStorageManager(open_object_client(url, options))) as storage:
        assert has_own_clock(storage) is is_own
    named = replace(options, properties={"azure_storage_use_emulator": "true"})
    with closing(ObjectRemoteStorageManager(open_object_client(url, named))) as storage:
        assert not has_own_clock(storage)


@pytest.mark.usefixtures("without_cloud_variables")
def test_a_derived_class_has_the_clock_of_its_client(tmp_path: Path) -> None:
    class Derived(ObjectRemoteStorageManager):
        pass

    for url, is_own in (("s3://bucket/prefix", True), (f"file://{tmp_path}", False)):
        with closing(Derived(open_object_client(url, ObjectStoreOptions(region="r")))) as storage:
            assert has_own_clock(storage) is is_own


def test_the_objects_of_a_class_of_ones_own_may_have_this_machines_clock(tmp_path: Path) -> None:
    own = runpy.run_path(str(OWN_STORE))["SqliteObjects"]
    with closing(ObjectRemoteStorageManager(own(f"sqlite://{tmp_path}/objects.db", 1000))) as storage:
        assert not has_own_clock(storage)


def test_a_store_that_cannot_be_listed_shows_no_clock() -> None:
    assert not has_own_clock(cast(RemoteStorageManager, object()))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_obstore_takes_an_endpoint_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So has_own_clock looks there too."""
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    options = ObjectStoreOptions(region="r", access_key_id="k", secret_access_key="s", max_retries=0)
    with closing(ObjectRemoteStorageManager(open_object_client("s3://bucket/prefix", options))) as storage:
        with pytest.raises(RemoteStorageError, match=r"127\.0\.0\.1:1"):
            storage.read_identity()
        assert not has_own_clock(storage)


def test_this_machines_own_clocks_agree(tmp_path: Path) -> None:
    first, then = machine_boot_time(), machine_boot_time()
    assert first.boot_id == then.boot_id != "unknown"
    assert 0 <= then.ms - first.ms < HOUR


@pytest.mark.parametrize(
    ("state", "status", "is_synchronised"),
    [(0, 0x2001, True), (1, 0x11, True), (0, 0x40, False), (5, 0, False), (5, 0x40, False), (-1, 0, False)],
)
def test_the_kernel_says_whether_ntp_synchronised_the_clock(
    monkeypatch: pytest.MonkeyPatch, state: int, status: int, is_synchronised: bool
) -> None:
    def adjtimex(found: Any) -> int:
        assert found.contents.modes == 0, "nothing is set"
        found.contents.status = status
        return state

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(adjtimex=adjtimex))
    assert machine_boot_time().is_synchronised is is_synchronised


def test_a_kernel_that_does_not_say_it_has_not_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace())
    assert not is_synchronised_by_ntp()
