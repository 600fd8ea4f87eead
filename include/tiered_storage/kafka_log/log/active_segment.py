"""The segment that a log appends to: batches are buffered, written in large pieces, and indexed as they are written.

A broker keeps this segment's indexes memory-mapped; here `flush` and `finish` write them to disk, in the form of a
closed segment. Until something is flushed, the log is intact as it was. After a crash the indexes are rebuilt from the
batches, as a broker does it too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import CorruptRecordError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.small_files import holds, replace_file
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, TransactionIndex
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import write_transaction_index
from tiered_storage.kafka_log.log.recovery.segment_recovery import RecoveredSegment
from tiered_storage.kafka_log.records.batch_header import NO_PRODUCER_ID, BatchHeader
from tiered_storage.kafka_log.records.batch_read import batch_position
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, iterate_segment

WRITE_BYTES = 1 << 20
"""The size up to which batches are buffered before they are written to the file."""


class ActiveSegment:
    """Appends to one segment until it is full.

    Not thread-safe. After an OSError nothing that `flush` acknowledged is lost; open the log again.
    """

    def __init__(self, segment: LogSegment, recovered: RecoveredSegment, config: LogConfig, now: int) -> None:
        """Continue `segment`, as `recovered`; `now` (ms since the epoch) is the time of records without timestamps."""
        self.segment = segment
        self.next_offset = recovered.next_offset
        self.size = recovered.size
        self._config = config
        self._opened_at = now
        self._first_timestamp = recovered.first_timestamp
        self._indexes = recovered.indexes
        self._scanner = SegmentScanner(
            str(segment.log_path), segment.base_offset, start_position=recovered.size, verify_crc=False
        )
        self._aborted = list(recovered.aborted)
        self._gathered = bytearray()
        self._gathered_batches = 0
        offsets, times = self._indexes.offset_index().to_bytes(), self._indexes.time_index().to_bytes()
        self._offset_file = _GrowingFile(segment.offset_index_path, len(offsets))
        self._time_file = _GrowingFile(segment.time_index_path, len(times))
        _write(segment.offset_index_path, offsets)
        _write(segment.time_index_path, self._indexes.closed_time_index().to_bytes())
        write_transaction_index(segment, self.transaction_index().to_bytes())
        self._descriptor: int | None = os.open(segment.log_path, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def latest_timestamp(self) -> int:
        """The largest timestamp of its batches (ms), -1 for none."""
        self.write_out()
        return self._indexes.latest.timestamp

    def has_room_for(self, batch: BatchHeader, now: int) -> bool:
        """Return whether `batch` still fits: by size, record time, range of offsets and room in the indexes.

        `now` (ms since the epoch) replaces record time if the first batch has no timestamp.
        """
        if self.size + batch.size > self._config.segment_bytes:
            return False
        if self._first_timestamp is not None and self._age(batch.max_timestamp, now) > self._config.segment_ms:
            return False
        if batch.last_offset - self.segment.base_offset > INT32_MAX:
            return False
        return self._indexes_have_room()

    def append(self, batch: bytes | bytearray | memoryview, header: BatchHeader) -> None:
        """Append `batch`, whose offsets follow those before it; it is durable after `flush` or `finish`.

        Raises InvalidLogDirectoryError after `close`.
        """
        self.ensure_open()
        self._gathered += batch
        self._gathered_batches += 1
        self.size += header.size
        self.next_offset = header.next_offset
        if self._first_timestamp is None:
            self._first_timestamp = header.max_timestamp
        if len(self._gathered) >= WRITE_BYTES:
            self.write_out()

    def add_aborted(self, transaction: AbortedTxn) -> None:
        """Add a transaction whose abort marker was the last appended batch."""
        self._aborted.append(transaction)

    def offset_index(self) -> OffsetIndex:
        """Return the offset index of the batches written so far."""
        return self._indexes.offset_index()

    def transaction_index(self) -> TransactionIndex:
        """Return the transaction index of the batches appended so far."""
        return TransactionIndex(self.segment.base_offset, tuple(self._aborted))

    def before(self, end_offset: int) -> RecoveredSegment:
        """Return the state without the batch that reaches `end_offset` and the later ones; change nothing.

        Batches are read from the last index entry before it on. Raises CorruptRecordError if one is damaged.
        """
        self.write_out()
        path, base_offset = self.segment.log_path, self.segment.base_offset
        size = batch_position(path, self.offset_index().lookup(end_offset).position, end_offset)
        size = self.size if size is None else size
        indexes, begin = self._indexes.until(size)
        next_offset = base_offset
        for _, batches in iterate_segment(path, base_offset, start_position=begin, end_position=size):
            indexes.append(batches)
            next_offset = int(batches.last_offset[-1]) + 1
        return RecoveredSegment(
            size=size,
            torn_bytes=0,
            next_offset=next_offset,
            first_timestamp=self._first_timestamp if size else None,
            indexes=indexes,
            epochs=(),
            aborted=tuple(transaction for transaction in self._aborted if transaction.last_offset < end_offset),
        )

    def has_producers_from(self, position: int) -> bool:
        """Return whether a batch from `position` (bytes) on has a producer, or cannot be read."""
        rest = iterate_segment(
            self.segment.log_path, self.segment.base_offset, start_position=position, verify_crc=False
        )
        try:
            return any(bool((batches.producer_id > NO_PRODUCER_ID).any()) for _, batches in rest)
        except CorruptRecordError:
            return True

    def write_out(self) -> None:
        """Write the buffered batches to the file, where others can read them, but without fsync."""
        if not self._gathered:
            return
        position = self.size - len(self._gathered)
        _write_all(self._open_descriptor(), self._gathered, position)
        batches, _ = self._scanner.feed(memoryview(self._gathered))
        self._indexes.append(batches)
        self._gathered = bytearray()
        self._gathered_batches = 0

    def flush(self) -> None:
        """Write all batches and their index entries to disk, durably."""
        self.write_out()
        os.fsync(self._open_descriptor())
        self._offset_file.bring_up_to(self._indexes.offset_index().to_bytes())
        self._time_file.bring_up_to(self._indexes.time_index().to_bytes())
        if self._aborted:
            _append_rest(self.segment.transaction_index_path, self.transaction_index().to_bytes())

    def finish(self) -> None:
        """Write the segment durably as a closed one: the last entry of its time index is its largest timestamp."""
        self.write_out()
        self._indexes.close()
        self.flush()

    def ensure_open(self) -> None:
        """Raise InvalidLogDirectoryError after `close`."""
        self._open_descriptor()

    def close(self) -> None:
        """Close the file, and drop what is still buffered; repeated calls are harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _age(self, timestamp: int, now: int) -> int:
        """Return the ms between the first batch and `timestamp`; since opening if records have no timestamps."""
        if self._first_timestamp is not None and self._first_timestamp >= 0:
            return timestamp - self._first_timestamp
        return now - self._opened_at

    def _indexes_have_room(self) -> bool:
        """Return whether both indexes have room for one more batch's entry, and the time index for its final one."""
        if self._free_entries() > self._gathered_batches:
            return True
        self.write_out()
        return self._free_entries() > 0

    def _free_entries(self) -> int:
        most_offsets = self._config.segment_index_bytes // OFFSET_ENTRY.itemsize
        most_times = self._config.segment_index_bytes // TIME_ENTRY.itemsize - 1
        return min(most_offsets - self._indexes.offset_entry_count, most_times - self._indexes.time_entry_count)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise InvalidLogDirectoryError(f"{self.segment.log_path} is closed, or failed halfway: open the log again")
        return self._descriptor


def _write_all(descriptor: int, content: bytearray, position: int) -> None:
    with memoryview(content) as rest:
        written = 0
        while written < len(content):
            written += os.pwrite(descriptor, rest[written:], position + written)


@dataclass(slots=True)
class _GrowingFile:
    """A file whose first `length` bytes are durable and correct; the rest may be wrong."""

    path: Path
    length: int

    def bring_up_to(self, content: bytes) -> None:
        """Make `content`, which begins with those bytes, the whole content of the file, durably."""
        with self.path.open("r+b") as file:
            file.truncate(self.length)
            file.seek(self.length)
            file.write(content[self.length :])
            file.flush()
            os.fsync(file.fileno())
        self.length = len(content)


def _write(path: Path, content: bytes) -> None:
    if not content:
        path.write_bytes(b"")
    elif not holds(path, content):
        replace_file(path, content)


def _append_rest(path: Path, content: bytes) -> None:
    """Extend a file that holds the beginning of `content` to all of it, durably."""
    with path.open("ab") as file:
        file.write(content[file.tell() :])
        file.flush()
        os.fsync(file.fileno())
