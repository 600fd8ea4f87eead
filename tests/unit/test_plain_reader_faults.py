"""The oracle of reads names each fault and its place, and never skips in silence."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.metadata_stores import a_step
from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    ORDERS_0,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    flip_bit,
    held_by,
    offsets_read,
    rewrite_segment,
    segments_of,
)
from tiered_storage.errors import CorruptRecordError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.offset_checkpoint import write_offset_checkpoint
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.source.log_directory_source import CLEANER_CHECKPOINT
from unit.plain_reads import reader_of, trim


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_lost_object_is_an_error_that_names_it_and_never_a_silent_skip(tmp_path: Path, suffix: str) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 30)
        lost = files.objects(suffix)[1]
        lost.unlink()

        assert list(_offsets(PlainReader(remote_log).records(ORDERS_0, 0), 10)) == list(range(10))
        with pytest.raises(RemoteObjectNotFoundError, match=lost.name):
            offsets_read(remote_log, 0)
        assert offsets_read(remote_log, 20) == list(range(20, 35))


def test_offsets_that_no_tier_has_are_an_error(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 30)
        lease = held_by(remote_log, "test")
        [_, second, _] = segments_of(remote_log)
        step = a_step(second, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(step, lease)

        with pytest.raises(RemoteObjectNotFoundError, match=r"orders-0.*offset 10\b"):
            offsets_read(remote_log, 0)


def test_a_flipped_bit_in_the_store_is_noticed_and_its_place_named(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 30)
        flip_bit(files.objects(".log")[0], BATCH_BYTES + 70)

        with pytest.raises(CorruptRecordError, match=rf"{files.objects('.log')[0].name}: at byte {BATCH_BYTES}: .*CRC"):
            offsets_read(remote_log, 0)


def test_a_flipped_bit_in_a_local_segment_is_noticed_and_its_place_named(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    path = files.local_segments()[1].log_path
    flip_bit(path, BATCH_BYTES + 70)
    with files.open() as remote_log:
        for start in (0, 12, 17):
            with pytest.raises(CorruptRecordError, match=rf"{path}: at byte {BATCH_BYTES}: .*CRC"):
                offsets_read(remote_log, start)


def test_a_chunk_that_holds_nothing_of_what_its_index_says_is_noticed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 30)
        stored = files.objects(".log")[1]
        first, second = batches_in(stored)
        rewrite_segment(stored, [struct.pack(">q", 3) + first[8:], struct.pack(">q", 4) + second[8:]])

        with pytest.raises(RemoteObjectCorruptError, match=r"offsets 10 to 14\b"):
            reader_of(remote_log).fetch(12)


@pytest.mark.parametrize("damage", ["missing", "torn", "empty", "late", "astray"])
def test_a_local_index_only_says_where_to_begin(tmp_path: Path, damage: str) -> None:
    files = a_remote_log(tmp_path)
    path = files.local_segments()[1].offset_index_path
    entries = {
        "torn": path.read_bytes() + b"\1",
        "empty": b"",
        # Offset 10 would begin with the second batch, which begins with 15.
        "late": struct.pack(">ii", 0, BATCH_BYTES),
        "astray": struct.pack(">ii", 0, 7),
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(entries[damage])
    with files.open() as remote_log:
        for start in (8, 10, 13, 17):
            assert offsets_read(remote_log, start) == list(range(start, 35))


@pytest.mark.parametrize("where", ["closed", "active"])
def test_the_missing_end_of_a_local_segment_is_an_error_and_never_a_silent_skip(tmp_path: Path, where: str) -> None:
    files = a_remote_log(tmp_path)
    path = files.local_segments()[1 if where == "closed" else 3].log_path
    os.truncate(path, BATCH_BYTES if where == "closed" else 0)
    with files.open() as remote_log:
        reader = reader_of(remote_log)
        missing = 15 if where == "closed" else 30
        assert list(_offsets(reader.records(missing - 5), 5)) == list(range(missing - 5, missing))
        with pytest.raises(CorruptRecordError, match=f"{path}.*offset {missing}"):
            reader.fetch(missing)
        with pytest.raises(CorruptRecordError):
            list(reader.records(0))


def test_in_a_compacted_topic_a_gap_is_no_loss(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2}, topics={})
    os.truncate(files.local_segments()[0].log_path, BATCH_BYTES)
    os.truncate(files.local_segments()[1].log_path, 0)
    write_offset_checkpoint(files.log_directory / CLEANER_CHECKPOINT, {("orders", 0): 20})
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]
        assert offsets_read(remote_log, 7) == [20, 21, 22, 23, 24]


def test_a_log_that_is_trimmed_while_it_is_read_continues_from_the_remote_tier(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        reading = PlainReader(remote_log).records(ORDERS_0, 0)
        assert list(_offsets(reading, 3)) == [0, 1, 2]

        trim(remote_log, 30)

        assert list(_offsets(reading, 100)) == list(range(3, 35))


def test_a_local_segment_that_vanished_without_a_copy_is_an_error(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        reader = reader_of(remote_log)
        files.local_segments()[1].log_path.unlink()

        with pytest.raises(RemoteObjectNotFoundError, match="offset 10"):
            list(reader.records(0))


def _offsets(found: Iterator[Record], count: int) -> Iterator[int]:
    for _, each in zip(range(count), found, strict=False):
        yield each.offset


def test_a_base_offset_that_changed_in_the_store_is_noticed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 30)
        # The lowest bit of the first batch's base offset, which no checksum of the batch covers.
        flip_bit(files.objects(".log")[0], 7)

        with pytest.raises(RemoteObjectCorruptError, match="offsets 0 to"):
            list(reader_of(remote_log).records(0))
