"""A log of several segments for tests, what is in its files, and what it gives back, whole or broken."""

from __future__ import annotations

from pathlib import Path

from support.damaged_logs import intact_batches
from support.local_logs import create
from support.transactions import ABORT, data, next_offset
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.record_batch import read_batch_header

SMALL_SEGMENTS = LogConfig(segment_bytes=3 * len(data(0, 1, 0)), index_interval_bytes=0)


def many_segments(directory: Path) -> LocalLog:
    """Four segments of three batches, of which the second aborts a transaction that the first begins."""
    log = create(directory, config=SMALL_SEGMENTS)
    log.append_encoded_batch(data(0, 9, 0, transactional=True))
    for sequence in range(3):
        log.append_encoded_batch(data(0, 1, sequence))
    log.append_end_marker(9, 0, ABORT)
    for sequence in range(3, 9):
        log.append_encoded_batch(data(0, 1, sequence))
    log.close()
    return log


def contents(log: LocalLog) -> dict[str, bytes]:
    """The files in a log's directory."""
    return {path.name: path.read_bytes() for path in log.directory.iterdir()}


def segment_content(log: LocalLog, base: int, end: int) -> bytes:
    """All batches of a segment of `log`."""
    found = bytearray()
    offset = max(base, log.log_start_offset)
    while offset < end and (batches := log.read(offset, 100)):
        if read_batch_header(batches).base_offset >= end:
            break
        found += batches
        offset = next_offset(batches)
    return bytes(found)


def check_what_is_read_of_a_broken_segment(log: LocalLog, path: Path, sound: bytes) -> None:
    """Each batch that still is where it was is found by its last offset, or the log says which file is broken.

    It is as long as the offset index has an entry for each of them.
    """
    for batch in intact_batches(path.read_bytes(), sound):
        try:
            assert log.read(read_batch_header(batch).last_offset, 1) == batch
        except CorruptRecordError as error:
            assert error.path == str(path)
