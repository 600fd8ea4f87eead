"""Opens segments that are files in a log directory.

An index only gives a start position. If it is missing, broken or false, the segment is read from its start, so that no
offset is skipped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tiered_storage.errors import CorruptIndexError, CorruptRecordError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path, segment_at, segment_sizes
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, ProducerHistory
from tiered_storage.kafka_log.producers.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    parse_producer_snapshot,
    read_producer_snapshot,
)
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.batch_read import read_batches
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import (
    WINDOW_BYTES,
    SegmentScanner,
    iterate_mapped_segment,
    iterate_segment,
)
from tiered_storage.regular_files import open_regular, open_unbuffered, regular_descriptor
from tiered_storage.remote_log.source.log_directory_source import local_segments
from tiered_storage.remote_log.source.partition_log import LocalSegment, SegmentLocation
from tiered_storage.remote_log.source.segment_source import Beside, Content

LOCAL_READ_BYTES = 1 << 20
_SEEN_FROM = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class LogDirectoryProducers:
    """The SegmentProducers of a segment with these files; those of one log may share a `history`."""

    files: LogSegment
    history: ProducerHistory | None = None

    def before(self) -> KnownProducers:
        return (self.history or ProducerHistory()).before(self.files)

    def by_log(self) -> KnownProducers:
        return (self.history or ProducerHistory()).by_the_log(self.files)

    def remember(self, known: KnownProducers) -> None:
        if self.history is not None:
            self.history.remember(self.files.directory, known)


class LogDirectorySegment:
    """The OpenSegment of files in a partition's directory. Keeps the offset index once it was read."""

    def __init__(self, files: LogSegment, history: ProducerHistory | None = None) -> None:
        self._files = files
        self._history = history
        self._index: OffsetIndex | None = None

    @classmethod
    def at(cls, location: SegmentLocation, history: ProducerHistory | None = None) -> Self:
        """Open the `.log` file at `location`. Raises InvalidLogDirectoryError for a file of another name."""
        return cls(files_at(location), history)

    @property
    def name(self) -> str:
        return self._files.log_location

    @property
    def log_name(self) -> str:
        return str(self._files.directory)

    @property
    def base_offset(self) -> int:
        return self._files.base_offset

    @property
    def offset_index(self) -> Beside[OffsetIndex]:
        return self._beside(self._files.offset_index_path, lambda path: OffsetIndex.read(path, self.base_offset))

    @property
    def time_index(self) -> Beside[TimeIndex]:
        return self._beside(self._files.time_index_path, lambda path: TimeIndex.read(path, self.base_offset))

    @property
    def transaction_index(self) -> Beside[TransactionIndex]:
        path = self._files.transaction_index_path
        return self._beside(path, lambda path: TransactionIndex.read(path, self.base_offset))

    @property
    def index_remedy(self) -> str:
        return (
            f"delete {self.offset_index.name} while the broker is stopped: at its start it builds all indexes of the "
            "segment again"
        )

    @property
    def producers(self) -> LogDirectoryProducers:
        return LogDirectoryProducers(self._files, self._history)

    def producer_snapshot(self, offset: int) -> Beside[tuple[ProducerSnapshotEntry, ...]]:
        return self._beside(producer_snapshot_path(self._files.directory, offset), read_producer_snapshot)

    @staticmethod
    def _beside(path: Path, read: Callable[[Path], Content]) -> Beside[Content]:
        def read_if_there() -> Content | None:
            try:
                return read(path) if path.is_file() else None
            except FileNotFoundError:
                return None

        return Beside(str(path), read_if_there)

    def exists(self) -> bool:
        return self._files.log_path.exists()

    def state(self) -> Hashable:
        status = self._files.log_path.stat()
        return self._files.log_path, status.st_ino, status.st_size, status.st_mtime_ns

    def size(self) -> int:
        return self._files.size()

    def crc32c(self) -> int:
        checksum = 0
        with open_unbuffered(self._files.log_path) as file:
            while piece := file.read(LOCAL_READ_BYTES):
                checksum = crc32c(piece, checksum)
        return checksum

    def head(self) -> bytes:
        # A plan reads the head of every segment that is due, and a file object takes as long as the read.
        descriptor = regular_descriptor(self._files.log_location, os.O_RDONLY)
        try:
            return os.read(descriptor, BATCH_OVERHEAD)
        finally:
            os.close(descriptor)

    def windows(
        self, start_position: int = 0, *, window_bytes: int | None = None, verify_crc: bool = True
    ) -> Iterator[tuple[memoryview, BatchTable]]:
        return iterate_segment(
            self._files.log_path,
            self.base_offset,
            start_position=start_position,
            window_bytes=window_bytes or WINDOW_BYTES,
            verify_crc=verify_crc,
        )

    def position_before(self, offset: int) -> int:
        if self._index is None:
            with suppress(CorruptIndexError):
                self._index = self.offset_index.read()
        return 0 if self._index is None else self._index.lookup(offset).position

    def read(self, offset: int) -> tuple[bytes, int] | None:
        position = self._position_of(offset)
        if position is None:
            return None
        return read_batches(self._files.log_path, position, offset, LOCAL_READ_BYTES), position

    def scan(self, offset: int) -> tuple[bytes, BatchTable, int] | None:
        position = self._position_of(offset)
        if position is None:
            return None
        scanner = SegmentScanner(self.name, self.base_offset, start_position=position)
        with open_regular(self._files.log_path) as file:
            file.seek(position)
            content = file.read(LOCAL_READ_BYTES)
            needed = scanner.needed(memoryview(content))
            left = os.fstat(file.fileno()).st_size - position - len(content)
            if len(content) < needed <= len(content) + left:
                content += file.read(needed - len(content))
        table, consumed = _scan_sound(scanner, content, position)
        if not consumed:
            scanner.finish(len(content))
        return content[:consumed], table, position

    def siblings(self) -> Sequence[LocalSegment]:
        return local_segments(segment_sizes(self._files.directory))

    def _position_of(self, offset: int) -> int | None:
        """Return where (bytes) the first batch begins that ends at or after `offset`; None if there is none."""
        path = self._files.log_path
        found = _found_by_index(path, self.position_before(offset), offset) or _seek(path, 0, offset)
        return None if found is None else found[0]


class OwnProducers(LogDirectoryProducers):
    """The SegmentProducers of files that only this process writes, which also show producers known in part."""

    __slots__ = ()

    def before(self) -> KnownProducers:
        return _read_seen_producers(self.files) or super().before()

    def by_log(self) -> KnownProducers:
        return _read_seen_producers(self.files) or super().by_log()


class OwnSegment(LogDirectorySegment):
    """The OpenSegment of files that only this process writes: it reads their windows without copying a byte."""

    @property
    def producers(self) -> LogDirectoryProducers:
        return OwnProducers(self._files, self._history)

    def windows(
        self, start_position: int = 0, *, window_bytes: int | None = None, verify_crc: bool = True
    ) -> Iterator[tuple[memoryview, BatchTable]]:
        return iterate_mapped_segment(
            self._files.log_path,
            self.base_offset,
            start_position=start_position,
            window_bytes=window_bytes or WINDOW_BYTES,
            verify_crc=verify_crc,
        )


def seen_producers_path(files: LogSegment) -> Path:
    """Return the path of the producers at the base offset of `files`, as far as batches of this process show them."""
    return files.directory / f"{files.base_offset:020}.seen"


def write_seen_producers(files: LogSegment, known: KnownProducers) -> None:
    """Write the producers `known` at the base offset of `files`, a segment that only this process writes."""
    seen_from = -1 if known.seen_from is None else known.seen_from
    content = _SEEN_FROM.pack(seen_from) + encode_producer_snapshot(known.producers)
    seen_producers_path(files).write_bytes(content)


def _read_seen_producers(files: LogSegment) -> KnownProducers | None:
    path = seen_producers_path(files)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    [seen_from] = _SEEN_FROM.unpack_from(content)
    producers = parse_producer_snapshot(content[_SEEN_FROM.size :], path)
    return KnownProducers(files.base_offset, producers, None if seen_from < 0 else seen_from)


def files_at(location: SegmentLocation) -> LogSegment:
    """Return the files of the segment at `location`. Raises InvalidLogDirectoryError for a file of another name."""
    files = segment_at(location)
    if files is None:
        raise InvalidLogDirectoryError(f"{location} is not named like a segment's .log file: make the plan again")
    return files


def _scan_sound(scanner: SegmentScanner, content: bytes, position: int) -> tuple[BatchTable, int]:
    """Scan the batches that `content`, from `position` of the segment on, begins with, up to one that is broken."""
    try:
        return scanner.feed(memoryview(content))
    except CorruptRecordError as error:
        sound = error.position - position
        if sound <= 0:
            raise
        return scanner.feed(memoryview(content)[:sound])


def _found_by_index(log_path: Path, begin: int, offset: int) -> tuple[int, int] | None:
    """Seek from the index's position; None if no batch begins there, or one already after `offset`."""
    try:
        found = _seek(log_path, begin, offset)
    except CorruptRecordError:
        return None
    misled = found is not None and found[0] == begin and found[1] > offset
    return None if misled else found


def _seek(log_path: Path, position: int, offset: int) -> tuple[int, int] | None:
    """Return position and base offset of the first batch from `position` on that ends at or after `offset`."""
    source = str(log_path)
    with open_regular(log_path) as file:
        size = file.seek(0, os.SEEK_END)
        while position < size:
            file.seek(position)
            header = read_batch_header(file.read(BATCH_OVERHEAD), source=source, source_position=position)
            if header.last_offset >= offset:
                return position, header.base_offset
            position += header.size
    return None
