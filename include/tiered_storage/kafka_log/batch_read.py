"""Reads whole batches out of a segment's `.log` file, from an offset on."""

from __future__ import annotations

from pathlib import Path

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.batch_header import BATCH_OVERHEAD, read_batch_header


def read_batches(log_path: Path, position: int, offset: int, max_bytes: int) -> bytes:
    """Return whole batches of `log_path`, up to `max_bytes`, beginning with the one that `offset` is in.

    The search begins at `position` (bytes), where a batch at or before `offset` must begin. At least one batch is
    returned, however large it is; none where the file ends before `offset`. A batch reaches from its own base offset,
    so records below `offset` may come first.

    Raises CorruptRecordError where there is no batch at `position`, or the file ends inside the first one.
    """
    source = str(log_path)
    with log_path.open("rb") as file:
        size = file.seek(0, 2)
        while position < size:
            file.seek(position)
            header = read_batch_header(file.read(BATCH_OVERHEAD), source=source, source_position=position)
            if position + header.size > size:
                raise CorruptRecordError(source, position, f"truncated: {size - position} of {header.size} bytes")
            if header.last_offset >= offset:
                file.seek(position)
                content = file.read(max(max_bytes, header.size))
                return content[: _whole_batches(content, source, position)]
            position += header.size
    return b""


def _whole_batches(content: bytes, source: str, position: int) -> int:
    """Return how many bytes of `content` are whole batches."""
    whole = 0
    while len(content) - whole >= BATCH_OVERHEAD:
        header = read_batch_header(content, whole, source=source, source_position=position)
        if whole + header.size > len(content):
            break
        whole += header.size
    return whole
