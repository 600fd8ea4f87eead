"""Read many records of a metadata partition at once, as columns: no object a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder, RecordRange
from tiered_storage.kafka_log.kernels.constants import CODEC_BITS
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import LogValues, MetadataLog

MOST_RECORDS: Final = 1 << 18
"""A block ends with the answer of the brokers in which it reaches this: about 700 bytes of memory a record."""
_MOST_BYTES: Final = 64 << 20
"""A block ends with the answer, or with the compressed batch, in which it reaches this."""
_OFFSET_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """The records of a metadata partition from `first` to `next_offset` (exclusive): their offsets and values.

    `leader_epoch` is that of the last batch, None if there is none.
    """

    partition: int
    first: int
    next_offset: int
    offsets: NDArray[np.int64]
    values: pa.BinaryArray
    leader_epoch: int | None = None

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: NDArray[np.intp]) -> LogValues:
        """Return the values of `rows`."""
        values = self.values.take(pa.array(rows)).to_pylist()
        found = tuple(zip(self.offsets[rows].tolist(), values, strict=True))
        return LogValues(self.partition, found, self.next_offset, self.leader_epoch)


def fetch_block(log: MetadataLog, topic: MetadataTopicId, partition: int, offset: int, end: int) -> RecordBlock:
    """Return the next records from `offset` on, up to `end` (exclusive) at most: at least one batch.

    Raises as MetadataLog.fetch, and CorruptLogError for records that cannot be read.
    """
    where = f"metadata topic {topic.name}, partition {partition}"
    decoder = ColumnDecoder(where, ["offset", "value"], RecordRange(offset, end, with_control=False))
    parts: list[pa.RecordBatch] = []
    at, rows, size, epoch = offset, 0, 0, None
    while at < end and rows < MOST_RECORDS and size < _MOST_BYTES:
        (found, newest), following = log.read(topic, partition, at, _decoding(where, decoder, at))
        if epoch not in {None, newest}:
            break  # of another leader, whose log has to be compared first
        at, epoch = following, newest
        parts += found
        rows, size = rows + sum(map(len, found)), size + sum(each.nbytes for each in found)
    offsets = [np.asarray(each.column("offset")) for each in parts]
    return RecordBlock(
        partition,
        offset,
        min(at, end),
        np.concatenate(offsets) if offsets else np.empty(0, np.int64),
        pa.concat_arrays([each.column("value") for each in parts] or [pa.array([], pa.binary())]),
        epoch,
    )


def _decoding(
    where: str, decoder: ColumnDecoder, offset: int
) -> Callable[[memoryview], tuple[tuple[list[pa.RecordBatch], int | None], int]]:
    """Return what decodes the whole batches of an answer from `offset` on, with the leader epoch of the last one, and
    finds the offset after them.
    """

    def decode(records: memoryview) -> tuple[tuple[list[pa.RecordBatch], int | None], int]:
        if len(records) < _OFFSET_BYTES:
            return ([], None), offset
        base_offset = int.from_bytes(records[:_OFFSET_BYTES], "big", signed=True)
        scanner = SegmentScanner(where, base_offset, verify_crc=False)
        table, consumed = scanner.feed(records)
        if not len(table):
            return ([], None), offset
        batches, rows = _decoded(decoder, records[:consumed], table)
        following = scanner.next_offset if rows == len(table) else int(table.last_offset[rows - 1]) + 1
        return (batches, int(table.partition_leader_epoch[rows - 1])), following

    return decode


def _decoded(decoder: ColumnDecoder, records: memoryview, table: BatchTable) -> tuple[list[pa.RecordBatch], int]:
    """Decode the batches of `table`, the first ones if they are compressed and large; return how many as well."""
    if not (table.attributes & CODEC_BITS).any():
        return list(decoder.decode(records, table)), len(table)
    found: list[pa.RecordBatch] = []
    size = 0
    for row in range(len(table)):
        batch = table.rows(row, row + 1)
        parts = list(decoder.decode(records[int(batch.position[0]) :], batch))
        found += parts
        size += sum(each.nbytes for each in parts)
        if size >= _MOST_BYTES:
            return found, row + 1
    return found, len(table)
