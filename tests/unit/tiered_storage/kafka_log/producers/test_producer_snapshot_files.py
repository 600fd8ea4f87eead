from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.kafka_log.files.log_segment import RecoveryEvent
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.producers.producer_snapshot_files import (
    latest_state,
    list_snapshots,
    remove_broken_snapshots,
    remove_snapshots,
    remove_stray_snapshots,
    take_snapshot,
)
from tiered_storage.kafka_log.producers.producer_state import ProducerState


def state(offset: int) -> ProducerState:
    return ProducerState(offset, [ProducerSnapshotEntry(1, 0, offset, offset - 1, 0, 0, -1, -1)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Snapshots at 10, 20, 25, 30 and 37, of which 25 is broken, and files of other names."""
    for offset in (10, 20, 25, 30, 37):
        take_snapshot(tmp_path, state(offset))
    (tmp_path / f"{25:020d}.snapshot").write_bytes(b"broken")
    (tmp_path / f"{5:020d}.snapshot.deleted").write_bytes(b"")
    (tmp_path / f"{5:020d}.log").write_bytes(b"")
    return tmp_path


def test_snapshots_are_found_by_their_names(directory: Path) -> None:
    assert list_snapshots(directory) == [10, 20, 25, 30, 37]
    assert read_producer_snapshot(directory / f"{30:020d}.snapshot") == state(30).snapshot()


@pytest.mark.parametrize(
    ("start", "end", "found"), [(0, 99, 37), (0, 37, 37), (0, 36, 30), (0, 29, 20), (20, 25, 20), (21, 29, None)]
)
def test_the_state_begins_from_the_latest_sound_snapshot_within_reach(
    directory: Path, start: int, end: int, found: int | None
) -> None:
    begun = latest_state(directory, start, end)

    assert begun.end_offset == (start if found is None else found)
    assert begun.snapshot() == (() if found is None else state(found).snapshot())


def test_snapshots_out_of_reach_are_removed(directory: Path) -> None:
    remove_snapshots(directory, 20, 30)

    assert list_snapshots(directory) == [20, 25, 30]


def test_all_stray_snapshots_but_the_latest_are_removed(directory: Path) -> None:
    remove_stray_snapshots(directory, {10, 30})

    assert list_snapshots(directory) == [10, 30, 37]


def test_broken_snapshots_from_an_offset_on_are_removed_and_reported(directory: Path) -> None:
    reported: list[RecoveryEvent] = []
    remove_broken_snapshots(directory, 25, reported.append)
    assert (list_snapshots(directory), reported) == ([10, 20, 25, 30, 37], [])
    remove_broken_snapshots(directory, 20, reported.append)
    assert list_snapshots(directory) == [10, 20, 30, 37]
    assert [event.path.name for event in reported] == ["00000000000000000025.snapshot"]
