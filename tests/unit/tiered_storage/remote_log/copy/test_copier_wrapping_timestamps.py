"""A batch whose base timestamp and a record's delta together exceed 64 bits: Kafka's arithmetic wraps, so does ours."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    append_batches,
    assert_clean,
    copy,
    record,
    unsynced,
)
from tiered_storage.kafka_log.dump.file_dump import dump_file, find_files
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import correct_max_timestamp, encode_batch
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, OffsetSpec
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import plan_table
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.remote_log.tables.reading import read_range

LATEST, EARLIEST = (1 << 63) - 1, -(1 << 63)
FIRST = 35
"""The offset of the batch; before it are offsets 0 to 34, after it 38 to 57."""


def wrapping_batch(compression: Compression) -> bytes:
    """Return a batch of three records: the second's timestamp is the last there is, the third's the first there is."""
    written = [Record(FIRST + number, LATEST - 2 + number, b"k", b"v") for number in range(3)]
    batch = bytearray(encode_batch(written, compression))
    struct.pack_into(">q", batch, 27, LATEST - 1)
    correct_max_timestamp(batch, LATEST)
    return bytes(batch)


@pytest.fixture(params=[Compression.NONE, Compression.ZSTD])
def files(tmp_path: Path, request: pytest.FixtureRequest) -> RemoteLogFiles:
    """A log that a broker wrote such a batch to, among others."""
    files = a_remote_log(tmp_path)
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        assert log.append_as_follower(wrapping_batch(request.param)) == FIRST + 3
        append_batches(log, 4)
    return files


def as_read(offset: int) -> Record:
    within = offset - FIRST
    return Record(offset, (LATEST - 1, LATEST, EARLIEST)[within], b"k", b"v") if 0 <= within < 3 else record(offset)


def table(remote_log: RemoteLogManager) -> Iterable[pa.RecordBatch]:
    query, taken = TableQuery("orders"), TableColumns(["offset", "timestamp"])
    for each in plan_table(remote_log.context.segments, remote_log.context.storage, query).ranges():
        yield from read_range(each, query.rows, remote_log.context.storage, taken)


def test_a_batch_with_wrapping_timestamps_is_copied_audited_and_read(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert_clean(remote_log, as_read)
        offsets = [offset for batch in table(remote_log) for offset in batch.column("offset").to_pylist()]
    assert set(offsets) >= {FIRST, FIRST + 1, FIRST + 2}
    assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("is_local", [True, False])
def test_records_with_wrapping_timestamps_are_found_by_time(files: RemoteLogFiles, *, is_local: bool) -> None:
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        if not is_local:
            for segment in files.local_segments()[:-1]:
                segment.log_path.unlink()
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            for timestamp, offset in ((LATEST, FIRST + 1), (LATEST - 1, FIRST), (record(7).timestamp, 7)):
                found = reader.offsets(ORDERS_0, timestamp)
                assert found == FoundOffset(offset, as_read(offset).timestamp, 0)
            assert reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP) == FoundOffset(FIRST + 1, LATEST, 0)


def test_a_dump_shows_wrapping_timestamps(files: RemoteLogFiles) -> None:
    logs = find_files([each.log_path for each in files.local_segments()])
    shown = [str(event) for file in logs for event in dump_file(file, with_records=True)]
    assert any(str(EARLIEST) in line for line in shown)
