"""What a person does in Airflow's own pages, and backfills by its command line, too; needs chromium."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from browser.backfills import Backfilled
from browser.past_log import PARTITIONS, WINDOW, closed_by
from browser.runs_by_hand import DAMAGED, DOUBT, RESTORED, STUCK_AFTER_MS
from browser.stage import Committed, stage
from browser.take_pictures import Seen, walk
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded.credentials import ADMIN

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

MOST_BYTES_OF_A_PICTURE = 250_000
PICTURES = (
    "backfill-form",
    "backfill-runs",
    "commit-names",
    "connection-form",
    "copy-progress",
    "copy-run",
    "dags",
    "dry-run",
    "red-run",
    "remote-log-page",
    "remote-log-page-dark",
    "remote-log-page-narrow",
    "remote-log-segment",
    "restore-form",
    "restored",
    "run-report",
    "stop-form",
    "stopped-deletion",
    "stuck-copy",
    "trigger-form",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Iterator[Seen]:
    with stage(tmp_path_factory.mktemp("stage"), pictures, free_ports(1)[0]) as open_stage:
        yield walk(open_stage)


def due(start: datetime, window_end: datetime) -> Committed:
    """The segments that a window's run must commit after the runs of all earlier windows have ended."""
    return frozenset(
        (str(partition), number * partition.segment_records, (number + 1) * partition.segment_records - 1)
        for partition in PARTITIONS
        for number in range(closed_by(partition, start, window_end - WINDOW), closed_by(partition, start, window_end))
    )


def _copied(seen: Seen) -> set[tuple[str, int]]:
    """The partitions and base offsets of all that was committed."""
    runs = [run for backfilled in both(seen) for run in backfilled.committed.values()]
    return {
        (partition, first)
        for run in (*runs, seen.stuck.committed, seen.damaged.committed)
        for partition, first, _ in run
    }


def both(seen: Seen) -> tuple[Backfilled, Backfilled]:
    return seen.by_browser, seen.by_command_line


def test_each_window_takes_the_segments_whose_successor_begins_by_its_end(seen: Seen) -> None:
    for backfilled in both(seen):
        assert backfilled.committed == {end: due(seen.start, end) for end in backfilled.committed}
        assert all(backfilled.committed.values())


def test_a_successor_that_begins_a_second_late_leaves_its_segment_to_the_next_window(seen: Seen) -> None:
    first, second = list(seen.by_browser.committed.values())[:2]
    assert first == {("orders-0", 0, 199)}
    assert ("orders-1", 0, 199) in second


def test_a_backfill_that_runs_twice_changes_nothing(seen: Seen) -> None:
    for backfilled in both(seen):
        assert set(backfilled.committed_again.values()) == {frozenset()}
        assert backfilled.after_again == backfilled.after


def test_a_dry_run_by_the_form_commits_nothing(seen: Seen) -> None:
    assert seen.dry_run == frozenset()


def test_a_stuck_copy_is_ended_and_retried(seen: Seen) -> None:
    assert f"no byte moved for {STUCK_AFTER_MS // 1000} s" in seen.stuck.first_try
    assert seen.stuck.tries == 2
    assert {partition for partition, _, _ in seen.stuck.committed} == {"orders-0"}


def test_a_damaged_segment_fails_its_run_and_delays_no_other_partition(seen: Seen) -> None:
    assert {partition for partition, _, _ in seen.damaged.committed} == {"orders-0", "payments-0"}
    assert f"{DAMAGED}: CorruptRecordError" in seen.damaged.failures


def test_a_deletion_during_a_stop_fails_and_names_who_stopped_it_and_why(seen: Seen) -> None:
    assert "DeletionRefusedError" in seen.stopped.red.failures
    assert f"{ADMIN} stopped all deletions at " in seen.stopped.red.failures
    assert f"({DOUBT})" in seen.stopped.red.failures
    assert seen.stopped.kept


def test_the_same_deletion_is_done_once_the_stop_is_lifted(seen: Seen) -> None:
    assert seen.stopped.after_lift.state == "success"


def test_a_topic_that_is_restored_by_the_form_has_the_bytes_that_were_copied(seen: Seen) -> None:
    copied = {(partition, first) for partition, first in _copied(seen) if partition.startswith(f"{RESTORED}-")}
    assert {(path.parent.name, int(path.stem)) for path in seen.restored} == copied
    for path, content in seen.restored.items():
        assert content == seen.written[path], path


def test_the_pictures_are_there_and_small(seen: Seen, pictures: Path) -> None:
    sizes = {path.stem: path.stat().st_size for path in pictures.glob("*.png")}
    assert sorted(sizes) == sorted(PICTURES)
    assert max(sizes.values()) < MOST_BYTES_OF_A_PICTURE
