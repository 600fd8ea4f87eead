"""Backfills as a person asks for them, in Airflow's own pages and on its command line; needs chromium."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from browser import take_pictures
from browser.past_log import PARTITIONS, WINDOW, closed_by
from browser.take_pictures import DAMAGED, Backfilled, Committed, Seen

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

MOST_BYTES_OF_A_PICTURE = 200_000
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
    "run-report",
    "trigger-form",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Iterator[Seen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with take_pictures.stage(tmp_path_factory.mktemp("stage"), pictures, port) as stage:
        yield stage.play()


def due(start: datetime, window_end: datetime) -> Committed:
    """What the run of a window has to commit when those of all earlier windows have ended."""
    return frozenset(
        (str(partition), number * partition.segment_records, (number + 1) * partition.segment_records - 1)
        for partition in PARTITIONS
        for number in range(closed_by(partition, start, window_end - WINDOW), closed_by(partition, start, window_end))
    )


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


def test_a_damaged_segment_makes_its_run_red_and_holds_up_nobody_else(seen: Seen) -> None:
    assert seen.red_run.state == "failed"
    assert {partition for partition, _, _ in seen.red_run_committed} == {"orders-0", "payments-0"}
    assert f"{DAMAGED}: CorruptRecordError" in seen.red_run_failures


def test_the_pictures_are_there_and_small(seen: Seen, pictures: Path) -> None:
    sizes = {path.stem: path.stat().st_size for path in pictures.glob("*.png")}
    assert sorted(sizes) == sorted(PICTURES)
    assert max(sizes.values()) < MOST_BYTES_OF_A_PICTURE
