"""Records as JSON lines, as an Arrow IPC stream, or as the batches that Kafka wrote.

A JSON line has offset, timestamp (ms), timestamp_type (0: the producer's, 1: the broker's), leader_epoch, key and value
(base64, null), headers (pairs of a name and base64 or null). An Arrow stream has the columns of record_columns.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np
import pyarrow as pa

from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.remote_log.read.read_values import FetchedBatches

USUAL_BYTES = 4 << 20
"""A batch that decompresses to at most this is decoded without waiting."""
MOST_BYTES = 64 << 20
"""A larger one waits for one of a few places, and one that decompresses to more than this is refused."""
MOST_ROWS = 4096
PIECE_BYTES = 256 << 10

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_JSON_COLUMNS = ("offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers")
_ARROW_COLUMNS = (*_JSON_COLUMNS, "producer_id", "producer_epoch", "sequence", "transactional")


class Form(StrEnum):
    """The formats of records."""

    JSON = "json"
    ARROW = "arrow"
    BATCHES = "batches"

    @property
    def media_type(self) -> str:
        """The media type of a response in this form."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    Form.JSON: "application/x-ndjson",
    Form.ARROW: "application/vnd.apache.arrow.stream",
    Form.BATCHES: "application/octet-stream",
}


def decoded(form: Form, fetched: FetchedBatches, first_offset: int, most_decompressed: int) -> Iterator[pa.RecordBatch]:
    """Yield the valid records of `fetched`, from `first_offset` on, about PIECE_BYTES at a time.

    Kafka's own markers and aborted records are left out. Raises CorruptRecordError, also for a batch that would
    decompress to more than `most_decompressed` bytes.
    """
    within = RecordRange(max(first_offset, fetched.start_offset), fetched.end_offset, with_control=False)
    columns = _JSON_COLUMNS if form is Form.JSON else _ARROW_COLUMNS
    checks = Checks(crc=False, max_decompressed_bytes=most_decompressed)
    window, table = memoryview(fetched.content), fetched.table
    skipped = fetched.aborted_rows()
    if skipped.any():
        rows = np.flatnonzero(~skipped)
        if not rows.size:
            return
        table = table.take(rows)
        window = window[int(table.position[0]) - fetched.source_position :]
    for batch in ColumnDecoder(fetched.source, columns, within, checks).decode(window, table):
        rows_of_a_piece = max(1, min(MOST_ROWS, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, rows_of_a_piece):
            yield batch.slice(start, rows_of_a_piece)


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of `batch`, one per line."""
    columns = [
        (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    lines = []
    for offset, timestamp, kind, epoch, key, value, headers in zip(*columns, strict=True):
        row = {
            "offset": offset,
            "timestamp": timestamp,
            "timestamp_type": kind,
            "leader_epoch": epoch,
            "key": _base64(key),
            "value": _base64(value),
            "headers": [[header["key"], _base64(header["value"])] for header in headers or ()],
        }
        lines.append(json.dumps(row, separators=(",", ":")))
    lines.append("")
    return "\n".join(lines).encode()


def arrow_message(batch: pa.RecordBatch) -> bytes:
    """Return `batch` as a message of an Arrow stream."""
    return bytes(batch.serialize())


def arrow_begin() -> bytes:
    """Return the beginning of an Arrow stream: its schema."""
    return bytes(ColumnDecoder("no segment", _ARROW_COLUMNS).schema.serialize())


def arrow_end() -> bytes:
    """Return the end of an Arrow stream."""
    return _END_OF_STREAM


def fitting(fetched: FetchedBatches, most_bytes: int, *, at_least_one: bool) -> tuple[FetchedBatches, int]:
    """Return the batches of `fetched` that fit into `most_bytes`, and their size in bytes.

    Only those with valid records: no markers, nothing aborted. With `at_least_one`, the first of them is always
    included (KIP-74).
    """
    table = fetched.table
    counts = ~fetched.aborted_rows() & (table.attributes & CONTROL_BIT == 0)
    ends = np.cumsum(np.where(counts, table.size, 0))
    rows = int(np.searchsorted(ends, most_bytes, side="right"))
    if at_least_one and counts.any():
        rows = max(rows, int(np.argmax(counts)) + 1)
    if rows == len(table):
        return fetched, int(ends[-1]) if rows else 0
    end = int(table.last_offset[rows - 1]) + 1 if rows else fetched.start_offset
    return replace(fetched, table=table.rows(0, rows), end_offset=end), int(ends[rows - 1]) if rows else 0


def whole_batches(fetched: FetchedBatches) -> bytes:
    """Return the batches of `fetched` as Kafka wrote them, without those of aborted transactions."""
    table = fetched.table
    begins = table.position - fetched.source_position
    ends = begins + table.size
    kept = np.flatnonzero(~fetched.aborted_rows())
    if kept.size == len(table):
        return fetched.content[int(begins[0]) : int(ends[-1])]
    content = memoryview(fetched.content)
    return b"".join(content[begins[row] : ends[row]] for row in kept.tolist())


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
