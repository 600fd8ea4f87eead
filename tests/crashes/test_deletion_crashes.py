"""Scenarios 17 to 21 with a killed process: expiry and trims die anywhere, and the next run ends their work."""

from __future__ import annotations

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.recovery import (
    LEASE_MS,
    CrashSite,
    assert_expiry_completes,
    assert_readable,
    assert_settled,
    assert_topic_is_gone,
    assert_trim_completes,
    cells,
    finished_ranges,
    lose_metadata,
    run,
)
from support.plain_reader import PlainReader
from support.remote_logs import BATCH_BYTES, ENABLED, ORDERS_0, assert_clean
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter

PARTITIONS = {("orders", 0): 3, ("orders", 1): 3}
KEEPS_ONE_SEGMENT = {"orders": {**ENABLED, "retention.bytes": 3 * BATCH_BYTES}}
KEEPS_NOTHING_LOCAL = {"orders": {**ENABLED, "local.retention.bytes": 1}}
NOT_TIERED = {"orders": {**ENABLED, "remote.storage.enable": False}}
LOCAL_FILES = 11
"""Log, offset index and time index of the three closed segments of a partition, and snapshots of all but the first."""

EXPIRY_CRASHES = [
    *(Crash(CrashPoint.AFTER_ACQUIRE, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_DOCUMENT, nth) for nth in (1, 2)),
    # Both partitions take these steps at once.
    Crash(CrashPoint.AFTER_LOG_START),
    Crash(CrashPoint.BEFORE_MARKED),
    Crash(CrashPoint.AFTER_MARKED),
    *(Crash(CrashPoint.BEFORE_RELEASE, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_RELEASE),
    *(Crash(CrashPoint.AFTER_OBJECT_GONE, nth) for nth in range(1, 8)),
    Crash(CrashPoint.BEFORE_DELETED),
    Crash(CrashPoint.AFTER_DELETED),
]
TOPIC_CRASHES = [
    *(Crash(CrashPoint.AFTER_ACQUIRE, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_DOCUMENT, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_TOPIC_STARTED, nth) for nth in (1, 2)),
    Crash(CrashPoint.BEFORE_MARKED),
    *(Crash(CrashPoint.AFTER_MARKED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_OBJECT_GONE, nth) for nth in (1, 4)),
    Crash(CrashPoint.BEFORE_DELETED),
    # A batch is one segment here: the first two, the last of the first partition, one of the second.
    *(Crash(CrashPoint.AFTER_DELETED, nth) for nth in (1, 2, 3, 4)),
    # An earlier holder's manifests were deleted before.
    *(Crash(CrashPoint.BEFORE_DOCUMENT_GOES, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_DOCUMENT_GONE, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.BEFORE_TOPIC_FINISHED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.AFTER_TOPIC_FINISHED, nth) for nth in (1, 2)),
    *(Crash(CrashPoint.BEFORE_RELEASE, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_RELEASE),
]
MARK_CRASHES = [
    Crash(point, nth)
    for point in (
        CrashPoint.AFTER_ACQUIRE,
        CrashPoint.AFTER_DOCUMENT,
        CrashPoint.AFTER_DOCUMENT_GONE,
        CrashPoint.AFTER_TOPIC_MARKED,
        CrashPoint.BEFORE_RELEASE,
        CrashPoint.AFTER_RELEASE,
    )
    for nth in (1, 2)
]
RECORDS_CRASHES = [
    Crash(CrashPoint.AFTER_ACQUIRE),
    Crash(CrashPoint.AFTER_DOCUMENT),
    Crash(CrashPoint.AFTER_DOCUMENT_GONE),
    Crash(CrashPoint.AFTER_LOG_START),
    Crash(CrashPoint.BEFORE_MARKED),
    Crash(CrashPoint.AFTER_MARKED),
    Crash(CrashPoint.BEFORE_RELEASE),
    Crash(CrashPoint.AFTER_RELEASE),
]
TRIM_CRASHES = [
    Crash(CrashPoint.BEFORE_LOCAL_FILE_GOES),
    *(Crash(CrashPoint.AFTER_LOCAL_FILE_GONE, nth) for nth in (*range(1, LOCAL_FILES + 2), 2 * LOCAL_FILES)),
]


@pytest.mark.parametrize("crash", cells(EXPIRY_CRASHES))
def test_the_next_expiry_finishes_a_killed_one(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_ONE_SEGMENT)
    site.programs.kill("expire", "--config", files.config, at=crash)
    assert_expiry_completes(files, site.clock, [("orders-0", 20, 29), ("orders-1", 20, 29)])


@pytest.mark.parametrize("crash", cells(TOPIC_CRASHES, daily=1))
def test_the_next_deletion_of_a_topic_finishes_a_killed_one(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS, topics=NOT_TIERED, deletion_batch_segments=1)
    run(files, "delete-topic", "orders")
    site.programs.kill("expire", "--config", files.config, at=crash)

    site.clock.move_by(LEASE_MS + 1)
    run(files, "expire")
    assert_topic_is_gone(files)


@pytest.mark.parametrize("crash", cells(MARK_CRASHES, daily=1))
def test_a_half_marked_topic_is_marked_by_the_next_attempt(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS, topics=NOT_TIERED)
    site.programs.kill("delete-topic", "orders", "--config", files.config, at=crash)

    # Marked segments are deleted and the others unchanged: no state in between.
    site.clock.move_by(LEASE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert_readable(remote_log)
        assert_clean(remote_log)

    run(files, "delete-topic", "orders")
    run(files, "expire")
    assert_topic_is_gone(files)


@pytest.mark.parametrize("crash", RECORDS_CRASHES, ids=str)
def test_half_deleted_records_are_deleted_by_the_next_attempt(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS)
    command = ("delete-records", "orders", 0, "--before", 25)
    site.programs.kill(*command, "--config", files.config, at=crash)
    with files.open() as remote_log:
        start = PlainReader(remote_log).log_start_offset(ORDERS_0)
        assert start in {0, 25}
        assert_readable(remote_log)

    # Without a second request either all records are there or none.
    site.clock.move_by(LEASE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == start
        assert_clean(remote_log)

    run(files, *command)
    run(files, "expire")
    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 25
        kept = [("orders-0", 20, 29), *(("orders-1", first, first + 9) for first in (0, 10, 20))]
        assert finished_ranges(remote_log) == kept
    assert_settled(files)


@pytest.mark.parametrize(
    "point", [CrashPoint.AFTER_DOCUMENT, CrashPoint.AFTER_LOG_START, CrashPoint.AFTER_MARKED], ids=str
)
def test_metadata_that_are_lost_together_with_a_killed_deletion_of_records_never_show_them_again(
    site: CrashSite, point: CrashPoint
) -> None:
    """The store records a deletion first, because metadata are rebuilt from it."""
    files = site.copied(PARTITIONS)
    site.programs.kill("delete-records", "orders", 0, "--before", 25, "--config", files.config, at=Crash(point))
    lose_metadata(files)
    run(files, "rebuild-metadata", "--yes")
    run(files, "topics", "allow-deletion", "orders")
    # Rebuilt metadata have no reading of a clock.
    run(files, "metadata", "trust-clock", "--yes")
    run(files, "expire")
    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 25
        assert_clean(remote_log)


@pytest.mark.parametrize("crash", cells(TRIM_CRASHES))
def test_the_next_trim_finishes_a_killed_one(site: CrashSite, crash: Crash) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_NOTHING_LOCAL)
    site.programs.kill("retain", "--config", files.config, at=crash)
    assert_trim_completes(files, (0, 1), 30)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 6, LOCAL_FILES])
def test_a_broker_starts_on_what_a_killed_trim_left_and_all_continues(site: CrashSite, nth: int) -> None:
    files = site.copied(PARTITIONS, topics=KEEPS_NOTHING_LOCAL)
    site.programs.kill("retain", "--config", files.config, at=Crash(CrashPoint.AFTER_LOCAL_FILE_GONE, nth))
    with LogDirectoryWriter.open(files.log_directory) as broker:
        assert broker.log("orders", 0).log_start_offset == 30
    files.append(2)
    with files.open() as remote_log:
        assert_readable(remote_log)
    run(files, "copy")
    run(files, "retain")
    with files.open() as remote_log:
        assert [end for name, _, end in finished_ranges(remote_log) if name == "orders-0"] == [9, 19, 29, 39]
    assert_settled(files)
