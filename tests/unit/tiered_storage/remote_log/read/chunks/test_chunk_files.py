from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, flip_bit, records
from support.small_disks import small_disk
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.checked_chunk import CheckedChunk, read_chunk
from tiered_storage.remote_log.read.chunks.chunk_files import LOCK, ChunkFiles

SEGMENT = RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, "A" * 22), 0, 99, 0, 0, 0, (EpochEntry(0, 0),))


def a_chunk(number: int) -> CheckedChunk:
    """The chunk of ten records from offset 10 * `number` on."""
    content = encode_batch(records(10 * number, 10 * number + 10))
    entry = RemoteLogIndexEntry(10 * number, 10 * number + 9, 0, 0, "object", 0, len(content))
    return read_chunk(SEGMENT, entry, content)


SIZE = len(a_chunk(0).content)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.name != LOCK)


def test_a_chunk_comes_back_as_it_was(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path / "cache", 10 * SIZE)
    for number in range(3):
        files.put(number, a_chunk(number))
    for number in range(3):
        found = files.take(number)
        assert found is not None
        assert (found.content, found.entry) == (a_chunk(number).content, a_chunk(number).entry)
        assert found.table.last_offset.tolist() == [10 * number + 9]
    assert files.take("another") is None
    files.close()
    assert list((tmp_path / "cache").iterdir()) == []
    files.close()


def test_the_least_recently_used_entry_is_evicted(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path, 3 * SIZE + 10)
    for number in range(5):
        files.put(number, a_chunk(number))
        files.take(0)
        files.put(0, a_chunk(0))
        assert files.held_bytes == sum(path.stat().st_size for path in files_of(tmp_path)) <= 3 * SIZE + 10
    assert [files.take(number) is not None for number in range(5)] == [True, False, False, True, True]
    files.close()


@pytest.mark.parametrize("position", [0, 8, 30, SIZE - 1])
def test_a_chunk_that_the_disk_damaged_is_not_returned(tmp_path: Path, position: int) -> None:
    files = ChunkFiles(tmp_path, 10 * SIZE)
    files.put("key", a_chunk(1))
    [path] = files_of(tmp_path)
    flip_bit(path, position)
    assert files.take("key") is None
    assert (files_of(tmp_path), files.held_bytes) == ([], 0)
    files.put("key", a_chunk(1))
    files_of(tmp_path)[0].unlink()
    assert files.take("key") is None
    files.close()


def test_a_disk_that_takes_nothing_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ChunkFiles(tmp_path, 10 * SIZE)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    files.put("key", a_chunk(1))
    assert (files.take("key"), files.held_bytes) == (None, 0)
    files.close()


def test_folders_of_dead_processes_are_deleted_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    living = ChunkFiles(tmp_path, 10 * SIZE)
    living.put("key", a_chunk(1))
    dead = tmp_path / "4711-0123456789abcdef"
    dead.mkdir()
    (dead / LOCK).touch()
    (dead / "0").write_bytes(b"chunk")
    somebodys = tmp_path / "no-folder-of-ours"
    somebodys.mkdir()

    other = ChunkFiles(tmp_path, 10 * SIZE)

    assert not dead.exists()
    assert somebodys.exists()
    assert living.take("key") is not None
    living.close()
    other.close()


def test_a_folder_that_cannot_be_made_is_a_setting_that_cannot_be_meant(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"remote\.log\.reader\.cache\.disk\.bytes to 0"):
        ChunkFiles(tmp_path / "file", 10 * SIZE)


@pytest.mark.parametrize("inodes", [1, 2, 3])
def test_a_disk_without_room_for_a_folder_keeps_no_chunk_and_stops_no_reader(tmp_path: Path, inodes: int) -> None:
    with small_disk(tmp_path / "disk", options=f",nr_inodes={inodes}") as disk:
        files = ChunkFiles(disk, 10 * SIZE)
        files.put("key", a_chunk(0))
        assert files.take("key") is None
        files.close()
