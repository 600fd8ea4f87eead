"""Targets: varints, batch headers, records by both decoders, whole segments, control records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from fuzz.built_records import build_batch
from fuzz.guarded_memory import GuardedBuffers, GuardedChunkMemory
from fuzz.segments import last_possible_segment, mended, segments, tiny_segments, uncompressed_segments
from fuzz.target import SOURCE, MemoryFile, Target, value_or_error
from support.records import Row, expected_rows, rows_of
from support.transactions import ABORT, marker
from tiered_storage.errors import CorruptLogError
from tiered_storage.kafka_log.columnar import decoder as columnar
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.kernels.constants import HIGHEST_OFFSET, INT32_MAX
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_header import LEGACY_MAGICS, TimestampType
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import read_control_type, read_end_marker
from tiered_storage.kafka_log.records.record import INT64_MAX, INT64_MIN, append_varint, read_varint, read_varlong
from tiered_storage.kafka_log.records.record_batch import BatchHeader, read_batch_header, read_records
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, iterate_segment
from tiered_storage.kafka_log.records.sound_part import recover_valid_length

MAX_DECOMPRESSED_BYTES = 1 << 20
_CHOICE_BYTES = 6

_buffers = GuardedBuffers()
_file = MemoryFile()


def read_varints(content: bytes) -> None:
    for read, bits in ((read_varint, 32), (read_varlong, 64)):
        position = 0
        while position < len(content):
            try:
                value, end = read(content, position)
            except (IndexError, ValueError):  # what they say they raise: a caller names the place
                break
            assert -(1 << bits - 1) <= value < 1 << bits - 1
            assert position < end <= len(content)
            shortest = bytearray()
            append_varint(shortest, value)
            assert read(bytes(shortest), 0) == (value, len(shortest))
            position = end


def read_header(content: bytes) -> None:
    found = value_or_error(lambda: read_batch_header(content, source=SOURCE), size=len(content))
    if isinstance(found, BatchHeader):
        assert 0 <= found.base_offset <= found.last_offset < found.next_offset <= INT64_MAX
        assert found.compression in Compression
        if found.magic in LEGACY_MAGICS:
            assert found.record_count == (1 if found.compression is Compression.NONE else -1)
            return
        assert 0 <= found.record_count <= found.last_offset_delta + 1
        assert -1 <= found.last_sequence <= INT32_MAX or found.base_sequence < 0


def read_control(content: bytes) -> None:
    value_or_error(lambda: read_control_type(content, source=SOURCE))
    for batch in mended(content, with_codecs=False):
        value_or_error(lambda batch=batch: read_end_marker(batch, source=SOURCE))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class _Choice:
    """How a segment is decoded, by the first bytes of the input."""

    chunk_bytes: int
    most_rows: int
    columns: list[str] | None
    within: RecordRange
    checks: Checks
    at_end: bool
    value_views: bool

    @classmethod
    def of(cls, flags: bytes, batches: list[bytes]) -> _Choice:
        chosen, column, first, end, first_time, end_time = flags
        value_views, column = column >= 128, column & 127
        names = SCHEMA.names
        return cls(
            chunk_bytes=(columnar.CHUNK_BYTES, 1, 50, 300)[chosen >> 1 & 3],
            most_rows=2 if chosen & 6 == 6 else 1 << 16,
            columns=None if column >= len(names) else names[column:] + names[: column // 2],
            within=RecordRange(
                first if chosen & 8 else None,
                end if chosen & 16 else None,
                _time_near(batches, first_time),
                _time_near(batches, end_time),
                with_control=not chosen & 32,
            ),
            checks=Checks(outside=bool(chosen & 64), max_decompressed_bytes=MAX_DECOMPRESSED_BYTES),
            at_end=bool(chosen & 128),
            value_views=value_views,
        )


def decode_records(content: bytes) -> None:
    """Both decoders, on batches whose sizes and checksums are right: the same rows, or an error at the same batch."""
    if len(content) < _CHOICE_BYTES:
        return
    flags, body = content[:_CHOICE_BYTES], content[_CHOICE_BYTES:]
    batches = mended(body, with_codecs=bool(flags[0] & 1))
    choice = _Choice.of(flags, batches)
    window = _buffers.holding("window", b"".join(batches), at_end=choice.at_end)
    base_offset = _base_offset(batches)
    scanner = SegmentScanner(SOURCE, base_offset, verify_crc=False)
    scanned = value_or_error(lambda: scanner.feed(window), size=window.size)
    broken_header = _first_broken_header(batches, base_offset)
    if isinstance(scanned, CorruptLogError):
        assert scanned.position == broken_header, f"{scanned}; the plain decoder: {broken_header}"
        return
    assert not isinstance(scanned, Exception)
    assert broken_header is None, f"the plain decoder refuses the header at {broken_header}"
    table, consumed = scanned
    assert consumed == window.size
    _compare(batches, table, choice, value_or_error(lambda: _decoded(window, table, choice), size=window.size))


def decode_built_records(content: bytes) -> None:
    """Both decoders, on a batch of records that are sound but for a number here and there."""
    if len(content) >= _CHOICE_BYTES:
        flags, body = content[:_CHOICE_BYTES], content[_CHOICE_BYTES:]
        decode_records(flags + build_batch(body, with_codec=bool(flags[0] & 1)))


def scan_segment(content: bytes) -> None:
    """All that walks over a segment's batches: bytes as they come, or with checksums set right."""
    if len(content) < 10:
        return
    base_offset = int.from_bytes(content[:8], "big") & INT64_MAX
    window_bytes = 61 + content[8]
    body = content[10:] if content[9] & 1 else b"".join(mended(content[10:], with_codecs=bool(content[9] & 2)))
    guarded = _buffers.holding("raw window", body, at_end=bool(content[9] & 4))
    value_or_error(lambda: SegmentScanner(SOURCE, base_offset).feed(guarded), size=len(body))
    path = _file.filled(body)
    tables: list[BatchTable] = []
    scanned = value_or_error(lambda: _walk(path, base_offset, window_bytes, tables), path, len(body))
    sound = sum(int(table.size.sum()) for table in tables)
    recovered = value_or_error(lambda: recover_valid_length(path, base_offset), path, len(body))
    if isinstance(recovered, int):
        assert recovered <= len(body)
        assert not isinstance(scanned, CorruptLogError) or sound <= len(body)
    next_offset = base_offset
    for table in tables:
        for first, last in zip(table.base_offset.tolist(), table.last_offset.tolist(), strict=True):
            assert next_offset <= first <= last < INT64_MAX
            next_offset = last + 1


def _walk(path: Path, base_offset: int, window_bytes: int, tables: list[BatchTable]) -> None:
    indexes = IndexBuilder(base_offset, 100)
    producers = ProducerState(base_offset)
    for window, table in iterate_segment(path, base_offset, window_bytes=window_bytes):
        tables.append(table)
        indexes.append(table)
        producers.feed(path, window, table)
    indexes.close()
    producers.snapshot()
    # Indexes that were built from a log are true of it.
    by_offset = OffsetIndexCheck(path, indexes.offset_index())
    by_time = TimeIndexCheck(path, indexes.time_index())
    for table in tables:
        by_offset.feed(table)
        by_time.feed(table)
    by_offset.finish()
    by_time.finish()


def _decoded(window: Any, table: BatchTable, choice: _Choice) -> list[pa.RecordBatch]:
    # Only while it decodes: guarded memory is for one thread, and other tests of this process decode in several.
    with patch.multiple(columnar, ChunkMemory=GuardedChunkMemory, _MOST_ROWS=choice.most_rows):
        decoder = ColumnDecoder(
            SOURCE,
            choice.columns,
            choice.within,
            choice.checks,
            chunk_bytes=choice.chunk_bytes,
            value_views=choice.value_views,
        )
        return list(decoder.decode(window, table))


def _compare(batches: list[bytes], table: BatchTable, choice: _Choice, decoded: object) -> None:
    within = choice.within
    rows: list[Row] = []
    for batch, position in zip(batches, table.position.tolist(), strict=True):
        if not (choice.checks.outside or _may_be_inside(read_batch_header(batch), within)):
            continue
        plain = value_or_error(lambda batch=batch, position=position: _plain_rows(batch, position))  # type: ignore[misc]
        if isinstance(plain, CorruptLogError):
            assert isinstance(decoded, CorruptLogError), f"the plain decoder refuses: {plain}"
            assert decoded.position == plain.position, f"{decoded}; the plain decoder: {plain}"
            return
        assert not isinstance(plain, Exception)
        rows += [row for row in plain if _is_inside(row, within)]
    assert isinstance(decoded, list), f"the plain decoder takes what is refused: {decoded}"
    names = choice.columns or SCHEMA.names
    assert rows_of(decoded) == [{name: row[name] for name in names} for row in rows]


def _plain_rows(batch: bytes, position: int) -> list[Row]:
    read_records(batch, source=SOURCE, source_position=position, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
    rows = list(expected_rows([batch]))
    for row in rows:
        row["create_time"] = (row["create_time"] - INT64_MIN) % (1 << 64) + INT64_MIN
    return rows


def _may_be_inside(header: BatchHeader, within: RecordRange) -> bool:
    """Whether the header alone leaves open that a record is inside; it says the least time with append time only."""
    is_appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return (
        _reaches(header.base_offset, header.last_offset, within.first_offset, within.end_offset)
        and _reaches(
            header.max_timestamp if is_appended else INT64_MIN,
            header.max_timestamp,
            within.first_timestamp,
            within.end_timestamp,
        )
        and (within.with_control or not header.is_control)
    )


def _is_inside(row: Row, within: RecordRange) -> bool:
    offset, time = row["offset"], row["timestamp"]
    return (
        _reaches(offset, offset, within.first_offset, within.end_offset)
        and _reaches(time, time, within.first_timestamp, within.end_timestamp)
        and (within.with_control or not row["control"])
    )


def _reaches(least: int, greatest: int, first: int | None, end: int | None) -> bool:
    """Whether the numbers from `least` to `greatest` and those from `first` on before `end` may have one in common."""
    return (first is None or greatest >= first) and (end is None or least < end)


def _time_near(batches: list[bytes], chosen: int) -> int | None:
    """Return a time near to one that the first batch speaks of: the base of its records' times, or the latest."""
    if not (chosen and batches):
        return None
    at = 35 if chosen & 1 else 27
    time = int.from_bytes(batches[0][at : at + 8], "big", signed=True)
    return time + (chosen >> 1) - 64


def _base_offset(batches: list[bytes]) -> int:
    """Return a base offset that lets the first batch in, where it can be one."""
    return int.from_bytes(batches[0][:8], "big") & INT64_MAX if batches else 0


def _first_broken_header(batches: list[bytes], base_offset: int) -> int | None:
    """Return where the first batch begins whose header is broken, or does not continue from the one before it."""
    position, next_offset = 0, base_offset
    for batch in batches:
        found = value_or_error(lambda batch=batch: read_batch_header(batch, source=SOURCE))  # type: ignore[misc]
        if not isinstance(found, BatchHeader):
            return position
        if found.base_offset < next_offset or found.last_offset - base_offset > INT32_MAX:
            return position
        next_offset = found.next_offset
        position += len(batch)
    return None


def _record_seeds() -> Iterable[bytes]:
    for number, segment in enumerate([*segments(), *uncompressed_segments()]):
        yield bytes([number * 37 & 0xFF, number * 2, 1, 9, 0, 0]) + segment
    for number, segment in enumerate(uncompressed_segments()):
        yield bytes([1, 255, 0, 0, 0, 0]) + segment
        yield bytes([1, 255, 0, 0, 128 + number, 0]) + segment
        yield bytes([1, 255, 0, 0, 0, 128 + number]) + segment
    yield bytes([0, 255, 0, 0, 0, 0]) + last_possible_segment()
    for segment in tiny_segments():
        yield bytes([128, 255, 0, 0, 0, 0]) + segment


def _built_seeds() -> Iterable[bytes]:
    for number in range(8):
        times = (number & 1) * 144, (number & 2) * 120
        yield bytes([128, 255, 0, 0, *times]) + bytes(place * number % 240 for place in range(1, 60))


def _segment_seeds() -> Iterable[bytes]:
    for number, segment in enumerate(segments()):
        yield bytes(8) + bytes([number * 30 & 0xFF, number & 7]) + segment
    yield (HIGHEST_OFFSET - 1).to_bytes(8, "big") + bytes([0, 0]) + last_possible_segment()


VARINTS = Target(
    "varints", read_varints, lambda: [bytes([0, 1, 2, 0x80, 1]), b"\xff" * 9 + b"\x01", b"\x80" * 4 + b"\x08"]
)
BATCH_TARGETS = (
    VARINTS,
    Target("batch_header", read_header, lambda: [segment[:80] for segment in [*segments(), last_possible_segment()]]),
    Target("control_record", read_control, lambda: [bytes(4), marker(4, 8), marker(3, 7, ABORT)]),
    Target("records", decode_records, _record_seeds, has_kernels=True),
    Target("built_records", decode_built_records, _built_seeds, has_kernels=True),
    Target("segment", scan_segment, _segment_seeds, has_kernels=True),
)
