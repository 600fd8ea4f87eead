from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.local_logs import NOW, TOPIC_ID, create, read_all, records
from support.transactions import data
from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.record_batch import encode_batch

SIZE = len(encode_batch(records()))
KEEP_ALL = {"retention_ms": -1, "retention_bytes": -1}


def log_of(
    directory: Path, batches: int = 6, *, now: list[int] | None = None, timestamp: int | None = None, **retention: int
) -> LocalLog:
    """Segments of two batches each, of which the last may be half full; a batch is a second later than the last one."""
    config = LogConfig(segment_bytes=2 * SIZE, file_delete_delay_ms=1000, **(KEEP_ALL | retention))
    log = create(directory, config=config, clock=lambda: (now or [NOW])[0])
    for i in range(batches):
        log.append(records(timestamp=NOW + 1000 * i if timestamp is None else timestamp), leader_epoch=i // 2)
    return log


def bases(log: LocalLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def suffixes(log: LocalLog) -> dict[str, int]:
    """How many `.log` files there are, and how many are marked."""
    return {kind: len(list(log.directory.glob(f"*.log{kind}"))) for kind in ("", ".deleted")}


@pytest.mark.parametrize(
    ("elapsed", "kept"),
    [(10_000, [0, 2, 4]), (11_000, [0, 2, 4]), (11_001, [2, 4]), (13_001, [4]), (15_001, [6]), (99_999, [6])],
)
def test_segments_are_deleted_once_their_last_record_is_too_old(tmp_path: Path, elapsed: int, kept: list[int]) -> None:
    now = [NOW]
    with log_of(tmp_path, now=now, retention_ms=10_000) as log:
        now[0] = NOW + elapsed
        gone = log.delete_old_segments()

        assert bases(log) == kept
        assert [segment.base_offset for segment in gone] == [0, 2, 4][: kept[0] // 2]
        assert (log.log_start_offset, log.log_end_offset) == (kept[0], 6)
        assert [record.offset for record in read_all(log)] == list(range(kept[0], 6))
        assert log.append(records(timestamp=NOW + elapsed)) == 6


@pytest.mark.parametrize(
    ("bytes_kept", "kept"),
    [(6 * SIZE, [0, 2, 4]), (4 * SIZE + 1, [0, 2, 4]), (4 * SIZE, [2, 4]), (2 * SIZE, [4]), (1, [4]), (0, [6])],
)
def test_segments_are_deleted_while_the_log_stays_as_large_as_it_is_to_be(
    tmp_path: Path, bytes_kept: int, kept: list[int]
) -> None:
    with log_of(tmp_path, retention_bytes=bytes_kept) as log:
        log.delete_old_segments()

        assert bases(log) == kept


@pytest.mark.parametrize("content", [None, b"", b"torn", b"\xff" * 12])
def test_a_broken_time_index_does_not_stop_retention(tmp_path: Path, content: bytes | None) -> None:
    now = [NOW]
    with log_of(tmp_path, now=now, retention_ms=10_000) as log:
        path = log.segments[1].time_index_path
        sound = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        now[0] = NOW + 11_001
        log.delete_old_segments()

        assert bases(log) == [2, 4]
        assert path.read_bytes() == sound
        assert [event.path for event in log.mended] == [path]


def test_a_time_index_that_is_wrong_costs_no_records(tmp_path: Path) -> None:
    now = [NOW]
    with log_of(tmp_path, now=now, retention_ms=10_000) as log:
        path = log.segments[0].time_index_path
        path.write_bytes((1).to_bytes(8, "big") + bytes(4))
        now[0] = NOW + 11_000
        log.delete_old_segments()
        assert bases(log) == [0, 2, 4]

        now[0] += 1
        log.delete_old_segments()
        assert bases(log) == [2, 4]


def test_a_closed_segment_whose_indexes_are_lost_meanwhile_is_read_and_cut(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        for path in (*log.segments[0].index_paths, *log.segments[1].index_paths):
            path.unlink(missing_ok=True)

        assert [record.offset for record in read_all(log)] == list(range(6))
        log.segments[1].offset_index_path.unlink()
        log.truncate_to(3)
        assert [record.offset for record in read_all(log)] == list(range(3))


def test_records_without_a_time_are_as_old_as_their_file(tmp_path: Path) -> None:
    now = [NOW]
    with log_of(tmp_path, now=now, timestamp=-1, retention_ms=10_000) as log:
        log.flush()
        for segment, age in zip(log.segments, (20_000, 5_000, 0), strict=True):
            os.utime(segment.log_path, ns=((NOW - age) * 1_000_000, (NOW - age) * 1_000_000))

        log.delete_old_segments()

        assert bases(log) == [2, 4]


def test_no_segment_at_or_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    with log_of(tmp_path, retention_bytes=0) as log:
        log.update_high_watermark(3)
        log.delete_old_segments()
        assert bases(log) == [2, 4]

        log.update_high_watermark(4)
        log.delete_old_segments()
        assert bases(log) == [4]


def test_without_limits_nothing_is_deleted_and_an_empty_log_stays(tmp_path: Path) -> None:
    with log_of(tmp_path / "full", now=[NOW * 2]) as log:
        assert log.delete_old_segments() == ()
    with log_of(tmp_path / "empty", 0, retention_bytes=0, retention_ms=0) as log:
        assert log.delete_old_segments() == ()
        assert bases(log) == [0]


def test_deleted_records_are_out_of_reach_and_their_segments_are_deleted(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        log.delete_records(3)

        assert log.log_start_offset == 3
        assert log.leader_epochs == (EpochEntry(1, 3), EpochEntry(2, 4))
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 2\b.*offsets 3 to 5\b"):
            log.read(2, 100)
        assert log.read(3, 1)
        assert bases(log) == [0, 2, 4]
        log.delete_old_segments()
        assert bases(log) == [2, 4]
        assert log.log_start_offset == 3

        log.delete_records(1)
        assert log.log_start_offset == 3
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(7)
        log.delete_records(6)
        log.delete_old_segments()
        assert (bases(log), log.log_start_offset, log.read(6, 100)) == ([4], 6, b"")


def test_a_transaction_from_below_the_log_start_holds_the_stable_offset_at_the_start(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 1, 0, transactional=True))
        log.append(records(3))
        log.delete_records(2)

        assert log.last_stable_offset == 2


def test_a_deleted_segments_files_are_removed_after_a_delay(tmp_path: Path) -> None:
    now = [NOW]
    with log_of(tmp_path, now=now) as log:
        log.delete_records(4)
        log.delete_old_segments()
        assert suffixes(log) == {"": 1, ".deleted": 2}
        assert not (log.directory / "00000000000000000002.snapshot").exists()

        now[0] += 999
        log.delete_old_segments()
        assert suffixes(log) == {"": 1, ".deleted": 2}
        now[0] += 1
        log.delete_old_segments()
        assert suffixes(log) == {"": 1, ".deleted": 0}
        assert not list(log.directory.glob("*.deleted"))


def test_opening_a_log_removes_files_that_wait_for_deletion(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        log.delete_records(4)
        log.delete_old_segments()

    with LocalLog.open(log.directory, log_start_offset=4) as reopened:
        assert suffixes(reopened) == {"": 1, ".deleted": 0}
        assert (reopened.log_start_offset, reopened.topic_id) == (4, TOPIC_ID)


def test_a_log_is_opened_with_the_start_that_it_had(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        pass
    with LocalLog.open(log.directory, log_start_offset=3) as reopened:
        assert reopened.log_start_offset == 3
        assert reopened.leader_epochs == (EpochEntry(1, 3), EpochEntry(2, 4))
    with LocalLog.open(log.directory, log_start_offset=50) as reopened:
        assert (reopened.log_start_offset, reopened.log_end_offset, bases(reopened)) == (50, 50, [50])


def test_a_broken_segment_of_unknown_age_stops_only_retention_by_time(tmp_path: Path) -> None:
    now = [NOW]
    with log_of(tmp_path, 8, now=now, retention_ms=10_000) as log:
        log.flush()
        broken = log.segments[1]
        content = bytearray(broken.log_path.read_bytes())
        content[SIZE + 8] = 0x7F
        broken.log_path.write_bytes(content)
        broken.time_index_path.unlink()
        now[0] = NOW + 99_999

        assert [segment.base_offset for segment in log.delete_old_segments()] == [0]
        assert log.delete_old_segments() == ()
        events = [event for event in log.mended if event.path == broken.log_path]
        assert [event.fault.split(":")[0] for event in events] == [f"at byte {SIZE}"]
        log.delete_records(4)
        assert [segment.base_offset for segment in log.delete_old_segments()] == [2, 4, 6]
        assert bases(log) == [8]
