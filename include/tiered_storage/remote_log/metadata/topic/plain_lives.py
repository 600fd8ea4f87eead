"""Find the segments of many records whose lives are plain, and make their rows, without an object for each record.

The life of a segment is plain if its records are a beginning and then later states, each once, as the life cycle has
them. A partition is plain if that holds for all its segments here, if SQL has their facts, and if none of its segments
is known already. The rows of its segments are then those that its records leave if they are applied one by one, which
is left to `applying` for all other records. Partitions do not affect one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Table

from tiered_storage.kafka_log.files.kafka_uuid import encode_uuids
from tiered_storage.kafka_log.kernels.constants import HIGHEST_OFFSET
from tiered_storage.remote_log.metadata.sql.database.schema import deleted_segments, segments
from tiered_storage.remote_log.metadata.sql.fact_columns import NONE, FactColumns
from tiered_storage.remote_log.metadata.sql.segment_rows import epochs_text, key_values
from tiered_storage.remote_log.metadata.topic.metadata_columns import MetadataColumns
from tiered_storage.remote_log.metadata.topic.records import RecordKind
from tiered_storage.remote_log.model import UNKNOWN_SIZE, SegmentState, TopicIdPartition

FactColumnsOf: TypeAlias = Callable[[Sequence[str]], FactColumns]
"""Returns what SQL has of the segments with these ids."""

_Numbers: TypeAlias = NDArray[np.int64]
_Flags: TypeAlias = NDArray[np.bool_]

_FOLLOWS: Final = np.array([[new is not old and old.may_become(new) for new in SegmentState] for old in SegmentState])
"""Whether the state of the second number may follow that of the first."""
_LARGEST: Final = np.iinfo(np.int64).max
_ROWS_AT_ONCE: Final = 10_000


class PlainLives:
    """The lives in `columns`, numbered, and their partitions, numbered too."""

    def __init__(self, columns: MetadataColumns, facts_of: FactColumnsOf) -> None:
        """Look at all records."""
        self._columns = columns
        self._records = records = _SegmentRecords(columns)
        self._partition = records.partition[records.begins]
        self._begin = records.rows[records.begins]
        self._end = records.last_where(np.ones_like(records.is_first))
        self._finish = records.last_where(columns.state[records.rows] == SegmentState.COPY_SEGMENT_FINISHED)
        self._custom = records.last_where(columns.has_custom_metadata[records.rows])
        ids = columns.segment_id_halves[:, self._begin]
        self._ids = encode_uuids(_uuids(ids))
        self._facts = facts_of(self._ids)
        self._fact_row, is_ambiguous = self._facts.rows_of(ids, columns.places[:, self._begin])
        self._cluster = self._facts.cluster[self._fact_row]
        self._is_left = self._odd_partitions(is_ambiguous)
        """The partitions that are not plain."""
        self.partitions = self._named()
        """The numbers of the plain partitions, each with the name of the segment that begins first."""

    def leave_out(self, known: Iterable[TopicIdPartition]) -> None:
        """Leave out partitions that have segments already."""
        for each in known:
            self._is_left[self.partitions.pop(each)] = True

    def other_rows(self) -> NDArray[np.intp]:
        """Return the rows of all records that are not of plain partitions."""
        is_other = np.ones(len(self._columns), np.bool_)
        is_other[self._records.rows[~self._is_left[self._records.partition]]] = False
        return np.flatnonzero(is_other)

    def partition_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `partitions`."""
        count = self._is_left.size
        spans = self._columns.end_offset[self._begin] - self._columns.start_offset[self._begin] + 1
        longest = _most(spans, self._partition, count).tolist()
        finished = np.bincount(self._partition[self._finish != NONE], minlength=count).tolist()
        return [
            {
                **key_values(each),
                "topic": each.topic,
                "longest_span": longest[number],
                "finished_copies": finished[number],
            }
            for each, number in self.partitions.items()
        ]

    def segment_rows(self) -> Iterator[tuple[Table, list[tuple[Any, ...]]]]:
        """Yield rows with all columns of their table, `segments` or `deleted_segments`, some at a time."""
        sequences = self._sequences()
        kept = np.flatnonzero(~self._is_left[self._partition])
        # In the order of the index, so that SQLite goes on where it was.
        kept = kept[np.lexsort((self._columns.start_offset[self._begin[kept]], self._partition[kept]))]
        is_deleted = self._columns.state[self._end[kept]] == SegmentState.DELETE_SEGMENT_FINISHED
        for table, lives in ((segments, kept[~is_deleted]), (deleted_segments, kept[is_deleted])):
            for first in range(0, lives.size, _ROWS_AT_ONCE):
                values = self._values(lives[first : first + _ROWS_AT_ONCE], sequences)
                yield table, list(zip(*(values[column.name] for column in table.columns), strict=True))

    def _odd_partitions(self, is_odd: _Flags) -> _Flags:
        """Return the partitions that have a life that is odd or not plain, or segments of several clusters."""
        records, count = self._records, self._records.examples.size
        is_odd = is_odd | (self._fact_row == NONE) | ~np.logical_and.reduceat(self._is_plain(), records.begins)
        found: _Flags = _least(self._cluster, self._partition, count) != _most(self._cluster, self._partition, count)
        found[records.partition[is_odd[records.life]]] = True
        return found

    def _is_plain(self) -> _Flags:
        """Return whether each record about a segment is one that its life may have at its place."""
        columns, rows, partition = self._columns, self._records.rows, self._records.partition
        kind, state = columns.kind[rows], columns.state[rows]
        begins = (kind == RecordKind.SEGMENT) & (state == SegmentState.COPY_SEGMENT_STARTED)
        begins &= (columns.size[rows] != UNKNOWN_SIZE) & (columns.end_offset[rows] <= HIGHEST_OFFSET)
        goes_on = (kind == RecordKind.SEGMENT_UPDATE) & _FOLLOWS[np.roll(state, 1), state]
        goes_on &= np.roll(partition, 1) == partition
        found: _Flags = np.where(self._records.is_first, begins, goes_on)
        return found

    def _named(self) -> dict[TopicIdPartition, int]:
        plain, count = np.flatnonzero(~self._is_left), self._is_left.size
        places = self._columns.places[:, self._records.rows[self._records.examples[plain]]]
        fields = zip(
            [self._facts.clusters[code] for code in _most(self._cluster, self._partition, count)[plain].tolist()],
            encode_uuids(_uuids(places[:2])),
            places[2].tolist(),
            self._columns.topics(_least(self._begin, self._partition, count)[plain]),
            strict=True,
        )
        return {TopicIdPartition(*each): number for each, number in zip(fields, plain.tolist(), strict=True)}

    def _sequences(self) -> _Numbers:
        """Return the number of each finished copy among those of its partition, in the order of the log."""
        finished = np.flatnonzero(self._finish != NONE)
        in_order = finished[np.lexsort((self._finish[finished], self._partition[finished]))]
        partition = self._partition[in_order]
        found = np.zeros(self._finish.size, np.int64)
        found[in_order] = np.arange(in_order.size) - np.searchsorted(partition, partition) + 1
        return found

    def _values(self, lives: NDArray[np.intp], sequences: _Numbers) -> Mapping[str, Sequence[Any]]:
        """Return the values of some rows by the names of their columns."""
        columns, facts = self._columns, self._facts
        begin, end, fact = self._begin[lives], self._end[lives], self._fact_row[lives]
        is_finished = self._finish[lives] != NONE
        named = {number: each for each, number in self.partitions.items()}
        of = [named[number] for number in self._partition[lives].tolist()]
        texts, first_epochs, last_epochs = _epochs(columns, begin)
        custom = columns.all_custom_metadata(np.maximum(self._custom[lives], 0))
        largest = np.where(
            is_finished & facts.has_max_timestamp[fact], facts.max_timestamp[fact], columns.max_timestamp[begin]
        )
        return {
            "cluster_id": [each.cluster_id for each in of],
            "topic_id": [each.topic_id for each in of],
            "partition": [each.partition for each in of],
            "segment_id": [self._ids[number] for number in lives.tolist()],
            "topic": columns.topics(begin),
            "start_offset": columns.start_offset[begin].tolist(),
            "end_offset": columns.end_offset[begin].tolist(),
            "max_timestamp": largest.tolist(),
            "event_timestamp": columns.event_timestamp[end].tolist(),
            "size": columns.size[begin].tolist(),
            "leader_epochs": texts,
            "first_epoch": first_epochs,
            "last_epoch": last_epochs,
            "state": columns.state[end].tolist(),
            "broker_id": columns.broker_id[begin].tolist(),
            "custom_metadata": _unless(self._custom[lives] == NONE, custom),
            "fencing_number": facts.fencing_number[fact].tolist(),
            "finish_sequence": _unless(~is_finished, sequences[lives].tolist()),
        }


class _SegmentRecords:
    """The records about segments: their `rows`, by segment, those of each in the order of the log.

    `life` numbers their segments, and `partition` their partitions. The segments begin at `begins`; `examples` has a
    record of each partition.
    """

    def __init__(self, columns: MetadataColumns) -> None:
        rows = np.flatnonzero(columns.is_sound & (columns.kind <= RecordKind.SEGMENT_UPDATE))
        ids = columns.segment_id_halves[:, rows]
        order = np.lexsort(ids)
        self.rows = rows[order]
        self.is_first = _differs(ids[:, order])
        self.begins = np.flatnonzero(self.is_first)
        self.life = np.cumsum(self.is_first) - 1
        self.partition, self.examples = _numbered(columns.places[:, self.rows])

    def last_where(self, chosen: _Flags) -> NDArray[np.intp]:
        """Return the row of the last of each segment's records that are `chosen`, NONE if there is none."""
        return np.maximum.reduceat(np.where(chosen, self.rows, NONE), self.begins)


def _epochs(columns: MetadataColumns, rows: NDArray[np.intp]) -> tuple[list[str], list[int], list[int]]:
    """Return the leader epochs as text, and the first and the last of them."""
    firsts, starts = columns.first_epoch[rows].tolist(), columns.first_epoch_start[rows].tolist()
    texts = [f"[[{epoch}, {start}]]" for epoch, start in zip(firsts, starts, strict=True)]
    lasts = list(firsts)
    for number in np.flatnonzero(columns.epoch_count[rows] != 1).tolist():
        entries = columns.leader_epochs(int(rows[number]))
        texts[number], firsts[number], lasts[number] = epochs_text(entries), entries[0].epoch, entries[-1].epoch
    return texts, firsts, lasts


def _unless(is_none: _Flags, values: Sequence[Any]) -> list[Any]:
    return [None if none else value for none, value in zip(is_none.tolist(), values, strict=True)]


def _uuids(halves: _Numbers) -> bytes:
    return np.ascontiguousarray(halves.T.astype(">i8")).tobytes()


def _differs(keys: _Numbers) -> _Flags:
    """Return of each column of `keys` whether it differs from the one before it, which the first one does."""
    differs = np.ones(keys.shape[1], np.bool_)
    differs[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return differs


def _numbered(keys: _Numbers) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return a number for each column of `keys`, the same for equal ones; and of each number where it is."""
    order = np.lexsort(keys)
    is_new = _differs(keys[:, order])
    numbers = np.empty(order.size, np.intp)
    numbers[order] = np.cumsum(is_new) - 1
    return numbers, order[is_new]


def _least(values: _Numbers, groups: NDArray[np.intp], count: int) -> _Numbers:
    found = np.full(count, _LARGEST)
    np.minimum.at(found, groups, values)
    return found


def _most(values: _Numbers, groups: NDArray[np.intp], count: int) -> _Numbers:
    found = np.zeros(count, np.int64)
    np.maximum.at(found, groups, values)
    return found
