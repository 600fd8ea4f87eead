"""What the copier makes of producer snapshots that are missing, broken or false."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.logs import GoldenLogs
from support.command_line import mentions
from support.records import USUAL_EXAMPLES
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.producers import producer_history
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, ProducerHistory
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot, write_producer_snapshot
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.copy.copied_producers import (
    copied,
    empty,
    false_at,
    fetched,
    forget_what_was_before,
    missing,
    nonsense,
    snapshot_after,
    snapshot_before,
    torn,
)

GOLDEN = GoldenLogs(Path(__file__).parents[4] / "golden")


def test_files_that_are_true_travel_as_they_are(directory: Path, storage: ObjectRemoteStorageManager) -> None:
    indexes = 0
    for segment in list_segments(directory)[:-1]:
        outcome = copied(segment, storage)

        index = segment.transaction_index_path.read_bytes() if segment.has_transaction_index() else b""
        indexes += bool(index)
        assert outcome.damages == outcome.notices == ()
        assert fetched(outcome, storage, IndexKind.TRANSACTION) == index
        assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == snapshot_after(segment).read_bytes()
    assert indexes == 2


@pytest.mark.parametrize("damage", [missing, empty, nonsense, torn, false_at(20)], ids=lambda damage: damage.__name__)
def test_a_snapshot_that_is_missing_or_broken_is_rebuilt(
    directory: Path, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    for segment in list_segments(directory)[:-1]:
        path = snapshot_after(segment)
        true = path.read_bytes()
        damage(path)

        outcome = copied(segment, storage)

        assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == true
        [message] = (*outcome.damages, *outcome.notices)
        assert (outcome.damages == ()) == (damage is missing)
        assert str(path) in message
        assert "rebuilt from the log" in message
        path.write_bytes(true)


def test_a_snapshot_with_other_open_transactions_is_false(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    path = snapshot_after(aborting)
    true = path.read_bytes()
    first, *others = read_producer_snapshot(path)
    write_producer_snapshot(path, [replace(first, current_transaction_first_offset=1), *others])

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == true
    [message] = outcome.damages
    assert f"{path}: at byte 0: " in message


@pytest.mark.parametrize("earlier", ["kept", "gone"])
def test_a_false_snapshot_before_the_segment_is_found_out(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, earlier: str
) -> None:
    """It has no open transaction. Earlier segments show one, or else the transaction index and the next snapshot."""
    true = [aborting.transaction_index_path.read_bytes(), snapshot_after(aborting).read_bytes()]
    if earlier == "gone":
        forget_what_was_before(aborting)
    write_producer_snapshot(snapshot_before(aborting))

    outcome = copied(aborting, storage)

    found = [fetched(outcome, storage, kind) for kind in (IndexKind.TRANSACTION, IndexKind.PRODUCER_SNAPSHOT)]
    assert found == true
    [message] = outcome.damages
    assert mentions(message, f"{snapshot_before(aborting)}: ", "disagrees")


def test_a_snapshot_is_believed_against_the_index(aborting: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    """It has a checksum; the segments that could tell are gone."""
    snapshot = snapshot_before(aborting).read_bytes()
    true = aborting.transaction_index_path.read_bytes()
    forget_what_was_before(aborting)
    snapshot_before(aborting).write_bytes(snapshot)
    false_at(17)(aborting.transaction_index_path)

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    [message] = outcome.damages
    assert str(aborting.transaction_index_path) in message


def test_a_snapshot_that_has_forgotten_silent_producers_is_true(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    path = snapshot_after(aborting)
    kept = [entry for entry in read_producer_snapshot(path) if entry.current_transaction_first_offset >= 0]
    write_producer_snapshot(path, kept)

    outcome = copied(aborting, storage)

    assert outcome.damages == ()
    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == path.read_bytes()


@pytest.mark.parametrize("damage", [missing, torn])
def test_a_segment_is_copied_without_a_snapshot_that_cannot_be_rebuilt(
    followed: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    followed.transaction_index_path.touch()
    path = snapshot_after(followed)
    damage(path)

    outcome = copied(followed, storage)

    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == b""
    [message] = outcome.notices if damage is missing else outcome.damages
    assert mentions(message, path, "without a producer snapshot")


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(st.data())
def test_a_sound_log_is_copied_right_despite_damaged_side_files(written: Path, chosen: st.DataObject) -> None:
    """Missing, broken, or those of another segment: copied in order, what travels is true."""
    segments = list_segments(written)[:-1]
    files = [each.transaction_index_path.name for each in segments] + [snapshot_after(each).name for each in segments]
    damages = chosen.draw(st.dictionaries(st.sampled_from(files), st.sampled_from([None, b"\xff", *files])))
    with tempfile.TemporaryDirectory() as root:
        directory = shutil.copytree(written, Path(root) / written.name)
        for name, damage in damages.items():
            path = directory / name
            path.unlink(missing_ok=True)
            if isinstance(damage, bytes):
                path.write_bytes(damage)
            elif damage is not None and (written / damage).is_file():
                shutil.copy(written / damage, path)
        storage = ObjectRemoteStorageManager(LocalDirectory(Path(root) / "store"))
        history = ProducerHistory()
        for segment in segments:
            outcome = copied(LogSegment(segment.base_offset, directory), storage, history)

            index = segment.transaction_index_path
            assert fetched(outcome, storage, IndexKind.TRANSACTION) == (index.read_bytes() if index.is_file() else b"")
            snapshot = Path(root) / "travelled.snapshot"
            snapshot.write_bytes(fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT))
            assert open_in(snapshot) == open_in(snapshot_after(segment))


def open_in(snapshot: Path) -> dict[int, int]:
    """The open transactions of a snapshot."""
    return KnownProducers(0, read_producer_snapshot(snapshot)).open_transactions


def test_a_log_without_snapshots_is_not_read_from_its_start_for_every_segment(directory: Path, tmp_path: Path) -> None:
    segments = list_segments(directory)[:-1]
    true = [snapshot_after(segment).read_bytes() for segment in segments]
    for path in directory.glob("*.snapshot"):
        path.unlink()
    read: list[Path] = []

    def watched(path: Path, base_offset: int) -> Iterator[tuple[memoryview, BatchTable]]:
        read.append(path)
        return iterate_segment(path, base_offset)

    storage = ObjectRemoteStorageManager(LocalDirectory(tmp_path / "store"))
    history = ProducerHistory()
    with mock.patch.object(producer_history, "iterate_segment", watched):
        found = [
            fetched(copied(segment, storage, history), storage, IndexKind.PRODUCER_SNAPSHOT) for segment in segments
        ]
        assert read == []
        copied(segments[4], storage, ProducerHistory())

    assert found == true
    assert read == [segment.log_path for segment in segments[:4]]


@pytest.mark.parametrize("topic", ["transactions-0", "epochs-0"])
def test_a_brokers_own_files_are_rebuilt_byte_for_byte(
    tmp_path: Path, storage: ObjectRemoteStorageManager, topic: str
) -> None:
    directory = shutil.copytree(GOLDEN.log_dir / topic, tmp_path / topic)
    segments = list_segments(directory)[:-1]
    brokers = {path: path.read_bytes() for path in directory.iterdir() if path.suffix in (".txnindex", ".snapshot")}
    for path in brokers:
        path.unlink()
    assert segments
    for segment in segments:
        outcome = copied(segment, storage)

        found = [fetched(outcome, storage, kind) for kind in (IndexKind.TRANSACTION, IndexKind.PRODUCER_SNAPSHOT)]
        assert found == [brokers.get(segment.transaction_index_path, b""), brokers[snapshot_after(segment)]]
        assert len(outcome.damages) == (segment.transaction_index_path in brokers)
