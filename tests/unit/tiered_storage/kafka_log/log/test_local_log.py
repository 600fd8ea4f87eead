from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import ModuleType

import pytest

from support.local_logs import NOW, TOPIC_ID, create, read_all, records
from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidLogDirectoryError,
    InvalidTimestampError,
    LogDirectoryLockedError,
    OffsetOutOfRangeError,
    UnsupportedMagicError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_unlocked
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, read_leader_epochs
from tiered_storage.kafka_log.files.partition_metadata import read_topic_id
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.log import active_segment, log_segments, unified_log
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import (
    TimestampType,
    correct_max_timestamp,
    encode_batch,
    read_batch_header,
    read_records,
)
from tiered_storage.kafka_log.records.segment_scan import scan_segment
from unit.tiered_storage.drawn_records import a_message_of_magic_1


def base_offsets(log: LocalLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def names(log: LocalLog) -> set[str]:
    return {path.name for path in log.directory.iterdir()}


def test_a_new_log_is_an_empty_partition_directory_as_kafka_makes_it(tmp_path: Path) -> None:
    with create(tmp_path / "logs") as log:
        assert (log.topic, log.partition, log.topic_id) == ("orders", 3, TOPIC_ID)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        assert log.read(0, 1000) == b""

    assert log.directory == tmp_path / "logs" / "orders-3"
    assert read_topic_id(log.directory / "partition.metadata") == TOPIC_ID
    assert names(log) == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }


@pytest.mark.parametrize("compression", list(Compression))
def test_appended_records_are_read_with_the_logs_own_offsets(tmp_path: Path, compression: Compression) -> None:
    appended = [
        Record(99, NOW, b"key", b"value", (("a", b"1"), ("a", None))),
        Record(98, NOW + 5, None, b"v" * 1000),
        Record(97, NOW - 5, b"", None),
    ]
    with create(tmp_path, base_offset=500) as log:
        assert log.append(appended, compression) == 500
        assert log.append(appended[:1], compression) == 503
        assert (log.log_start_offset, log.log_end_offset) == (500, 504)

        assert read_all(log) == [
            Record(offset, record.timestamp, record.key, record.value, record.headers)
            for offset, record in enumerate([*appended, appended[0]], 500)
        ]


def test_the_logs_clock_stamps_records_where_it_is_asked_to(tmp_path: Path) -> None:
    ticks = itertools.count(5_000)
    with create(tmp_path, clock=lambda: next(ticks)) as log:
        log.append(records(2), timestamp_type=TimestampType.LOG_APPEND_TIME)

        header = read_batch_header(log.read(0, 1))
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert [record.timestamp for record in read_all(log)] == [header.max_timestamp] * 2
        assert header.base_timestamp == records(2)[0].timestamp, "the producer's time stays, as a broker leaves it"
        assert 5_000 <= header.max_timestamp < 6_000


def test_a_segment_that_would_grow_too_large_is_rolled(tmp_path: Path) -> None:
    size = len(encode_batch(records()))
    with create(tmp_path, config=LogConfig(segment_bytes=2 * size)) as log:
        for _ in range(5):
            log.append(records())

        assert base_offsets(log) == [0, 2, 4]
        assert [segment.size() for segment in log.segments[:2]] == [2 * size, 2 * size]
        assert [record.offset for record in read_all(log)] == list(range(5))


def test_a_segment_is_rolled_by_the_time_of_its_records_and_not_by_the_clock(tmp_path: Path) -> None:
    ticks = itertools.count(0, 10**9)
    with create(tmp_path, clock=lambda: next(ticks), config=LogConfig(segment_ms=1000)) as log:
        for timestamp in (5_000, 6_000, 4_000, 6_001, 7_001, 7_002):
            log.append(records(timestamp=timestamp))

        assert base_offsets(log) == [0, 3, 5]


def test_the_clock_decides_where_records_have_no_time(tmp_path: Path) -> None:
    now = [0]
    with create(tmp_path, clock=lambda: now[0], config=LogConfig(segment_ms=1000)) as log:
        for time in (0, 1000, 1001, 1500):
            now[0] = time
            log.append(records(timestamp=-1))

        assert base_offsets(log) == [0, 2]


def test_a_segment_whose_indexes_are_full_is_rolled(tmp_path: Path) -> None:
    most_times = 4
    with create(tmp_path, config=LogConfig(index_interval_bytes=0, segment_index_bytes=12 * (most_times + 1))) as log:
        for i in range(20):
            log.append(records(timestamp=NOW + i))

        # The first batch of a segment has no entry, and each of the others one.
        assert base_offsets(log) == [0, 5, 10, 15]
        for segment in log.segments[:-1]:
            assert TimeIndex.read(segment.time_index_path, segment.base_offset).offsets.size == most_times


def test_a_segment_whose_offsets_would_leave_its_indexes_is_rolled(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(records())
        log.append_as_follower(encode_batch([Record(2**31 - 1, NOW, b"key", b"value")]))
        log.append(records())

        assert base_offsets(log) == [0, 2**31]


def test_a_roll_leaves_a_segment_as_kafka_closes_it(tmp_path: Path) -> None:
    size = len(encode_batch(records()))
    with create(tmp_path, config=LogConfig(segment_bytes=3 * size, index_interval_bytes=size)) as log:
        for timestamp in (NOW, NOW + 7, NOW + 3, NOW):
            log.append(records(timestamp=timestamp))

        closed, active = log.segments
        offset_index = OffsetIndex.read(closed.offset_index_path, 0)
        time_index = TimeIndex.read(closed.time_index_path, 0)
        assert (offset_index.offsets.tolist(), offset_index.positions.tolist()) == ([2], [2 * size])
        assert (time_index.timestamps.tolist(), time_index.offsets.tolist()) == ([NOW + 7], [1])
        assert closed.offset_index_path.stat().st_size == 8
        assert active.base_offset == 3
        assert read_producer_snapshot(log.directory / "00000000000000000003.snapshot") == ()


def test_a_segment_of_1970_is_opened_again_as_it_is(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(records(timestamp=0))
        log.roll()
        closed = log.segments[0]
    assert closed.time_index_path.read_bytes() == bytes(12)

    for _ in range(2):
        with LocalLog.open(log.directory, LogConfig(retention_ms=NOW + 1), clock=lambda: NOW) as opened:
            opened.delete_old_segments()
            assert opened.mended == ()
            assert opened.log_start_offset == 0


def test_a_leader_epoch_that_rises_is_written_down_before_its_first_batch(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        checkpoint = log.directory / "leader-epoch-checkpoint"
        assert read_leader_epochs(checkpoint) == ()
        log.append(records(2))
        log.append(records(3), leader_epoch=4)
        log.append(records(1))
        log.append_encoded_batch(encode_batch(records(1), partition_leader_epoch=1), leader_epoch=5)

        assert log.leader_epochs == (EpochEntry(0, 0), EpochEntry(4, 2), EpochEntry(5, 6))
        assert read_leader_epochs(checkpoint) == log.leader_epochs
        log.flush()
        assert scan_segment(log.segments[0].log_path, 0).partition_leader_epoch.tolist() == [0, 4, 4, 5]


@pytest.mark.parametrize("leader_epoch", [3, -1, 2**31])
def test_a_leader_epoch_that_is_over_is_refused_and_nothing_is_appended(tmp_path: Path, leader_epoch: int) -> None:
    with create(tmp_path) as log:
        log.append(records(), leader_epoch=4)

        with pytest.raises(ConfigurationError, match=rf"orders-3.*epoch {leader_epoch}.*epoch 4\b"):
            log.append(records(), leader_epoch=leader_epoch)
        with pytest.raises(ConfigurationError, match=rf"epoch {leader_epoch}.*epoch 4\b"):
            log.append_encoded_batch(encode_batch(records()), leader_epoch=leader_epoch)

        assert log.log_end_offset == 1


@pytest.mark.parametrize("setting", ["max_message_bytes", "segment_bytes"])
def test_a_batch_that_is_too_large_is_refused_and_nothing_is_appended(tmp_path: Path, setting: str) -> None:
    size = len(encode_batch(records(10)))
    with create(tmp_path, config=LogConfig(**{setting: size - 1})) as log:
        log.append(records())

        with pytest.raises(ConfigurationError, match=f"orders-3.*{size} bytes.*{size - 1}"):
            log.append(records(10))

        assert log.log_end_offset == 1
        assert base_offsets(log) == [0]


def test_an_encoded_batch_is_kept_as_it_is_but_for_its_place(tmp_path: Path) -> None:
    batch = encode_batch(
        [Record(70, NOW, b"a", b"b"), Record(71, NOW, b"c", b"d")], Compression.ZSTD, partition_leader_epoch=9
    )
    with create(tmp_path, base_offset=5) as log:
        assert log.append_encoded_batch(batch) == 5

        found = log.read(5, 1)
        assert found[16:] == batch[16:]
        assert read_records(found) == [Record(5, NOW, b"a", b"b"), Record(6, NOW, b"c", b"d")]
        assert read_batch_header(found).partition_leader_epoch == 0


def test_an_encoded_batch_that_is_not_whole_or_not_ours_to_keep_is_refused(tmp_path: Path) -> None:
    batch = encode_batch(records())
    flipped = batch[:-1] + bytes([batch[-1] ^ 1])
    gap = encode_batch([Record(0, NOW, None, None), Record(2, NOW, None, None)])
    unnumbered = encode_batch(records(), producer_id=7, producer_epoch=0)
    nobodys = encode_batch(records(), is_transactional=True)
    marker = encode_end_marker(
        EndTransactionMarker(ControlRecordType.COMMIT, 0, NOW), 0, producer_id=7, producer_epoch=0
    )
    old = a_message_of_magic_1(0)
    with create(tmp_path) as log:
        for refused, error, reason in (
            (batch[:-1], CorruptRecordError, "are given"),
            (batch + b"\x00", CorruptRecordError, "are given"),
            (flipped, CorruptRecordError, "CRC"),
            (gap, ConfigurationError, "gaps"),
            (unnumbered, ConfigurationError, "no epoch or no sequence number"),
            (nobodys, ConfigurationError, "has no producer id"),
            (marker, ConfigurationError, "control batch"),
            (old, UnsupportedMagicError, "magic 1"),
        ):
            with pytest.raises(error, match=reason):
                log.append_encoded_batch(refused)

        assert log.log_end_offset == 0


@pytest.mark.parametrize("count", [1, 100])
def test_an_encoded_batch_whose_records_nobody_could_read_is_refused(tmp_path: Path, count: int) -> None:
    batch = bytearray(encode_batch(records(count)))
    batch[-5] = 0x7F  # the length of the last header's value
    correct_max_timestamp(batch, NOW)  # the checksum is that of what is broken
    with create(tmp_path) as log:
        with pytest.raises(CorruptRecordError, match=f"record {count}"):
            log.append_encoded_batch(bytes(batch))

        assert log.log_end_offset == 0


@pytest.mark.parametrize("count", [3, 100])
def test_a_largest_timestamp_that_the_records_belie_is_set_right(tmp_path: Path, count: int) -> None:
    sound = encode_batch([Record(i, NOW + i % 3, None, b"x") for i in range(count)])
    untrue = bytearray(sound)
    correct_max_timestamp(untrue, NOW + 10**9)
    with create(tmp_path) as log:
        log.append_encoded_batch(bytes(untrue))

        assert log.read(0, 1) == sound


LIMITS = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("timestamp", [NOW - 1001, NOW + 501])
def test_records_too_far_from_the_clock_are_refused_unless_it_stamps_them(
    tmp_path: Path, timestamp: int, count: int
) -> None:
    refused = [*records(count - 1), Record(count - 1, timestamp, None, None)]
    with create(tmp_path, config=LIMITS) as log:
        with pytest.raises(InvalidTimestampError, match=f"orders-3.*timestamp {timestamp}"):
            log.append(refused)
        with pytest.raises(InvalidTimestampError, match=f"orders-3.*timestamp {timestamp}"):
            log.append_encoded_batch(encode_batch(refused))
        assert log.log_end_offset == 0

        log.append(refused, timestamp_type=TimestampType.LOG_APPEND_TIME)
        log.append_encoded_batch(encode_batch(refused), timestamp_type=TimestampType.LOG_APPEND_TIME)
        for taken in (NOW - 1000, NOW + 500, -1):
            log.append(records(timestamp=taken))
            log.append_encoded_batch(encode_batch(records(timestamp=taken)))
        assert log.log_end_offset == 2 * count + 6


def test_a_follower_takes_what_its_leader_took(tmp_path: Path) -> None:
    batch = bytearray(encode_batch([Record(0, NOW - 10**9, None, b"x")]))
    correct_max_timestamp(batch, NOW + 10**9)
    with create(tmp_path, config=LIMITS) as log:
        log.append_as_follower(bytes(batch))

        assert log.read(0, 1) == batch


def test_offsets_outside_the_log_are_refused_with_its_range(tmp_path: Path) -> None:
    with create(tmp_path, base_offset=5) as log:
        log.append(records(3))

        for offset in (4, 9):
            with pytest.raises(OffsetOutOfRangeError, match=f"orders-3: offset {offset} .* offsets 5 to 7"):
                log.read(offset, 100)
        assert log.read(8, 100) == b""


def test_flush_brings_batches_and_index_entries_to_the_files(tmp_path: Path) -> None:
    with create(tmp_path, config=LogConfig(index_interval_bytes=0)) as log:
        segment = log.segments[0]
        for expected in ([1, 2], [1, 2, 3, 4, 5]):
            for _ in range(3):
                log.append(records())
            assert scan_segment(segment.log_path, 0).last_offset.size == log.log_end_offset - 3
            log.flush()
            assert scan_segment(segment.log_path, 0).last_offset.size == log.log_end_offset
            assert OffsetIndex.read(segment.offset_index_path, 0).offsets.tolist() == expected


def test_batches_are_gathered_up_to_a_bound(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        for _ in range(30):
            log.append(records(size=100_000))

        assert log.segments[0].size() > 30 * 100_000 - active_segment.WRITE_BYTES


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = create(tmp_path)
    log.append(records())

    log.close()
    log.close()

    assert LocalLog.open(log.directory).log_end_offset == 1


def test_a_full_disk_is_reported_and_what_was_flushed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create(tmp_path)
    log.append(records())
    log.flush()
    log.append(records())

    def no_space(descriptor: int, content: memoryview, position: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        with pytest.raises(OSError, match="No space left"):
            log.flush()
        with pytest.raises(OSError, match="No space left"):
            log.close()

    with LocalLog.open(log.directory) as reopened:
        assert reopened.log_end_offset == 1


def test_a_write_that_the_system_cuts_short_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, at: write(fd, content[:7], at))

    with create(tmp_path) as log:
        log.append(records(3))
        assert len(read_all(log)) == 3


def test_an_invalid_topic_id_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        LocalLog.create(tmp_path, "orders", 0, "no id")
    assert not (tmp_path / "orders-0").exists()


@pytest.mark.parametrize(("module", "step"), [(log_segments, "truncate_log_file"), (unified_log, "load_log")])
def test_a_log_that_fell_over_while_it_was_cut_gives_its_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    log = LocalLog.create(tmp_path, "orders", 0, TOPIC_ID)
    log.append(records(3))
    log.append(records(3))
    if module is unified_log:
        log.roll()

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(module, step, fail)
        with pytest.raises(OSError, match="gone"):
            log.truncate_to(3)
    with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
        log.close()
    LocalLog.open(tmp_path / "orders-0").close()


def test_a_directory_that_holds_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty-0").mkdir()
    for name in ("empty-0", "missing-0", "other"):
        with pytest.raises(InvalidLogDirectoryError, match="is not a directory topic-partition"):
            LocalLog.open(tmp_path / name)


def test_a_directory_that_exists_is_not_created_over(tmp_path: Path) -> None:
    create(tmp_path).close()

    with pytest.raises(InvalidLogDirectoryError, match="exists"):
        create(tmp_path)


def test_the_log_directory_is_locked_for_as_long_as_a_log_in_it_is_open(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        with pytest.raises(LogDirectoryLockedError, match="is in use"):
            create(tmp_path)
        with pytest.raises(LogDirectoryLockedError, match="is in use"):
            LocalLog.open(log.directory)
    ensure_unlocked(tmp_path)

    with pytest.raises(InvalidLogDirectoryError):
        create(tmp_path)
    ensure_unlocked(tmp_path)
    with DirectoryLock.acquire(tmp_path) as lock:
        LocalLog.open(log.directory, lock=lock).close()
        with pytest.raises(LogDirectoryLockedError):
            ensure_unlocked(tmp_path)
