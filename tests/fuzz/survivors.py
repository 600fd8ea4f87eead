"""What has to be left of a damaged log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.transactions import next_offset
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.records.legacy_message import read_true_header
from tiered_storage.kafka_log.records.record_batch import read_batch_header

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END, _MAGIC_AT, _CRC_END, _OVERHEAD = 12, 16, 21, 61
_MOST_ABOVE_BASE = (1 << 31) - 1
_HIGHEST_OFFSET = (1 << 63) - 2


@dataclass(frozen=True, slots=True)
class Survey:
    """What a `.log` file holds: sound batches, then maybe what a crash has torn, or a batch that may not be cut off.

    `is_followed`: a whole batch comes right after the broken one.
    """

    sound: bytes
    next_offset: int
    is_torn: bool
    is_followed: bool
    is_refused: bool
    has_control: bool


def survey(content: bytes, base_offset: int, segment_end: int | None = None) -> Survey:
    """Walk the batches of a `.log` file that is named by `base_offset`; the next one begins at `segment_end`."""
    position, next_offset, has_control = 0, base_offset, False
    while position < len(content):
        rest = content[position:]
        if not _is_whole(rest):
            break
        last = _last_offset(rest, base_offset, next_offset)
        if last is None or (segment_end is not None and last >= segment_end):
            return Survey(content[:position], next_offset, False, False, is_refused=True, has_control=has_control)
        has_control |= rest[_MAGIC_AT] == 2 and bool(rest[_CRC_END + 1] & 0x20)
        next_offset = last + 1
        position += _size(rest)
    rest = content[position:]
    after = _LENGTH_END + max(0, _size(rest) - _LENGTH_END) if len(rest) >= _LENGTH_END else len(rest)
    return Survey(
        content[:position], next_offset, bool(rest), _is_whole(rest[after:]), is_refused=False, has_control=has_control
    )


@dataclass(frozen=True, slots=True)
class Survivors:
    """What opening a log leaves: the batches by base offset of their segment, and where the log ends.

    `verified` are the segments that are read whole, `refused` the one for which the log does not open at all, `removed`
    those after a hole.
    """

    segments: Mapping[int, bytes]
    end_offset: int
    verified: frozenset[int]
    refused: int | None
    removed: frozenset[int]


def survivors(files: Mapping[str, bytes], recovery_point: int | None, closed_at: int | None = None) -> Survivors:
    """Return what has to be left of a partition with these `files`, of which there is at least one `.log`.

    `closed_at` is where the log ended when it was closed in order; there is no `recovery_point` then.
    """
    logs = {int(name[:20]): content for name, content in files.items() if name[20:] == ".log"}
    bases = sorted(logs)
    known = [base for base in bases if recovery_point is not None and base <= recovery_point]
    first = bases[-1] if recovery_point is None else max(known, default=bases[0])
    left = {base: logs[base] for base in bases if base < first}
    verified = [base for base in bases if base >= first]
    end_offset = first
    for i, base in enumerate(verified):
        found = survey(logs[base], base, min(verified[i + 1 :], default=None))
        was_on_disk = recovery_point is not None and found.next_offset < recovery_point
        was_closed = closed_at is not None and found.next_offset < closed_at
        if found.is_refused or (was_on_disk and found.is_followed) or (was_closed and found.is_torn):
            return Survivors(left, end_offset, frozenset(verified), base, frozenset())
        left[base], end_offset = found.sound, found.next_offset
        later = verified[i + 1 :]
        if found.is_torn and later and later[0] != end_offset:
            return Survivors(left, end_offset, frozenset(verified), None, frozenset(later))
    return Survivors(left, end_offset, frozenset(verified), None, frozenset())


def intact_batches(damaged: bytes, sound: bytes) -> list[bytes]:
    """Return those batches of `sound` that `damaged` still has where they were."""
    found = []
    position = 0
    while position < len(sound):
        size = _size(sound[position:])
        if damaged[position : position + size] == sound[position : position + size]:
            found.append(sound[position : position + size])
        position += size
    return found


def _size(batch: bytes) -> int:
    return _LENGTH_END + int.from_bytes(batch[8:_LENGTH_END], "big", signed=True)


def _is_whole(rest: bytes) -> bool:
    """Whether a batch of any magic begins here and has the checksum that it says: no crash leaves such a one."""
    if len(rest) < _CRC_END:
        return False
    size, magic = _size(rest), rest[_MAGIC_AT]
    if magic in (0, 1):
        if not _MAGIC_AT < size <= len(rest):
            return False
        return zlib.crc32(rest[_MAGIC_AT:size]) == int.from_bytes(rest[_LENGTH_END:_MAGIC_AT], "big")
    if not _CRC_END < size <= len(rest):
        return False
    return crc32c(rest[_CRC_END:size]) == int.from_bytes(rest[_CRC_END - 4 : _CRC_END], "big")


def _last_offset(rest: bytes, base_offset: int, next_offset: int) -> int | None:
    """Return the last offset of a whole batch, None where nobody can follow its header."""
    if rest[_MAGIC_AT] in (0, 1):
        return _last_of_messages(rest[: _size(rest)], base_offset, next_offset)
    if _size(rest) < _OVERHEAD:
        return None
    first, _, _, magic, _, attributes, delta, _, _, _, _, _, count = _HEADER.unpack_from(rest)
    last = int(first) + int(delta)
    if magic != 2 or attributes & 7 > 4 or delta < 0 or not 0 <= count <= delta + 1:
        return None
    if first < next_offset or last > _HIGHEST_OFFSET or last - base_offset > _MOST_ABOVE_BASE:
        return None
    return last


def _last_of_messages(message: bytes, base_offset: int, next_offset: int) -> int | None:
    try:
        header = read_true_header(message)
    except CorruptRecordError:
        return None
    is_in_place = next_offset <= header.base_offset and header.last_offset - base_offset <= _MOST_ABOVE_BASE
    return header.last_offset if is_in_place else None


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


def check_what_is_read_of_a_broken_segment(log: LocalLog, path: Path, sound: bytes, end: int) -> None:
    """Each batch that still is where it was is found by its last offset, or the log says which file is broken.

    It is as long as the offset index has an entry for each of them. Those from `end` on, where the segment ends now,
    are inside another batch: its header has a larger size.
    """
    for batch in intact_batches(path.read_bytes(), sound):
        if read_batch_header(batch).base_offset >= end:
            continue
        try:
            assert log.read(read_batch_header(batch).last_offset, 1) == batch
        except CorruptRecordError as error:
            assert error.path == str(path)
