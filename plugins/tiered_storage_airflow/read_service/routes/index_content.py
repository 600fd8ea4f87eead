"""The content of a remote segment's indexes as plain values, some entries at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from tiered_storage.errors import CorruptIndexError, RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import parse_leader_epochs
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.remote_log.indexes.remote_index_lookup import OFFSET_ENTRY, TIME_ENTRY
from tiered_storage.remote_log.indexes.remote_log_index import iterate_entries
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

Entry = dict[str, Any]
Rows = Callable[[slice], list[Entry]]


class IndexName(StrEnum):
    """The kinds of indexes, by their names in addresses."""

    MANIFEST = "manifest"
    REMOTE_LOG_INDEX = "remote-log-index"
    REMOTE_OFFSET_INDEX = "remote-offset-index"
    REMOTE_TIME_INDEX = "remote-time-index"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    LEADER_EPOCH = "leader-epoch"
    TRANSACTION = "transaction"

    @property
    def kind(self) -> IndexKind:
        """The kind."""
        return IndexKind[self.name]


def index_entries(
    name: IndexName, raw: bytes, segment: RemoteLogSegmentMetadata, start: int, limit: int
) -> tuple[list[Entry], int]:
    """Return entries of an index from number `start` on, at most `limit`, and how many there are in all.

    Offsets are absolute, timestamps ms, positions bytes. Raises CorruptIndexError, and RemoteObjectCorruptError for an
    invalid manifest.
    """
    source = f"{segment.segment_id}: {name.value}"
    count, rows = _READERS[name](raw, source, segment.start_offset)
    return rows(slice(start, start + limit)), count


def _manifest(raw: bytes, source: str, _: int) -> tuple[int, Rows]:
    try:
        found = json.loads(raw, parse_constant=_refused)
        to_json(found)  # nested too deeply for a response
    except (ValueError, RecursionError) as error:
        raise RemoteObjectCorruptError(f"{source}: this is not JSON") from error
    if not isinstance(found, dict):
        raise RemoteObjectCorruptError(f"{source}: this is not a JSON object")
    return 1, lambda part: [found][part]


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _remote_log_index(raw: bytes, source: str, _: int) -> tuple[int, Rows]:
    entries = list(iterate_entries(raw, source))
    return len(entries), lambda part: [asdict(entry) for entry in entries[part]]


def _remote_offsets(raw: bytes, source: str, base_offset: int) -> tuple[int, Rows]:
    entries = _whole_entries(raw, source, OFFSET_ENTRY)
    return len(entries), lambda part: [
        {"first_offset": base_offset + relative, "position": position} for relative, position in entries[part].tolist()
    ]


def _remote_times(raw: bytes, source: str, _: int) -> tuple[int, Rows]:
    entries = _whole_entries(raw, source, TIME_ENTRY)
    return len(entries), lambda part: [
        {"timestamp": timestamp, "position": position} for timestamp, position in entries[part].tolist()
    ]


def _whole_entries(raw: bytes, source: str, entry: np.dtype[np.void]) -> NDArray[Any]:
    if len(raw) % entry.itemsize:
        raise CorruptIndexError(source, len(raw), f"{len(raw)} bytes are not a whole number of entries")
    return np.frombuffer(raw, entry)


def _offsets(raw: bytes, source: str, base_offset: int) -> tuple[int, Rows]:
    index = OffsetIndex.parse(raw, source, base_offset)
    return index.offsets.size, lambda part: [
        {"offset": offset, "position": position}
        for offset, position in zip(index.offsets[part].tolist(), index.positions[part].tolist(), strict=True)
    ]


def _times(raw: bytes, source: str, base_offset: int) -> tuple[int, Rows]:
    index = TimeIndex.parse(raw, source, base_offset)
    return index.offsets.size, lambda part: [
        {"timestamp": timestamp, "offset": offset}
        for timestamp, offset in zip(index.timestamps[part].tolist(), index.offsets[part].tolist(), strict=True)
    ]


def _plain(parse: Callable[[bytes, str, int], Sequence[Any]], raw: bytes, source: str, base: int) -> tuple[int, Rows]:
    entries = parse(raw, source, base)
    return len(entries), lambda part: [asdict(entry) for entry in entries[part]]


_READERS: Mapping[IndexName, Callable[[bytes, str, int], tuple[int, Rows]]] = {
    IndexName.MANIFEST: _manifest,
    IndexName.REMOTE_LOG_INDEX: _remote_log_index,
    IndexName.REMOTE_OFFSET_INDEX: _remote_offsets,
    IndexName.REMOTE_TIME_INDEX: _remote_times,
    IndexName.OFFSET: _offsets,
    IndexName.TIMESTAMP: _times,
    IndexName.PRODUCER_SNAPSHOT: partial(_plain, lambda raw, source, _: parse_producer_snapshot(raw, source)),
    IndexName.LEADER_EPOCH: partial(_plain, lambda raw, source, _: parse_leader_epochs(raw, source)),
    IndexName.TRANSACTION: partial(
        _plain, lambda raw, source, base: TransactionIndex.parse(raw, source, base).transactions
    ),
}
