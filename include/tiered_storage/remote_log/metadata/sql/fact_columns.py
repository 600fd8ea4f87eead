"""The facts on many segments in the metadata topic (topic_segments.py), as columns: for the start on a long topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, func, select

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid, decode_uuids
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import topic_segments
from tiered_storage.remote_log.metadata.sql.topic_segments import rows_with_ids

NONE: Final = -1
"""The row of a segment without facts."""

_FIELDS: Final = 9
_ROWS_AT_ONCE: Final = 10_000
_SHARE_TO_READ_ALL: Final = 8
"""A row by its id costs as much as so many rows in their order."""
_ODD: Final = np.int64(-7046029254386353131)
"""Mixes both halves of an id: Kafka's ids are random, and others may begin alike."""


@dataclass(frozen=True, slots=True)
class FactColumns:
    """A row a segment, in the order of `keys`. See SegmentFacts; `halves` and `places` are as in MetadataColumns.

    `has_max_timestamp` is whether the end of the copy set one. `clusters` are the names of `cluster`. These columns
    have a last row more, which NONE leads to: that of a segment without facts.
    """

    keys: NDArray[np.int64]
    halves: NDArray[np.int64]
    places: NDArray[np.int64]
    cluster: NDArray[np.int64]
    fencing_number: NDArray[np.int64]
    max_timestamp: NDArray[np.int64]
    has_max_timestamp: NDArray[np.bool_]
    clusters: tuple[str, ...]

    @classmethod
    def of(cls, batches: Iterable[Sequence[Row[Any]]], cluster_id: str) -> Self:
        """Return the facts in rows of `topic_segments`; those with ids that no record can have are left out.

        `cluster_id` is the first of `clusters`.
        """
        codes = {cluster_id: 0}
        parts = [_part(batch, codes) for batch in batches if batch]
        table = np.concatenate(parts, axis=1) if parts else np.empty((_FIELDS, 0), np.int64)
        keys = _keys(table[:2])
        order = np.argsort(keys)
        table = np.append(table[:, order], np.zeros((_FIELDS, 1), np.int64), axis=1)
        cluster, number, largest, has_largest = table[5:]
        return cls(keys[order], table[:2], table[2:5], cluster, number, largest, has_largest != 0, tuple(codes))

    def rows_of(
        self, halves: NDArray[np.int64], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the row of each segment, NONE if there is none, and whether several facts may be its own."""
        wanted = _keys(halves)
        rows, after = np.searchsorted(self.keys, wanted), np.searchsorted(self.keys, wanted, "right")
        is_found = (self.halves[:, rows] == halves).all(axis=0) & (self.places[:, rows] == places).all(axis=0)
        return np.where(is_found, rows, NONE), after - rows > 1


class ManyFacts:
    """Finds the facts on the segments of `records` records: row by row, or, of so many, all at once.

    All at once are those of the first call. Every record must have been written before that.
    """

    def __init__(self, database: Database, cluster_id: str, records: int) -> None:
        """Read nothing yet; `cluster_id` is as in FactColumns."""
        self._database = database
        self._cluster_id = cluster_id
        self._records = records
        self._all: FactColumns | None = None

    def of(self, ids: Sequence[str]) -> FactColumns:
        """Return columns with the facts on the segments with these ids."""
        if self._all is not None:
            return self._all
        with self._database.reading() as connection:
            known = connection.scalar(select(func.count()).select_from(topic_segments)) or 0
            if _SHARE_TO_READ_ALL * self._records < known:
                return FactColumns.of([list(rows_with_ids(connection, ids))], self._cluster_id)
            self._database.keep_transaction(connection)
            rows = connection.execute(select(topic_segments).execution_options(yield_per=_ROWS_AT_ONCE))
            self._all = FactColumns.of(rows.partitions(), self._cluster_id)
        return self._all


def _part(batch: Sequence[Row[Any]], codes: dict[str, int]) -> NDArray[np.int64]:
    """Return the fields of FactColumns after `keys` for some rows, one after the other; number clusters in `codes`."""
    ids, topics, partitions, clusters, numbers, largest, _ = zip(*batch, strict=True)
    try:
        uuids = [np.frombuffer(decode_uuids(each), ">i8").reshape(-1, 2) for each in (ids, topics)]
    except ConfigurationError:
        sound = [row for row in batch if _is_uuid(row.segment_id) and _is_uuid(row.topic_id)]
        return _part(sound, codes) if sound else np.empty((_FIELDS, 0), np.int64)
    return np.array(
        [
            *(half for each in uuids for half in each.T),
            partitions,
            [codes.setdefault(each, len(codes)) for each in clusters],
            numbers,
            [each or 0 for each in largest],
            [each is not None for each in largest],
        ],
        np.int64,
    )


def _is_uuid(text: str) -> bool:
    try:
        decode_uuid(text)
    except ConfigurationError:
        return False
    return True


def _keys(halves: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = halves[0] ^ (halves[1] * _ODD)
    return found
