"""LocalLog has synced the records that it reports as flushed: a crash of the machine loses all others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.local_logs import NOW, create
from support.transactions import ABORT, data
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig

EVERY_BATCH_INDEXED = LogConfig(index_interval_bytes=0)
SIZE = len(data(0, 1, 0))
THREE_BATCHES = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0)


class Synced:
    """Of each file what it held, and of each directory the names in it, when it was last synced in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_in_time: Callable[[], bool] = lambda: True) -> None:
        """Begin to note what is synced; once `is_in_time` says no, it comes too late."""
        self.contents: dict[Path, bytes] = {}
        self.names: dict[Path, set[str]] = {}
        self._is_in_time = is_in_time
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self._is_in_time() and path.is_dir():
            self.names[path] = {each.name for each in path.iterdir()}
        elif self._is_in_time():
            self.contents[path] = path.read_bytes()


def files_of(segment: LogSegment) -> list[Path]:
    return [segment.log_path, *segment.index_paths]


def append_aborted(log: LocalLog, sequence: int) -> None:
    """Append batches that bring an entry to each of the segment's indexes."""
    for i in range(2):
        log.append_encoded_batch(data(0, 1, sequence + i, transactional=True, timestamp=NOW + sequence + i))
    log.append_end_marker(1, 0, ABORT)


def written(directory: Path) -> LocalLog:
    """Eight batches in three segments, of which the last one has room for another."""
    log = create(directory, config=THREE_BATCHES)
    for sequence in range(8):
        log.append_encoded_batch(data(0, 1, sequence))
    return log


@pytest.mark.parametrize("flushed_before", [False, True])
@pytest.mark.parametrize("bring_to_disk", [LocalLog.flush, LocalLog.roll, LocalLog.close])
def test_a_segment_is_synced_with_its_indexes_before_the_recovery_point_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bring_to_disk: Callable[[LocalLog], None], flushed_before: bool
) -> None:
    with create(tmp_path, config=EVERY_BATCH_INDEXED) as log:
        if flushed_before:
            append_aborted(log, 0)
            log.flush()
        append_aborted(log, 2)
        [segment] = log.segments
        recovery_point = log.recovery_point
        synced = Synced(monkeypatch, lambda: log.recovery_point == recovery_point)

        bring_to_disk(log)

        assert log.recovery_point == log.log_end_offset > recovery_point
        contents = {path: path.read_bytes() for path in files_of(segment)}
        assert all(contents.values())
        assert {path: synced.contents.get(path) for path in contents} == contents


def test_the_names_in_the_directory_are_synced_before_a_roll_moves_the_recovery_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path) as log:
        append_aborted(log, 0)
        synced = Synced(monkeypatch, lambda: log.recovery_point == 0)

        log.roll()

        closed, active = log.segments
        names = {path.name for path in (*files_of(closed), active.log_path)}
        assert names <= synced.names[log.directory]


def test_a_flush_after_a_log_was_opened_again_syncs_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path, config=EVERY_BATCH_INDEXED) as log:
        append_aborted(log, 0)
    with LocalLog.open(log.directory, EVERY_BATCH_INDEXED, clock=lambda: NOW) as reopened:
        append_aborted(reopened, 2)
        synced = Synced(monkeypatch)

        reopened.flush()

        for path in files_of(reopened.segments[0]):
            assert synced.contents[path] == path.read_bytes(), path.name


def test_a_torn_end_is_cut_off_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with written(tmp_path) as log:
        path = log.segments[-1].log_path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    synced = Synced(monkeypatch)

    with LocalLog.open(log.directory, THREE_BATCHES, clock=lambda: NOW) as reopened:
        assert reopened.truncated_bytes == SIZE - 1
        assert synced.contents[path] == path.read_bytes() == whole[:SIZE]


def test_a_torn_end_in_the_midst_of_a_log_is_cut_off_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as log:
        path = log.segments[1].log_path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    synced = Synced(monkeypatch)

    with LocalLog.open(log.directory, THREE_BATCHES, clock=lambda: NOW, recovery_point=0) as reopened:
        assert reopened.log_end_offset == 5
        assert synced.contents[path] == path.read_bytes() == whole[: 2 * SIZE]


@pytest.mark.parametrize("end", [0, 1, 4, 7])
def test_a_truncation_is_synced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    with written(tmp_path) as log:
        log.flush()
        synced = Synced(monkeypatch)

        log.truncate_to(end)

        path = log.segments[end // 3].log_path
        assert log.log_end_offset == end
        assert path.stat().st_size == end % 3 * SIZE
        assert synced.contents[path] == path.read_bytes()


def test_a_log_that_is_emptied_is_empty_on_the_disk_before_it_begins_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as log:
        log.flush()
        first = log.segments[0].log_path
        synced = Synced(monkeypatch)

        log.truncate_fully_and_start_at(100)

        assert synced.contents[first] == b""
        assert log.segments[0].log_path.name in synced.names[log.directory]
        assert first.name not in synced.names[log.directory]
