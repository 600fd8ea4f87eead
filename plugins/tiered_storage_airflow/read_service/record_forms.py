"""Records as JSON lines, as an Arrow IPC stream, or as the batches that Kafka wrote.

A JSON line has offset, timestamp (ms), timestamp_type (0: the producer's, 1: the broker's), leader_epoch, key and value
(base64, null), headers (pairs of a name and base64 or null). An Arrow stream has the columns of record_columns.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from enum import StrEnum

import numpy as np
import pyarrow as pa

from tiered_storage.kafka_log.columnar import Checks, ColumnDecoder, RecordRange
from tiered_storage.remote_log.reading.read_values import FetchedBatches, aborted_rows

MOST_DECOMPRESSED_BYTES = 64 << 20
"""A batch that becomes more than this is refused: so much memory each thread may take."""
ROWS_OF_A_PIECE = 4096
PIECE_BYTES = 1 << 20

_CHECKS = Checks(crc=False, max_decompressed_bytes=MOST_DECOMPRESSED_BYTES)
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_JSON_COLUMNS = ("offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers")
_ARROW_COLUMNS = (*_JSON_COLUMNS, "producer_id", "producer_epoch", "sequence", "transactional")


class Form(StrEnum):
    """How records are given."""

    JSON = "json"
    ARROW = "arrow"
    BATCHES = "batches"

    @property
    def media_type(self) -> str:
        """What an answer of this form says that it is."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    Form.JSON: "application/x-ndjson",
    Form.ARROW: "application/vnd.apache.arrow.stream",
    Form.BATCHES: "application/octet-stream",
}


def decoded(form: Form, fetched: FetchedBatches) -> Iterator[pa.RecordBatch]:
    """Yield the records of `fetched` that count, without Kafka's own markers and aborted ones, some thousand at a time.

    Raises CorruptRecordError.
    """
    within = RecordRange(fetched.start_offset, fetched.end_offset, with_control=False)
    columns = _JSON_COLUMNS if form is Form.JSON else _ARROW_COLUMNS
    window, table = memoryview(fetched.content), fetched.table
    skipped = aborted_rows(table, fetched.aborted)
    if skipped.any():
        rows = np.flatnonzero(~skipped)
        if not rows.size:
            return
        table = type(table)(*(column[rows] for column in table.columns()))
        window = window[int(table.position[0]) - fetched.source_position :]
    for batch in ColumnDecoder(fetched.source, columns, within, _CHECKS).decode(window, table):
        for start in range(0, batch.num_rows, ROWS_OF_A_PIECE):
            yield batch.slice(start, ROWS_OF_A_PIECE)


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of `batch`, a line each."""
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
    """Return what an Arrow stream begins with: its schema."""
    return bytes(ColumnDecoder("no segment", _ARROW_COLUMNS).schema.serialize())


def arrow_end() -> bytes:
    """Return what an Arrow stream ends with."""
    return _END_OF_STREAM


def whole_batches(fetched: FetchedBatches, most_bytes: int, *, at_least_one: bool) -> tuple[bytes, int]:
    """Return the batches of `fetched` that fit into `most_bytes`, and the last offset of them that counts.

    The first one is there in any case where `at_least_one` is wanted (KIP-74); -1 where none is.
    """
    ends = fetched.table.position + fetched.table.size - fetched.source_position
    rows = max(int(np.searchsorted(ends, most_bytes, side="right")), int(at_least_one))
    if not rows or not ends.size:
        return b"", -1
    last = min(int(fetched.table.last_offset[rows - 1]), fetched.end_offset - 1)
    return fetched.content[: int(ends[rows - 1])], last


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
