"""What a partition must give back, record by record, by code independent of what the demo tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.files.log_directory import LogDirectory, PartitionDirectory
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.producers.transaction_state import read_last_stable_offset
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.kafka_log.records.sound_part import recover_valid_length


class DemoError(TieredStorageError):
    """A step of the demo failed, or what was read is not what was written."""


@dataclass(frozen=True, slots=True)
class ExpectedPartition:
    """A partition with all its records, offset by offset, rebuilt at each call of `records`.

    For readers it must begin at `log_start_offset` (inclusive) until something expires; `records` may yield some below.
    """

    topic: str
    partition: int
    log_start_offset: int
    records: Callable[[], Iterator[Record]]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def expect_directory(directory: LogDirectory, found: PartitionDirectory) -> tuple[ExpectedPartition, str | None]:
    """Return what the untouched partition `found` of `directory` must give back, and a notice for the user. It ends
    before the first transaction that is open at the log's end: its outcome is unknown.
    """
    log_start = list_segments(found.path)[0].base_offset
    if directory.log_start_offsets is not None:
        log_start = max(log_start, directory.log_start_offsets.get((found.topic, found.partition), 0))
    end = log_end_offset(found.path)
    stable = read_last_stable_offset(found.path, end)
    notice = None
    if stable < end:
        notice = (
            f"{found.path.name}: a transaction is open since offset {stable}: offsets {stable} to {end - 1} are "
            "neither copied nor compared"
        )
    records = partial(_records_below, found.path, stable)
    return ExpectedPartition(found.topic, found.partition, log_start, records), notice


def log_end_offset(partition_directory: Path) -> int:
    """Return the offset after the last whole batch of a partition's local files."""
    active = list_segments(partition_directory)[-1]
    ends = [int(table.last_offset[row]) + 1 for _, table, row in _whole_batches(active)]
    return ends[-1] if ends else active.base_offset


def records_in(partition_directory: Path) -> Iterator[Record]:
    """Yield every record of a partition's local files, in order, without control records."""
    for segment in list_segments(partition_directory):
        for window, table, row in _whole_batches(segment):
            if table.attributes[row] & CONTROL_BIT:
                continue
            position, size = int(table.position[row]), int(table.size[row])
            begin = position - int(table.position[0])
            yield from read_records(
                window[begin : begin + size], source=str(segment.log_path), source_position=position
            )


def _whole_batches(segment: LogSegment) -> Iterator[tuple[memoryview, BatchTable, int]]:
    """Yield each batch as its row in the table of a window, up to where a crash cut the segment off, if one did."""
    valid = recover_valid_length(segment.log_path, segment.base_offset)
    if not valid:
        return
    for window, table in iterate_segment(segment.log_path, segment.base_offset, verify_crc=False):
        for row, end in enumerate((table.position + table.size).tolist()):
            if end > valid:
                return
            yield window, table, row
            if end == valid:
                return


def _records_below(partition_directory: Path, end_offset: int) -> Iterator[Record]:
    return takewhile(lambda record: record.offset < end_offset, records_in(partition_directory))
