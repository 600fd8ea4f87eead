"""Find where the sound batches of a `.log` file end, and whether what follows may be torn by a crash."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import CRC_END, LOG_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import LEGACY_MAGICS, MAGIC_END
from tiered_storage.kafka_log.records.segment_scan import WINDOW_BYTES, iterate_segment
from tiered_storage.regular_files import open_regular


def recover_valid_length(path: Path, base_offset: int, *, window_bytes: int = WINDOW_BYTES) -> int:
    """Return the size in bytes of the sound batches of a `.log` file, up to the first corrupt or incomplete one.

    Zeros of a preallocated file and bytes torn by a crash come after that. A batch that is whole by its own checksum is
    not torn: truncating it would lose data. Then this raises the error of the scan, CorruptRecordError for one with an
    invalid header or unreadable compressed messages.
    """
    return sound_part(path, base_offset, window_bytes=window_bytes)[0]


def sound_part(path: Path, base_offset: int, *, window_bytes: int = WINDOW_BYTES) -> tuple[int, int]:
    """Return what recover_valid_length does, and the offset after the last sound batch; raises as it does."""
    length, next_offset = 0, base_offset
    try:
        for batches, table in iterate_segment(path, base_offset, window_bytes=window_bytes):
            length += len(batches)
            next_offset = int(table.last_offset[-1]) + 1
    except CorruptRecordError as error:
        if is_whole_batch(path, error.position):
            raise
        return error.position, next_offset
    return length, next_offset


def is_whole_batch(path: Path, position: int) -> bool:
    """Return whether a batch of any magic begins at `position`, ends in the file, and has its header's checksum."""
    with open_regular(path) as file:
        file.seek(position)
        head = file.read(CRC_END)
        if len(head) < CRC_END:
            return False
        end = position + LOG_OVERHEAD + int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
        magic = head[MAGIC_END - 1]
        older = magic in LEGACY_MAGICS
        begin = position + (MAGIC_END - 1 if older else CRC_END)
        if not begin < end <= os.fstat(file.fileno()).st_size:
            return False
        claimed = head[LOG_OVERHEAD : MAGIC_END - 1] if older else head[MAGIC_END:CRC_END]
        file.seek(begin)
        checksum = 0
        while begin < end:
            piece = file.read(min(WINDOW_BYTES, end - begin))
            checksum = zlib.crc32(piece, checksum) if older else crc32c(piece, checksum)
            begin += len(piece)
    return checksum == int.from_bytes(claimed, "big")
