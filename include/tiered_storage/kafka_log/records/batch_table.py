"""The headers of many batches as columns, one row per batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_ROW_BYTES = 7 * 8 + 3 * 4 + 2 * 2


@dataclass(frozen=True, slots=True, eq=False)
class BatchTable:
    """Batches in the order of their log; the fields are those of BatchHeader that differ by batch.

    `last_offset` is inclusive. `position` counts bytes from the start of the `.log` file, `size` is the whole batch.
    `base_timestamp` (ms) is the first record's, or the delete horizon if attribute bit 6 is set.
    """

    base_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    position: NDArray[np.int64]
    size: NDArray[np.int64]
    base_timestamp: NDArray[np.int64]
    max_timestamp: NDArray[np.int64]
    partition_leader_epoch: NDArray[np.int32]
    attributes: NDArray[np.int16]
    record_count: NDArray[np.int32]
    producer_id: NDArray[np.int64]
    producer_epoch: NDArray[np.int16]
    base_sequence: NDArray[np.int32]

    def __len__(self) -> int:
        return self.base_offset.size

    @classmethod
    def allocate(cls, rows: int) -> Self:
        """Return a table of `rows` rows whose values are undefined, in one block of memory from `base_offset` on.

        The columns of 8 bytes come first, in their order, then those of 4, then those of 2, as read_headers of
        scan_kernels.py fills them.
        """
        block = np.empty(rows * _ROW_BYTES, np.uint8)
        words = block[: 56 * rows].view(np.int64).reshape(7, rows)
        halves = block[56 * rows : 68 * rows].view(np.int32).reshape(3, rows)
        quarters = block[68 * rows :].view(np.int16).reshape(2, rows)
        base_offset, last_offset, position, size, base_timestamp, max_timestamp, producer_id = words
        partition_leader_epoch, record_count, base_sequence = halves
        attributes, producer_epoch = quarters
        return cls(
            base_offset, last_offset, position, size, base_timestamp, max_timestamp, partition_leader_epoch, attributes,
            record_count, producer_id, producer_epoch, base_sequence,
        )  # fmt: skip

    def rows(self, first: int, end: int) -> Self:
        """Return the rows `first` (inclusive) to `end` (exclusive), without a copy."""
        if first == 0 and end == len(self):
            return self
        return type(self)(*(column[first:end] for column in self.columns()))

    def head(self, count: int) -> Self:
        """Return the first `count` rows: as a view, or as a copy if they are less than half of the table."""
        kept = self.rows(0, count)
        if 2 * count >= len(self):
            return kept
        return type(self)(*(column.copy() for column in kept.columns()))

    def take(self, numbers: NDArray[np.intp]) -> Self:
        """Return a copy of the rows `numbers`, which rise; if they are all rows, the table itself."""
        if numbers.size == len(self):
            return self
        return type(self)(*(column[numbers] for column in self.columns()))

    @classmethod
    def concatenate(cls, tables: Iterable[Self]) -> Self:
        """Return the rows of all `tables` in order; no tables make an empty one."""
        columns = [table.columns() for table in tables]
        if not columns:
            return cls.allocate(0)
        return cls(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the columns in the order of the fields."""
        columns: tuple[NDArray[Any], ...] = _columns_of(self)
        return columns


_columns_of = attrgetter(*(field.name for field in fields(BatchTable)))
