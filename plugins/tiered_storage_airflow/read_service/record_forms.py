"""Records as JSON lines, as an Arrow IPC stream, or as the batches that Kafka wrote.

A JSON line has offset, timestamp (ms), timestamp_type (0: the producer's, 1: the broker's), leader_epoch, key and value
(base64, null), headers (pairs of a name and base64 or null). An Arrow stream has the columns of record_columns.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from enum import StrEnum

import pyarrow as pa

from tiered_storage.kafka_log.batch_header import read_batch_header
from tiered_storage.kafka_log.columnar import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.segment_scan import SegmentScanner
from tiered_storage.remote_log.reader import FetchedBatches

MOST_DECOMPRESSED_BYTES = 64 << 20
"""A batch that becomes more than this is refused: so much memory each thread may take."""
ROWS_OF_A_PIECE = 4096
PIECE_BYTES = 1 << 20

_CHECKS = Checks(max_decompressed_bytes=MOST_DECOMPRESSED_BYTES)
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


def decoded(form: Form, fetched: FetchedBatches, first_offset: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of `fetched` from `first_offset` on, without Kafka's own markers, some thousand at a time.

    Raises CorruptRecordError.
    """
    within = RecordRange(first_offset, fetched.end_offset, with_control=False)
    columns = _JSON_COLUMNS if form is Form.JSON else _ARROW_COLUMNS
    decoder = ColumnDecoder(fetched.source, columns, within, _CHECKS)
    scanner = SegmentScanner(fetched.source, 0, start_position=fetched.source_position, verify_crc=False)
    window = memoryview(fetched.content)
    table, consumed = scanner.feed(window)
    scanner.finish(len(window) - consumed)
    for batch in decoder.decode(window, table):
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


def whole_batches(fetched: FetchedBatches, most_bytes: int, *, at_least_one: bool) -> tuple[bytes, int, int, bool]:
    """Return the batches of `fetched` that fit into `most_bytes`, first and last offset of them, and whether all did.

    The first one is there in any case where `at_least_one` is wanted (KIP-74).
    """
    position, first, last = 0, -1, -1
    while position < len(fetched.content):
        header = read_batch_header(
            fetched.content, position, source=fetched.source, source_position=fetched.source_position
        )
        if position + header.size > most_bytes and (position or not at_least_one):
            return fetched.content[:position], first, last, False
        first = header.base_offset if first < 0 else first
        last = header.last_offset
        position += header.size
    return fetched.content, first, last, True


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
