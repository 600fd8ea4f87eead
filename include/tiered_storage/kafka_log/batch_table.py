"""The headers of many batches as columns, one row a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchTable:
    """Batches in the order of their log; the fields are those of RecordBatch, as far as they differ by batch.

    `last_offset` is inclusive. `position` counts bytes from the start of the `.log` file, `size` is the whole batch.
    `base_timestamp` (ms) is the first record's, or the delete horizon where attribute bit 6 is set.
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
        """Return a table of `rows` rows whose values are undefined."""
        return cls(
            base_offset=np.empty(rows, np.int64),
            last_offset=np.empty(rows, np.int64),
            position=np.empty(rows, np.int64),
            size=np.empty(rows, np.int64),
            base_timestamp=np.empty(rows, np.int64),
            max_timestamp=np.empty(rows, np.int64),
            partition_leader_epoch=np.empty(rows, np.int32),
            attributes=np.empty(rows, np.int16),
            record_count=np.empty(rows, np.int32),
            producer_id=np.empty(rows, np.int64),
            producer_epoch=np.empty(rows, np.int16),
            base_sequence=np.empty(rows, np.int32),
        )

    @classmethod
    def concatenate(cls, tables: Iterable[Self]) -> Self:
        """Return the rows of all `tables`, one table behind the other; no tables make an empty one."""
        columns = [table.columns() for table in tables]
        if not columns:
            return cls.allocate(0)
        return cls(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the columns in the order of the fields."""
        columns: tuple[NDArray[Any], ...] = _columns_of(self)
        return columns


_columns_of = attrgetter(*(field.name for field in fields(BatchTable)))
