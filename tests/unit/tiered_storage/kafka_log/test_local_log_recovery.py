"""What LocalLog.open makes of a directory, in whatever state it was left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.local_logs import NOW, TOPIC_ID, create, records
from tiered_storage.errors import InvalidLogDirectoryError, UnsupportedMagicError
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry, read_leader_epochs
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.offset_index import OffsetIndex
from tiered_storage.kafka_log.segment_scan import scan_segment


def written(directory: Path, batches: Sequence[int] = (3, 1, 2)) -> LocalLog:
    log = create(directory, config=LogConfig(index_interval_bytes=0))
    for i, count in enumerate(batches):
        log.append(records(count, timestamp=NOW + i))
    log.close()
    return log


def test_a_log_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    log = written(tmp_path)
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    with LocalLog.open(log.directory, LogConfig(index_interval_bytes=0)) as reopened:
        assert (reopened.topic, reopened.partition, reopened.topic_id) == ("orders", 3, TOPIC_ID)
        assert (reopened.log_start_offset, reopened.log_end_offset) == (0, 6)
        assert reopened.truncated_bytes == 0
        assert reopened.leader_epochs == (EpochEntry(0, 0),)

    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
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


def test_indexes_that_are_missing_or_nonsense_are_built_anew(tmp_path: Path) -> None:
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


def test_batches_of_an_older_format_are_no_damage_to_be_cut_off(tmp_path: Path) -> None:
    log = written(tmp_path)
    path = log.segments[0].log_path
    content = path.read_bytes()
    path.write_bytes(content[:16] + b"\x01" + content[17:])

    with pytest.raises(UnsupportedMagicError):
        LocalLog.open(log.directory)

    assert path.stat().st_size == len(content)


def test_a_directory_that_holds_no_log_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path)
    (log.directory / "leader-epoch-checkpoint").unlink()
    with pytest.raises(InvalidLogDirectoryError, match="leader-epoch-checkpoint is missing"):
        LocalLog.open(log.directory)

    (tmp_path / "empty-0").mkdir()
    for name in ("empty-0", "missing-0", "other"):
        with pytest.raises(InvalidLogDirectoryError, match="is no directory topic-partition"):
            LocalLog.open(tmp_path / name)


def test_a_directory_that_exists_is_not_created_over(tmp_path: Path) -> None:
    written(tmp_path)

    with pytest.raises(InvalidLogDirectoryError, match="exists"):
        create(tmp_path)
