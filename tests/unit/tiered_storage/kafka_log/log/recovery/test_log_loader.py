"""What opening a log makes of its directory, in whatever state it was left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.files import files_in
from support.local_logs import NOW, TOPIC_ID, create, read_all, records
from support.transactions import ABORT, data
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, read_leader_epochs
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import scan_segment
from unit.tiered_storage.drawn_records import a_message_of_magic_1
from unit.tiered_storage.kafka_log.log.small_logs import SMALL_SEGMENTS, many_segments


def written(directory: Path, batches: Sequence[int] = (3, 1, 2)) -> LocalLog:
    log = create(directory, config=LogConfig(index_interval_bytes=0))
    for i, count in enumerate(batches):
        log.append(records(count, timestamp=NOW + i))
    log.close()
    return log


def test_a_log_continues_where_it_was_closed(tmp_path: Path) -> None:
    log = written(tmp_path)
    before = files_in(log.directory)

    with LocalLog.open(log.directory, LogConfig(index_interval_bytes=0)) as reopened:
        assert (reopened.topic, reopened.partition, reopened.topic_id) == ("orders", 3, TOPIC_ID)
        assert (reopened.log_start_offset, reopened.log_end_offset) == (0, 6)
        assert reopened.truncated_bytes == 0
        assert reopened.leader_epochs == (EpochEntry(0, 0),)

    assert files_in(log.directory) == before


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_log_continues(tmp_path: Path) -> None:
    log = written(tmp_path)
    path = log.segments[0].log_path
    content = path.read_bytes()
    whole = int(scan_segment(path, 0).position[-1])

    for length in range(whole, len(content)):
        path.write_bytes(content[:length])
        with LocalLog.open(log.directory, LogConfig(index_interval_bytes=0)) as reopened:
            assert reopened.log_end_offset == 4
            assert reopened.truncated_bytes == length - whole
            assert path.read_bytes() == content[:whole]
            assert reopened.append(records()) == 4
        assert OffsetIndex.read(reopened.segments[0].offset_index_path, 0).offsets.tolist() == [3, 4]


def test_zeros_and_flipped_bits_in_the_last_batch_are_cut_off(tmp_path: Path) -> None:
    log = written(tmp_path)
    path = log.segments[0].log_path
    content = path.read_bytes()
    whole = int(scan_segment(path, 0).position[-1])

    for damaged in (
        content + bytes(1000),
        content[:-1] + bytes([content[-1] ^ 1]),
        content[:whole] + bytes(len(content) - whole),
    ):
        path.write_bytes(damaged)
        with LocalLog.open(log.directory) as reopened:
            sound = len(content) if damaged.startswith(content) else whole
            assert path.stat().st_size == sound
            assert reopened.truncated_bytes == len(damaged) - sound


def test_indexes_that_are_missing_or_nonsense_are_rebuilt(tmp_path: Path) -> None:
    log = written(tmp_path)
    segment = log.segments[0]
    before = segment.offset_index_path.read_bytes(), segment.time_index_path.read_bytes()
    segment.offset_index_path.unlink()
    segment.time_index_path.write_bytes(b"nonsense")

    LocalLog.open(log.directory, LogConfig(index_interval_bytes=0)).close()

    assert (segment.offset_index_path.read_bytes(), segment.time_index_path.read_bytes()) == before


def test_epochs_past_the_end_are_dropped_and_those_of_the_active_segment_are_found(tmp_path: Path) -> None:
    log = create(tmp_path)
    for epoch in (2, 2, 5):
        log.append(records(), leader_epoch=epoch)
    log.close()
    checkpoint = log.directory / "leader-epoch-checkpoint"

    checkpoint.write_text("0\n3\n2 0\n5 2\n7 3\n")
    with LocalLog.open(log.directory) as reopened:
        assert reopened.leader_epochs == (EpochEntry(2, 0), EpochEntry(5, 2))
    assert read_leader_epochs(checkpoint) == (EpochEntry(2, 0), EpochEntry(5, 2))

    checkpoint.write_text("0\n0\n")
    with LocalLog.open(log.directory) as reopened:
        assert reopened.leader_epochs == (EpochEntry(2, 0), EpochEntry(5, 2))


@pytest.mark.parametrize("content", [None, "", "0\n0\n"])
def test_without_a_valid_checkpoint_leader_epochs_come_from_all_batches(tmp_path: Path, content: str | None) -> None:
    size = len(encode_batch(records()))
    config = LogConfig(segment_bytes=2 * size)
    log = create(tmp_path, config=config)
    for epoch in (2, 2, 2, 5, 7, 7, 7):
        log.append(records(), leader_epoch=epoch)
    log.close()
    checkpoint = log.directory / "leader-epoch-checkpoint"
    before = checkpoint.read_bytes()
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_text(content)

    with LocalLog.open(log.directory, config, clock=lambda: NOW) as reopened:
        assert reopened.leader_epochs == (EpochEntry(2, 0), EpochEntry(5, 3), EpochEntry(7, 4))
        assert [event.path for event in reopened.mended] == [checkpoint]
    assert checkpoint.read_bytes() == before
    checkpoint.unlink()
    with LocalLog.open(log.directory, config, clock=lambda: NOW, log_start_offset=1) as reopened:
        assert reopened.leader_epochs == (EpochEntry(2, 1), EpochEntry(5, 3), EpochEntry(7, 4))


def test_a_log_without_any_batch_gets_an_empty_checkpoint(tmp_path: Path) -> None:
    log = create(tmp_path)
    log.close()
    checkpoint = log.directory / "leader-epoch-checkpoint"
    checkpoint.unlink()

    with LocalLog.open(log.directory, clock=lambda: NOW) as reopened:
        assert (reopened.leader_epochs, reopened.mended) == ((), ())
        assert checkpoint.read_text() == "0\n0\n"


def test_batches_of_an_older_format_are_no_damage_to_be_cut_off(tmp_path: Path) -> None:
    log = written(tmp_path)
    path = log.segments[0].log_path
    content = a_message_of_magic_1(0)
    path.write_bytes(content)

    with LocalLog.open(log.directory) as reopened:
        assert (reopened.truncated_bytes, reopened.log_end_offset) == (0, 1)

    assert path.stat().st_size == len(content)


def test_from_the_recovery_point_on_all_is_verified_and_rebuilt(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    before = files_in(log.directory)
    for path in log.directory.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex") or (path.stem == f"{6:020d}" and path.suffix != ".log"):
            path.write_bytes(b"nonsense of any size")

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=1) as reopened:
        assert (reopened.log_end_offset, reopened.truncated_bytes) == (11, 0)
        assert reopened.recovery_point == 1

    assert files_in(log.directory) == before


def test_damage_after_the_recovery_point_ends_the_log_there(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    path = log.segments[1].log_path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=4) as reopened:
        size = len(data(0, 1, 0))
        assert reopened.truncated_bytes > 4 * size
        assert (reopened.log_end_offset, len(reopened.segments)) == (5, 2)
        assert [entry.last_offset for entry in reopened.producers if entry.producer_id == 1] == [3]
        assert [record.offset for record in read_all(reopened) if record.value != b"x"][-2:] == [3, 4]
        assert reopened.append_encoded_batch(data(0, 1, 3)) == 5
    assert {path.stem for path in log.directory.glob("*.log")} == {f"{offset:020d}" for offset in (0, 3)}
    assert {path.stem for path in log.directory.glob("*.snapshot")} == {f"{offset:020d}" for offset in (3, 6)}


def test_damage_before_the_recovery_point_is_not_looked_for(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    path = log.segments[0].log_path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    for recovery_point in (9, None):
        with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=recovery_point) as reopened:
            assert (reopened.log_end_offset, reopened.truncated_bytes) == (11, 0)


def test_zeros_after_a_closed_segment_are_trimmed_and_what_follows_stays(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    before = files_in(log.directory)
    with log.segments[1].log_path.open("ab") as file:
        file.truncate(1 << 20)

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=0) as reopened:
        assert reopened.log_end_offset == 11

    assert files_in(log.directory) == before


def test_indexes_of_closed_segments_that_are_missing_or_broken_are_rebuilt(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    before = files_in(log.directory)
    log.segments[0].offset_index_path.unlink()
    log.segments[1].transaction_index_path.write_bytes(b"broken")
    log.segments[2].time_index_path.write_bytes(b"broken")

    LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW).close()

    assert files_in(log.directory) == before


def test_a_closed_segment_is_read_though_its_index_is_nonsense(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    log.segments[1].offset_index_path.write_bytes(b"\xff" * 16)

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW) as reopened:
        assert [record.offset for record in read_all(reopened)] == list(range(11))


def test_indexes_may_be_preallocated(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    for segment in log.segments:
        for path, size in ((segment.offset_index_path, 8 * 1000), (segment.time_index_path, 12 * 1000)):
            with path.open("ab") as file:
                file.truncate(size)

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW) as reopened:
        assert [record.offset for record in read_all(reopened)] == list(range(11))
        assert reopened.segments[-1].offset_index_path.stat().st_size < 8 * 1000


def test_a_transaction_index_of_the_active_segment_is_rebuilt(tmp_path: Path) -> None:
    log = create(tmp_path)
    log.append_encoded_batch(data(0, 9, 0, transactional=True))
    log.append_end_marker(9, 0, ABORT)
    log.close()
    path = log.segments[0].transaction_index_path
    before = path.read_bytes()
    for content in (b"broken", before + before, b""):
        path.write_bytes(content)
        LocalLog.open(log.directory, clock=lambda: NOW).close()
        assert path.read_bytes() == before
    assert len(TransactionIndex.read(path, 0).transactions) == 1


def test_snapshots_without_a_segment_are_removed_except_the_latest(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    source = log.directory / f"{6:020d}.snapshot"
    for offset in (4, 10, 12, 99):
        (log.directory / f"{offset:020d}.snapshot").write_bytes(source.read_bytes())

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW):
        found = sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))
    assert found == [3, 6, 9, 11]


def test_producers_below_the_log_start_are_known_by_the_last_snapshot(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    known = LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW)
    expected = known.producers
    known.close()
    for path in log.directory.iterdir():
        if (path.name.endswith(".snapshot") and path.stem != f"{11:020d}") or path.stem in (f"{0:020d}", f"{3:020d}"):
            path.unlink()

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW) as reopened:
        assert reopened.producers == expected


def test_an_older_format_in_closed_segments_is_no_hindrance(tmp_path: Path) -> None:
    log = many_segments(tmp_path)
    path = log.segments[0].log_path
    content = path.read_bytes()
    path.write_bytes(content[:16] + b"\x01" + content[17:])
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW) as reopened:
        assert [entry.last_offset for entry in reopened.producers if entry.producer_id == 1] == [10]
