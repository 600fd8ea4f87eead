"""Dump a log batch by batch, with DumpLogSegments' names, in the memory of one window or one batch.

A batch or message with a wrong checksum or unreadable records is shown and reported, and the dump continues with the
next one. It ends where the next batch cannot be found. Zeros of a preallocated file are not damage, nor is a batch that
a broker was appending during the dump.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.dump.control_record_fields import describe_control_record
from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpNote, DumpProblem, DumpRow, RowKind
from tiered_storage.kafka_log.files.small_files import is_zero
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, BATCH_OVERHEAD, CRC_END
from tiered_storage.kafka_log.records.batch_header import (
    LEGACY_MAGICS,
    MAGIC_END,
    BatchHeader,
    TimestampType,
    batch_size,
    check_crc,
    read_batch_header,
    sequence_after,
)
from tiered_storage.kafka_log.records.legacy_message import LegacyMessage, read_legacy_batch
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.regular_files import open_regular

_WINDOW_BYTES = 1 << 20
_LOW_ATTRIBUTES = CRC_END + 1
TIME_NAMES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}
NO_TIME_NAME = "NoTimestampType"


def dump_log(path: Path, base_offset: int, *, with_records: bool = False) -> Iterator[DumpEvent]:
    """Yield a row for each batch of `path`, up to its present end, and with `with_records` one for each record.

    In a row, `CreateTime` or `LogAppendTime` is the batch's largest timestamp, and `NoTimestampType` stands for it in
    magic 0; `deleteHorizonMs` is None if compaction has set none. A record of a batch stamped LogAppendTime has both
    times, since its producer's time is kept.
    """
    size, next_offset, begin = path.stat().st_size, base_offset, 0
    while True:
        batches = iterate_segment(path, next_offset, start_position=begin, window_bytes=_WINDOW_BYTES, verify_crc=False)
        try:
            for window, table in batches:
                start, next_offset = int(table.position[0]), int(table.last_offset[-1]) + 1
                for position, batch_bytes in zip(table.position.tolist(), table.size.tolist(), strict=True):
                    batch = window[position - start : position - start + batch_bytes]
                    yield from _dump_batch(path, position, batch, with_records)
        except CorruptRecordError as error:
            end = end_of_log(path, size, error, next_offset)
            message = _message_at(path, error.position, size) if isinstance(end, DumpProblem) else None
            if message is None:
                yield end
                return
            yield from _dump_batch(path, error.position, message, with_records)
            begin = error.position + len(message)
        else:
            return


def _message_at(path: Path, position: int, size: int) -> memoryview | None:
    """Return the damaged message of magic 0 or 1 at `position`, whose checksum a scan always compares.

    None if it does not end within `size` bytes of the file, or its header is invalid or not one of such a message.
    """
    with open_regular(path) as file:
        file.seek(position)
        try:
            head = file.read(BATCH_OVERHEAD)
            header = read_batch_header(head)
        except CorruptRecordError:
            return None
    if header.magic not in LEGACY_MAGICS or position + header.size > size:
        return None
    message = memoryview(_read_again(path, position, header.size))
    try:
        read_legacy_batch(message)
    except CorruptRecordError:
        return message
    return None


def end_of_log(path: Path, size: int, error: CorruptRecordError, next_offset: int) -> DumpNote | DumpProblem:
    """Return what `error` means, which ended a walk through the batches of `path`, of `size` bytes at its start.

    The batches before it end below `next_offset`. A preallocated log does not grow with an append: a batch that is
    sound now was being written when the walk reached it.
    """
    with open_regular(path) as file:
        file.seek(error.position)
        start = file.read(MAGIC_END)
        size_now = os.fstat(file.fileno()).st_size
        is_preallocated = is_zero(file, error.position, size_now)
    if is_preallocated:
        zeros = size_now - error.position
        return DumpNote(f"{zeros} bytes of zeros follow from byte {error.position} on, as in a preallocated file")
    try:
        end = error.position + batch_size(start)
    except CorruptRecordError:
        return DumpProblem(error)
    if size < end <= size_now or _is_sound_now(path, error.position, next_offset):
        return DumpNote(f"the batch at byte {error.position} was being appended: it is not shown")
    return DumpProblem(error)


def _is_sound_now(path: Path, position: int, next_offset: int) -> bool:
    """Return whether a batch at `position`, of `next_offset` or later, now has the checksum in its header."""
    try:
        for _ in iterate_segment(path, next_offset, start_position=position, window_bytes=_WINDOW_BYTES):
            return True
    except CorruptRecordError:
        pass
    return False


def _dump_batch(path: Path, position: int, batch: memoryview, with_records: bool) -> Iterator[DumpEvent]:
    source = str(path)
    header = read_batch_header(batch, source=source, source_position=position)
    problem = None
    try:
        check_crc(batch, source=source, source_position=position)
    except CorruptRecordError as error:
        problem = DumpProblem(error)
        if (later := _read_again(path, position, len(batch))) != batch:
            # A broker was writing it.
            yield from _dump_batch(path, position, memoryview(later), with_records)
            return
    if header.magic in LEGACY_MAGICS:
        yield from _dump_messages(source, position, batch, header, problem, with_records)
        return
    yield DumpRow(RowKind.BATCH, _batch_fields(header, position, is_valid=problem is None))
    if with_records:
        try:
            for record in read_records(_as_produced(batch), source=source, source_position=position, verify_crc=False):
                yield DumpRow(RowKind.RECORD, _record_fields(header, record))
        except CorruptRecordError as error:
            # A wrong checksum explains all other errors.
            problem = problem or DumpProblem(error)
    if problem is not None:
        yield problem


def _dump_messages(
    source: str,
    position: int,
    batch: memoryview,
    header: BatchHeader,
    problem: DumpProblem | None,
    with_records: bool,
) -> Iterator[DumpEvent]:
    """Yield the rows of a message of magic 0 or 1, or of compressed ones, and its problem."""
    messages: Sequence[LegacyMessage] = ()
    is_valid = problem is None
    try:
        whole = read_legacy_batch(batch, source=source, source_position=position, verify_crc=is_valid)
        header, messages = whole.header, whole.messages
    except CorruptRecordError as error:
        problem = problem or DumpProblem(error)
    yield DumpRow(RowKind.BATCH, _batch_fields(header, position, is_valid=is_valid))
    for message in messages if with_records else ():
        record = Record(message.offset, message.timestamp, message.key, message.value)
        checks = {"isValid": is_valid, "crc": message.crc}
        yield DumpRow(RowKind.RECORD, _record_fields(header, record) | checks)
    if problem is not None:
        yield problem


def _read_again(path: Path, position: int, size: int) -> bytes:
    with open_regular(path) as file:
        file.seek(position)
        return file.read(size)


def _batch_fields(header: BatchHeader, position: int, *, is_valid: bool) -> dict[str, object]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp if header.has_delete_horizon else None,
        "position": position,
        _time_name(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": header.compression.name.lower(),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _record_fields(header: BatchHeader, record: Record) -> dict[str, object]:
    times = {_time_name(header): header.max_timestamp}
    if header.magic > 0:
        times["CreateTime"] = record.timestamp
    fields = {
        "offset": record.offset,
        **times,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence_after(header.base_sequence, record.offset - header.base_offset),
        "headerKeys": [key for key, _ in record.headers],
    }
    if header.is_control:
        return fields | describe_control_record(record)
    return fields | {"key": record.key, "value": record.value, "headers": record.headers}


def _time_name(header: BatchHeader) -> str:
    return TIME_NAMES[header.timestamp_type] if header.magic > 0 else NO_TIME_NAME


def _as_produced(batch: memoryview) -> bytearray:
    """Return `batch` with its producer's times, which stay in the records when a broker stamps it with its own."""
    produced = bytearray(batch)
    produced[_LOW_ATTRIBUTES] &= ~APPEND_TIME_BIT
    return produced
