"""Write rows to Parquet files whose bytes depend only on the rows, not on the segments or chunks they came from.

A row group ends with the row that makes it ROW_GROUP_BYTES large, or with row ROW_GROUP_ROWS; a file ends with the row
group that makes it FILE_BYTES large. Sizes are those before compression. Memory holds two row groups, or one record if
that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.columns import SCHEMA

ROW_GROUP_BYTES = 32 << 20
ROW_GROUP_ROWS = 1 << 17
FILE_BYTES = 512 << 20
CODECS = ("zstd", "snappy", "lz4", "gzip", "none")
DEFAULT_CODEC = "zstd"

_ROW_WEIGHT = 64
_HEADER_WEIGHT = 16
_REPEATING = ["topic", "partition", "timestampType"]
_RISING = ["offset", "timestamp"]


@dataclass(frozen=True, slots=True)
class ParquetSizes:
    """The sizes at which row groups and files end: bytes of keys, values and headers, and rows."""

    row_group_bytes: int = ROW_GROUP_BYTES
    row_group_rows: int = ROW_GROUP_ROWS
    file_bytes: int = FILE_BYTES


USUAL_SIZES = ParquetSizes()


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A complete file: the number of its part, its rows, and their first and last offsets."""

    path: Path
    part: int
    rows: int
    first_offset: int
    last_offset: int


def check_codec(codec: str) -> str:
    """Return `codec`. Raises ConfigurationError if it is not in CODECS."""
    if codec not in CODECS:
        raise ConfigurationError(f"codec {codec!r} is unknown: choose one of {', '.join(CODECS)}")
    return codec


def write_files(
    batches: Iterable[pa.RecordBatch],
    new_path: Callable[[int], Path],
    codec: str = DEFAULT_CODEC,
    sizes: ParquetSizes = USUAL_SIZES,
) -> Iterator[LocalFile]:
    """Write `batches`, which have all columns of a table, to the files that `new_path` names by their parts' numbers.

    Yields each file when it is complete; without rows there is no file. Raises ConfigurationError for an unknown codec.
    """
    part = 0
    file: _OpenFile | None = None
    try:
        for group, weight in _row_groups(batches, sizes):
            file = file or _OpenFile(new_path(part), part, check_codec(codec))
            file.write(group, weight)
            if file.weight >= sizes.file_bytes:
                yield file.close()
                file, part = None, part + 1
        if file is not None:
            whole, file = file.close(), None
            yield whole
    finally:
        if file is not None:
            file.close()


class _OpenFile:
    def __init__(self, path: Path, part: int, codec: str) -> None:
        self._path = path
        self._part = part
        self._rows = self._first_offset = self._last_offset = 0
        self.weight = 0
        self._writer: Any = pq.ParquetWriter(
            path,
            SCHEMA,
            compression=codec,
            use_dictionary=_REPEATING,
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=[*_REPEATING, *_RISING],
        )

    def write(self, group: pa.Table, weight: int) -> None:
        offsets = group.column("offset")
        if not self._rows:
            self._first_offset = offsets[0].as_py()
        self._last_offset = offsets[-1].as_py()
        self._rows += group.num_rows
        self.weight += weight
        self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> LocalFile:
        self._writer.close()
        return LocalFile(self._path, self._part, self._rows, self._first_offset, self._last_offset)


def _row_groups(batches: Iterable[pa.RecordBatch], sizes: ParquetSizes) -> Iterator[tuple[pa.Table, int]]:
    """Yield row groups and their weights (bytes)."""
    gathered: list[pa.RecordBatch] = []
    rows = weight = 0
    for whole in batches:
        batch = whole
        while batch.num_rows:
            sums = weight + np.cumsum(_weights(batch))
            full = int(np.searchsorted(sums, sizes.row_group_bytes)) + 1
            taken = min(full, sizes.row_group_rows - rows, batch.num_rows)
            gathered.append(batch.slice(0, taken))
            rows, weight = rows + taken, int(sums[taken - 1])
            batch = batch.slice(taken)
            if weight >= sizes.row_group_bytes or rows >= sizes.row_group_rows:
                yield _joined(gathered), weight
                gathered, rows, weight = [], 0, 0
    if gathered:
        yield _joined(gathered), weight


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return one table in one piece, since Parquet's pages end where pieces do."""
    return pa.Table.from_batches(batches, SCHEMA).combine_chunks()


def _weights(rows: pa.RecordBatch) -> NDArray[np.int64]:
    weights = np.full(rows.num_rows, _ROW_WEIGHT, np.int64)
    for name in ("key", "value"):
        weights += _lengths(rows.column(name))
    headers = rows.column("headers")
    key, value = headers.flatten().flatten()
    sums = np.concatenate(([0], np.cumsum(_lengths(key) + _lengths(value) + _HEADER_WEIGHT)))
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy())
    weights += np.diff(sums[ends], prepend=0)
    return weights


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    lengths: NDArray[np.int32] = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return lengths
