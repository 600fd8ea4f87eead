"""Ranges of remote segments, cut and grouped into splits of about one size.

A range is cut by its share of offsets, so that no index has to be read: who reads a part finds its chunks himself. A
batch across a cut is read on both sides, and gives each side its own records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.tables.query import RowFilter

SPLIT_BYTES = 64 << 20
"""How many bytes of segments a split has, about: a task of a worker has its price."""


@dataclass(frozen=True, slots=True)
class TableRange:
    """The offsets `start_offset` to `end_offset` (both inclusive) of one remote segment.

    `aborted` are the aborted transactions with records in it, where only committed records are asked for.
    """

    segment: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """The share of the segment's bytes that the range has, rounded up."""
        whole = self.segment.end_offset - self.segment.start_offset + 1
        return -(-self.segment.size * (self.end_offset - self.start_offset + 1) // whole)

    def within(self, start_offset: int, end_offset: int) -> TableRange | None:
        """Return what of the range lies in [`start_offset`, `end_offset`]; None where nothing does."""
        start, end = max(self.start_offset, start_offset), min(self.end_offset, end_offset)
        if start > end:
            return None
        aborted = tuple(each for each in self.aborted if each.last_offset >= start and each.first_offset <= end)
        return replace(self, start_offset=start, end_offset=end, aborted=aborted)


@dataclass(frozen=True, slots=True)
class TableSplit:
    """What one task reads: `rows` of `ranges`, in their order."""

    ranges: tuple[TableRange, ...]
    rows: RowFilter

    @property
    def size(self) -> int:
        """The bytes of segments that its ranges have, about."""
        return sum(each.size for each in self.ranges)


def plan_splits(ranges: Iterable[TableRange], rows: RowFilter, split_bytes: int = SPLIT_BYTES) -> Iterator[TableSplit]:
    """Yield splits that together have each offset of `ranges` once, those of several ranges of at most `split_bytes`.

    Raises ConfigurationError for a size that is none.
    """
    if split_bytes < 1:
        raise ConfigurationError(f"splits of {split_bytes} bytes: take 1 or more")
    gathered: list[TableRange] = []
    size = 0
    for part in (part for each in ranges for part in _cut(each, split_bytes)):
        if gathered and size + part.size > split_bytes:
            yield TableSplit(tuple(gathered), rows)
            gathered, size = [], 0
        gathered.append(part)
        size += part.size
    if gathered:
        yield TableSplit(tuple(gathered), rows)


def _cut(whole: TableRange, most_bytes: int) -> Iterator[TableRange]:
    offsets = whole.end_offset - whole.start_offset + 1
    parts = min(-(-whole.size // most_bytes), offsets)
    for number in range(parts):
        start = whole.start_offset + offsets * number // parts
        end = whole.start_offset + offsets * (number + 1) // parts - 1
        part = whole.within(start, end)
        if part is not None:
            yield part
