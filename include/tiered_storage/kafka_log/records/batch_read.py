"""Read whole batches from a segment's `.log` file, from an offset on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import BatchHeader, read_batch_header, read_whole_header
from tiered_storage.regular_files import open_regular


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Whole batches one after the other, and the first offset after the last of them."""

    content: bytes
    next_offset: int


def read_batches(log_path: Path, position: int, offset: int, max_bytes: int) -> bytes:
    """Return whole batches of `log_path`, up to `max_bytes`, beginning with the one that contains `offset`.

    The search begins at `position` (bytes), where a batch at or before `offset` must begin. At least one batch is
    returned, however large it is; none if the file ends before `offset`. Records below `offset` may come first, since
    a batch covers all offsets from its base offset on.

    Raises CorruptRecordError if there is no batch at `position`, or the file ends inside the first one.
    """
    found = read_batch_range(log_path, position, offset, max_bytes)
    return found.content if found else b""


def read_batch_range(
    log_path: Path,
    position: int,
    offset: int,
    max_bytes: int,
    end_offset: int | None = None,
    *,
    segment_end: int | None = None,
) -> BatchRange | None:
    """Return what read_batches does, up to the first batch that reaches `end_offset` (exclusive).

    None if there is no batch. Raises as read_batches does, and if the first batch reaches beyond `segment_end`
    (exclusive): a reader that relied on its offsets would skip the following segments.
    """
    source = str(log_path)
    with open_regular(log_path) as file:
        found = _first_batch(file, source, position, offset)
        if found is None:
            return None
        position, header = found
        if segment_end is not None and header.next_offset > segment_end:
            reason = f"the batch reaches offset {header.last_offset}, the next segment begins at {segment_end}"
            raise CorruptRecordError(source, position, reason)
        if end_offset is not None and header.next_offset > end_offset:
            return None
        end_offset = min((end for end in (end_offset, segment_end) if end is not None), default=None)
        file.seek(position)
        return _whole_batches(file.read(max(max_bytes, header.size)), source, position, end_offset)


def batch_position(log_path: Path, position: int, offset: int) -> int | None:
    """Return where in `log_path` the first batch with `offset` or a later one begins, None if there is none.

    The search begins at `position`, as that of read_batches does, and raises as it does.
    """
    with open_regular(log_path) as file:
        found = _first_batch(file, str(log_path), position, offset)
    return found[0] if found else None


def _first_batch(file: BinaryIO, source: str, position: int, offset: int) -> tuple[int, BatchHeader] | None:
    """Return the first batch from `position` on that reaches `offset`, and where it begins."""
    size = file.seek(0, os.SEEK_END)
    while position < size:
        file.seek(position)
        header = read_batch_header(file.read(BATCH_OVERHEAD), source=source, source_position=position)
        if position + header.size > size:
            raise CorruptRecordError(source, position, f"truncated: {size - position} of {header.size} bytes")
        if header.last_offset >= offset:
            return position, header
        position += header.size
    return None


def _whole_batches(content: bytes, source: str, position: int, end_offset: int | None) -> BatchRange:
    """Return the whole batches that `content` begins with, of which there is at least one, below `end_offset`."""
    whole, next_offset = 0, 0
    while (header := read_whole_header(content, whole, source=source, source_position=position)) is not None:
        if end_offset is not None and header.next_offset > end_offset:
            break
        whole += header.size
        next_offset = header.next_offset
    return BatchRange(content[:whole], next_offset)
