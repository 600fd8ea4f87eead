"""What is asked of a topic as a table."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of a range are given: by their timestamps (ms, the end exclusive), and committed ones only or all.

    `disorder_ms` is by how much a record may be earlier than the first one of its batch. A batch that begins so much
    behind the end, or later, is not read. None: it may be by any time, and every batch is read that its largest
    timestamp does not leave out.
    """

    first_timestamp: int | None = None
    end_timestamp: int | None = None
    committed_only: bool = False
    disorder_ms: int | None = None

    @property
    def latest_begin(self) -> int | None:
        """The timestamp (ms) from which on a batch that begins there is left out; None: none is."""
        if self.end_timestamp is None or self.disorder_ms is None:
            return None
        return self.end_timestamp + self.disorder_ms

    @property
    def over_at(self) -> int | None:
        """The timestamp (ms) from which on a record tells that no row of the filter comes behind it; None: none does.

        Records of different batches are as much out of order as those of one.
        """
        return None if self.end_timestamp is None else self.end_timestamp + (self.disorder_ms or 0)


EVERY_ROW = RowFilter()


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Rows of one topic: of one life where it had several, of some partitions, of a range of offsets.

    `first_offset` is inclusive, `end_offset` exclusive. A range that holds nothing is no error: its table is empty.
    """

    topic: str
    topic_id: str | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    rows: RowFilter = EVERY_ROW

    @property
    def is_empty(self) -> bool:
        """Whether no row can be meant."""
        rows = self.rows
        pairs = ((self.first_offset, self.end_offset), (rows.first_timestamp, rows.end_timestamp))
        return self.partitions == frozenset() or any(
            first is not None and end is not None and first >= end for first, end in pairs
        )


def ensure_some_rows(query: TableQuery) -> None:
    """Raise ConfigurationError where a person asked for a range that holds nothing, which cannot be meant."""
    rows = query.rows
    for what, first, end in (
        ("offsets", query.first_offset, query.end_offset),
        ("times", rows.first_timestamp, rows.end_timestamp),
    ):
        if first is not None and end is not None and first >= end:
            raise ConfigurationError(
                f"{query.topic}: the {what} go from {first} to before {end}, which is nothing: name a later end"
            )
    if query.partitions == frozenset():
        raise ConfigurationError(f"{query.topic}: no partition is named: name some, or leave it out to mean all")
