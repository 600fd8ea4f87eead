"""Closed segments that are broken and yet have to be read when a log is opened: for lost indexes, producers, epochs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from support.local_logs import NOW, create, records
from support.transactions import ABORT, COMMIT, data
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.recovery import leader_epoch_recovery
from tiered_storage.kafka_log.producers.producer_snapshot_files import list_snapshots
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from unit.tiered_storage.kafka_log.log.small_logs import SMALL_SEGMENTS, many_segments

SIZE = len(data(0, 1, 0))


def reopen(log: LocalLog) -> LocalLog:
    return LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW)


def break_batch(segment: LogSegment, number: int) -> bytes:
    """Let the batch claim to be of no length that there is; return the `.log` file's content."""
    content = bytearray(segment.log_path.read_bytes())
    content[number * SIZE + 8] = 0x7F
    segment.log_path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_an_index_that_cannot_be_rebuilt_does_not_keep_a_log_closed(tmp_path: Path, kind: str) -> None:
    log = many_segments(tmp_path)
    segment = log.segments[1]
    content = break_batch(segment, 2)
    lost = segment.log_path.with_suffix(f".{kind}")
    lost.unlink(missing_ok=True)
    if kind == "txnindex":
        lost.write_bytes(b"torn")

    for _ in range(2):
        with reopen(log) as reopened:
            [event] = reopened.mended
            assert event.path == lost
            assert str(segment.log_path) in str(event)
            assert reopened.log_end_offset == 11
            assert reopened.read(3, 1) == content[:SIZE]
            assert reopened.read(6, 1)
            with pytest.raises(CorruptRecordError, match=f"at byte {2 * SIZE}"):
                reopened.read(5, 1)
    assert segment.log_path.read_bytes() == content
    assert not lost.exists() or lost.read_bytes() == b"torn"


def test_producers_after_an_unreadable_batch_are_known(tmp_path: Path) -> None:
    log = create(tmp_path, config=SMALL_SEGMENTS)
    log.append_encoded_batch(data(0, 20, 0, transactional=True))
    for sequence in range(3):
        log.append_encoded_batch(data(0, 1, sequence))
    log.append_encoded_batch(data(0, 21, 0, transactional=True))
    for sequence in range(5):
        log.append_encoded_batch(data(0, 2, sequence))
    log.append_encoded_batch(data(0, 22, 0, transactional=True))
    log.append_end_marker(22, 0, ABORT)
    log.close()
    content = break_batch(log.segments[1], 2)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()

    with reopen(log) as reopened:
        known = [(entry.producer_id, entry.last_sequence) for entry in reopened.producers if entry.last_offset >= 0]
        assert known == [(2, 4), (22, 0)]
        assert (reopened.last_stable_offset, reopened.log_end_offset) == (0, 12)
        assert [event.path for event in reopened.mended] == [log.segments[1].log_path]
        assert "is unknown" in str(reopened.mended[0])
        assert reopened.append_encoded_batch(data(0, 2, 5)) == 12
    assert log.segments[1].log_path.read_bytes() == content


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_transaction_that_was_open_before_the_damage_stays_open(tmp_path: Path, kind: ControlRecordType) -> None:
    log = create(tmp_path, config=SMALL_SEGMENTS)
    log.append_encoded_batch(data(0, 20, 0, transactional=True))
    for sequence in range(8):
        log.append_encoded_batch(data(0, 2, sequence))
    log.close()
    break_batch(log.segments[0], 2)
    for path in log.directory.glob("*.snapshot"):
        path.write_bytes(b"broken")

    for _ in range(2):
        with reopen(log) as reopened:
            assert reopened.last_stable_offset == 0
            assert not reopened.fetch(0, SIZE, Isolation.READ_COMMITTED).batches
            reopened.roll()
        assert not list_snapshots(log.directory)
    with reopen(log) as reopened:
        end = reopened.log_end_offset
        # Of its sequence numbers nothing is known, as the damage may hide some.
        reopened.append_encoded_batch(data(0, 20, 7, transactional=True))
        marker = reopened.append_end_marker(20, 0, kind)
        assert reopened.last_stable_offset == end + 2
        aborted = reopened.fetch(0, SIZE, Isolation.READ_COMMITTED).aborted
        assert aborted == ((AbortedTxn(20, 0, marker, marker + 1),) if kind is ABORT else ())


def in_epochs(directory: Path, epochs: list[int]) -> LocalLog:
    """One batch in each of these leader epochs, three in a segment; no epoch is written down."""
    log = create(directory, config=SMALL_SEGMENTS)
    for i, epoch in enumerate(epochs):
        log.append_as_follower(encode_batch([Record(i, NOW, b"key", b"value 0")], partition_leader_epoch=epoch))
    log.close()
    (log.directory / "leader-epoch-checkpoint").unlink()
    return log


@pytest.mark.parametrize(
    ("epochs", "known"),
    [
        ([0] * 12, [(0, 0)]),
        ([0, 0, 0, 2, 2, 2, 2, 2, 2, 5], [(0, 0), (2, 3), (5, 9)]),
        ([-1, -1, 1, 1, 1, 1, 1, 1, 2, 2], [(1, 2), (2, 8)]),
        ([0, 1, 1, 1, 2, 2, 2, 2], [(0, 0), (1, 1), (2, 4)]),
    ],
)
def test_leader_epochs_are_known_unless_a_broken_batch_hides_one(
    tmp_path: Path, epochs: list[int], known: list[tuple[int, int]]
) -> None:
    log = in_epochs(tmp_path, epochs)
    content = break_batch(log.segments[1], 2)

    with reopen(log) as reopened:
        assert reopened.leader_epochs == tuple(EpochEntry(*entry) for entry in known)
    assert log.segments[1].log_path.read_bytes() == content


@pytest.mark.parametrize(
    ("epochs", "number"), [([0, 0, 0, 0, 0, 0, 1], 2), ([0, 0, 0, 0, 1, 1, 2, 2], 1), ([-1] * 6 + [3], 0)]
)
def test_recovery_does_not_guess_where_an_epoch_begins(tmp_path: Path, epochs: list[int], number: int) -> None:
    log = in_epochs(tmp_path, epochs)
    content = break_batch(log.segments[1], number)

    with pytest.raises(CorruptRecordError, match=rf"at byte {number * SIZE}: .*leader-epoch-checkpoint") as caught:
        reopen(log)

    assert caught.value.path == str(log.segments[1].log_path)
    assert log.segments[1].log_path.read_bytes() == content
    (log.directory / "leader-epoch-checkpoint").write_text("0\n1\n1 4\n")
    reopen(log).close()


def test_a_log_without_epochs_is_not_read_whole_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = in_epochs(tmp_path, [-1] * 30)
    reading = Mock(wraps=iterate_segment)
    monkeypatch.setattr(leader_epoch_recovery, "iterate_segment", reading)
    with reopen(log) as reopened:
        assert reopened.leader_epochs == ()
    assert reading.call_count <= 1

    with reopen(log) as reopened:
        reopened.append(records(), leader_epoch=4)
        assert reopened.leader_epochs == (EpochEntry(4, 30),)
