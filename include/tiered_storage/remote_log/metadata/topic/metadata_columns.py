"""Decodes many values of the metadata topic at once, into columns: for the start of a process on a long topic.

    columns = decode_values(batch.column("value"))          # of a ColumnDecoder's record batch, or any Arrow binary
    columns.kind, columns.state, columns.start_offset       # NumPy arrays, a row a value
    columns.segment_ids()[row]                              # 16 bytes
    columns.event(row, cluster_id)                          # one row as `records` decodes it

A malformed value takes nothing from the others: `is_sound` is False in its row, and `event` raises the reason. A column
that a kind lacks is undefined in its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.machine_code import address_of, load_kernels
from tiered_storage.remote_log.metadata.topic.records import MetadataEvent, decode_event
from tiered_storage.remote_log.metadata.topic.value_reader import ValueReader

_INT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """The decoded values, a row each. `malformed` is how many of them are."""

    values: pa.BinaryArray
    malformed: int
    _table: NDArray[np.int64]
    _bytes: memoryview

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_sound(self) -> NDArray[np.bool_]:
        """Whether the value is a record that Kafka can have written."""
        return self._flag(constants.METADATA_SOUND)

    @property
    def kind(self) -> NDArray[np.int64]:
        """The RecordKind."""
        return self._column(constants.METADATA_KIND)

    @property
    def state(self) -> NDArray[np.int64]:
        """The SegmentState, or the PartitionDeleteState of a partition delete."""
        return self._column(constants.METADATA_STATE)

    @property
    def partition(self) -> NDArray[np.int64]:
        """The partition's number; not in a snapshot."""
        return self._column(constants.METADATA_PARTITION)

    @property
    def start_offset(self) -> NDArray[np.int64]:
        """Of a segment or a snapshot, as the two that follow."""
        return self._column(constants.METADATA_START_OFFSET)

    @property
    def end_offset(self) -> NDArray[np.int64]:
        """Inclusive."""
        return self._column(constants.METADATA_END_OFFSET)

    @property
    def max_timestamp(self) -> NDArray[np.int64]:
        """In ms."""
        return self._column(constants.METADATA_MAX_TIMESTAMP)

    @property
    def size(self) -> NDArray[np.int64]:
        """In bytes; of a segment or a snapshot, as the next one."""
        return self._column(constants.METADATA_SIZE)

    @property
    def is_transaction_index_empty(self) -> NDArray[np.bool_]:
        """Whether the segment has no aborted transactions."""
        return self._flag(constants.METADATA_TRANSACTION_INDEX_EMPTY)

    @property
    def broker_id(self) -> NDArray[np.int64]:
        """The broker that wrote the record."""
        return self._column(constants.METADATA_BROKER)

    @property
    def event_timestamp(self) -> NDArray[np.int64]:
        """In ms."""
        return self._column(constants.METADATA_EVENT_TIMESTAMP)

    @property
    def epoch_count(self) -> NDArray[np.int64]:
        """How many leader epochs a segment or a snapshot has, 1 or more; usually 1."""
        return self._column(constants.METADATA_EPOCH_COUNT)

    @property
    def first_epoch(self) -> NDArray[np.int64]:
        """The epoch that is written first, of a segment or a snapshot; the only one where `epoch_count` is 1."""
        return self._column(constants.METADATA_FIRST_EPOCH)

    @property
    def first_epoch_start(self) -> NDArray[np.int64]:
        """The start offset of `first_epoch`."""
        return self._column(constants.METADATA_FIRST_EPOCH + 1)

    def topic_ids(self) -> NDArray[np.void]:
        """Return the 16 bytes of each topic's id; not in a snapshot. `tolist` makes them bytes."""
        return self._uuids(constants.METADATA_TOPIC_ID)

    def segment_ids(self) -> NDArray[np.void]:
        """Return the 16 bytes of each segment's id; not in a partition delete. `tolist` makes them bytes."""
        return self._uuids(constants.METADATA_SEGMENT_ID)

    @property
    def places(self) -> NDArray[np.int64]:
        """Three rows: both halves of the topic's id, the higher one first, and the partition's number."""
        return self._table[constants.METADATA_TOPIC_ID : constants.METADATA_PARTITION + 1]

    @property
    def segment_id_halves(self) -> NDArray[np.int64]:
        """Two rows: both halves of the segment's id, the higher one first."""
        return self._table[constants.METADATA_SEGMENT_ID : constants.METADATA_SEGMENT_ID + 2]

    @property
    def has_custom_metadata(self) -> NDArray[np.bool_]:
        """Whether there are custom metadata, which may be empty; not in a partition delete."""
        return cast("NDArray[np.bool_]", self._table[constants.METADATA_CUSTOM + 1] >= 0)

    def topic(self, row: int) -> str:
        """Return the topic's name; not in a snapshot."""
        return self._slice(row, constants.METADATA_NAME).decode("ascii")

    def custom_metadata(self, row: int) -> bytes | None:
        """Return the custom metadata; not in a partition delete."""
        return self._slice(row, constants.METADATA_CUSTOM) if self.has_custom_metadata[row] else None

    def topics(self, rows: NDArray[np.intp]) -> list[str]:
        """Return `topic` of each of `rows`."""
        return [name.decode("ascii") for name in self._slices(rows, constants.METADATA_NAME)]

    def all_custom_metadata(self, rows: NDArray[np.intp]) -> list[bytes | None]:
        """Return `custom_metadata` of each of `rows`."""
        has_some = self.has_custom_metadata[rows].tolist()
        found = self._slices(rows, constants.METADATA_CUSTOM)
        return [each if some else None for each, some in zip(found, has_some, strict=True)]

    def leader_epochs(self, row: int) -> tuple[EpochEntry, ...]:
        """Return the leader epochs of a segment or a snapshot, by rising number."""
        if self.epoch_count[row] == 1:
            return (EpochEntry(int(self.first_epoch[row]), int(self.first_epoch_start[row])),)
        begin = int(self._table[constants.METADATA_EPOCHS, row])
        end = int(self._table[constants.METADATA_CUSTOM, row])
        return ValueReader(bytes(self._bytes[begin:end])).leader_epochs()

    def event(self, row: int, cluster_id: str) -> MetadataEvent:
        """Return what is in `row`; raises MalformedMetadataRecordError with the reason if it is not sound."""
        return decode_event(cast("bytes", self.values[row].as_py() or b""), cluster_id)

    def _column(self, number: int) -> NDArray[np.int64]:
        return cast("NDArray[np.int64]", self._table[number])

    def _flag(self, number: int) -> NDArray[np.bool_]:
        return cast("NDArray[np.bool_]", self._table[number] != 0)

    def _slice(self, row: int, column: int) -> bytes:
        begin, size = self._table[column : column + 2, row]
        return bytes(self._bytes[begin : begin + size])

    def _slices(self, rows: NDArray[np.intp], column: int) -> list[bytes]:
        begins, sizes = self._table[column : column + 2, rows]
        ends = begins + np.maximum(sizes, 0)
        content = self._bytes
        return [bytes(content[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def _uuids(self, column: int) -> NDArray[np.void]:
        halves = np.ascontiguousarray(self._table[column : column + 2].T.astype(">i8"))
        return cast("NDArray[np.void]", halves.view("V16")[:, 0])


def decode_values(values: pa.BinaryArray) -> MetadataColumns:
    """Decode `values`, as the column of a record batch has them; a null is malformed.

    It takes 190 bytes a value besides them: give it a record batch at a time, not a whole topic.
    """
    if values.null_count:
        # The bytes below a null are undefined.
        values = cast("pa.BinaryArray", values.fill_null(b""))
    table = np.zeros((constants.METADATA_COLUMNS, len(values)), np.int64)
    if not len(values):
        # Its buffers may be missing.
        return MetadataColumns(values, 0, table, memoryview(b""))
    _, ends, content = values.buffers()
    malformed = load_kernels().decode_metadata(
        content.address, ends.address + _INT32_BYTES * values.offset, len(values), address_of(table)
    )
    return MetadataColumns(values, malformed, table, memoryview(cast("Any", content)))
