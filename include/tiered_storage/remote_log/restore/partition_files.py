"""Write a restored partition as the files of a log that a broker can take over.

    {base offset}.log, .index, .timeindex, .txnindex, .snapshot   of each segment as it was copied; if only a part of
                                   a segment is taken, its indexes are rebuilt
    {log end}.log, .index, .timeindex   empty: the broker appends here, so that the others stay as they are, and the
                                   log's end is right even if compaction removed the last records
    leader-epoch-checkpoint, partition.metadata

A recreated topic (with another id) is another incarnation: its cluster counts leader epochs and producers from 0 again.
Followers refuse a batch of a later leader than their own, and a new producer with an old one's id must not be taken for
it. So there every batch gets leader epoch 0, which no checksum covers, and no producer is kept. The written log must
hold no transaction without its marker: it would pass for committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, UnsupportedMagicError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    write_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.kafka_log.kernels.constants import LOG_OVERHEAD, MAGIC
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.producers.producer_snapshot import write_producer_snapshot
from tiered_storage.kafka_log.producers.producer_snapshot_files import remove_snapshots
from tiered_storage.kafka_log.records.batch_header import MAGIC_END
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.progress import OnMoved
from tiered_storage.remote_log.restore.request import RestoredPartition, RestoredSegment
from tiered_storage.remote_log.storage.batch_stream import checked_batches, fetch_whole
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

FIRST_EPOCH = 0
_EPOCH_BYTES = 4
_INDEX_SUFFIXES = {
    IndexKind.OFFSET: "offset_index_path",
    IndexKind.TIMESTAMP: "time_index_path",
    IndexKind.TRANSACTION: "transaction_index_path",
}


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes partitions of the topic `topic_id`, as another incarnation than the store's if `is_new_incarnation`."""

    storage: RemoteStorageManager
    topic_id: str
    is_new_incarnation: bool
    on_moved: OnMoved

    def write(self, partition: RestoredPartition, directory: Path) -> None:
        """Create `directory`, which must not exist, and write all of `partition` into it, durably.

        Raises RemoteStorageError and its subclasses, and CorruptRecordError if a segment that must be cut is corrupt.
        """
        directory.mkdir()
        for segment in partition.segments:
            self._write_segment(segment, directory)
        end = LogSegment(partition.log_end_offset, directory)
        for path in (end.log_path, end.offset_index_path, end.time_index_path):
            write_durably(path, b"")
        self._write_state(partition, directory)
        sync_directory(directory)

    def _write_state(self, partition: RestoredPartition, directory: Path) -> None:
        epochs = partition.lineage
        if self.is_new_incarnation:
            # Messages of magic 0 and 1 have no leader epoch: they lie below the lineage.
            starts = [entry.start_offset for entry in epochs[:1]] if partition.segments else []
            epochs = tuple(EpochEntry(FIRST_EPOCH, max(start, partition.log_start_offset)) for start in starts)
            # Until here some were needed to build the indexes of truncated segments.
            remove_snapshots(directory, partition.log_end_offset, partition.log_end_offset)
            write_producer_snapshot(producer_snapshot_path(directory, partition.log_end_offset))
        write_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT, epochs)
        write_topic_id(directory / PARTITION_METADATA, self.topic_id)

    def _write_segment(self, segment: RestoredSegment, directory: Path) -> None:
        local = LogSegment(segment.start_offset, directory)
        fetched = self._fetched(segment)
        is_whole_copy = segment.is_whole and not self.is_new_incarnation
        pieces: Iterable[bytes | memoryview] = fetched if is_whole_copy else self._taken(segment, fetched)
        with local.log_path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            _sync(file)
        if segment.is_whole:
            self._write_indexes(segment, local)
        else:
            rebuild_indexes(local).write(local)

    def _taken(self, segment: RestoredSegment, pieces: Iterable[bytes]) -> Iterator[bytes | memoryview]:
        """Yield the batches that are taken of `segment`, whose bytes are `pieces`."""
        for window, table in taken_windows(segment, pieces):
            begins = table.position - table.position[0]
            yield _under_epoch(window, begins, FIRST_EPOCH) if self.is_new_incarnation else window

    def _fetched(self, segment: RestoredSegment) -> Iterator[bytes]:
        for piece in fetch_whole(segment.metadata, self.storage):
            self.on_moved(len(piece))
            yield piece
        self.on_moved(0, 1)

    def _write_indexes(self, segment: RestoredSegment, local: LogSegment) -> None:
        """Write the indexes that were copied with a whole segment; build the missing ones from it."""
        found = {kind: content for kind in _INDEX_SUFFIXES if (content := self._index(segment, kind)) is not None}
        for kind, content in found.items():
            write_durably(getattr(local, _INDEX_SUFFIXES[kind]), content)
        if snapshot := self._index(segment, IndexKind.PRODUCER_SNAPSHOT):
            write_durably(producer_snapshot_path(local.directory, segment.end_offset + 1), snapshot)
        elif not self.is_new_incarnation:
            # After a clean shutdown, a broker without a snapshot reads no batches: no transaction was open then.
            with suppress(UnsupportedMagicError):
                state = rebuild_indexes(local)
                write_durably(producer_snapshot_path(local.directory, state.end_offset), state.producer_snapshot)
        if not {IndexKind.OFFSET, IndexKind.TIMESTAMP} <= found.keys():
            rebuild_indexes(local).write_offset_indexes(local)

    def _index(self, segment: RestoredSegment, kind: IndexKind) -> bytes | None:
        try:
            return self.storage.fetch_index(segment.metadata, kind)
        except RemoteObjectNotFoundError:
            return None


def taken_windows(segment: RestoredSegment, pieces: Iterable[bytes]) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches that are taken of `segment`, whose bytes are `pieces`, and their headers.

    All pieces are read, so that the checksum of the whole is compared. Raises RemoteObjectCorruptError for a batch that
    belongs to the log only in part, CorruptRecordError for a corrupt one.
    """
    for window, table in checked_batches(segment.metadata, pieces):
        rows = _rows_taken(segment, table)
        if rows.size:
            taken = table.rows(int(rows[0]), int(rows[-1]) + 1)
            origin, last = int(table.position[0]), int(taken.position[-1] + taken.size[-1])
            yield window[int(taken.position[0]) - origin : last - origin], taken


def _rows_taken(segment: RestoredSegment, table: BatchTable) -> NDArray[np.intp]:
    """Return the rows of `table` that are taken of `segment`; they follow one another."""
    rows = np.flatnonzero((table.last_offset >= segment.start_offset) & (table.base_offset <= segment.end_offset))
    if rows.size and (
        table.base_offset[rows[0]] < segment.start_offset or table.last_offset[rows[-1]] > segment.end_offset
    ):
        raise RemoteObjectCorruptError(
            f"{segment.metadata.segment_id}: a batch reaches beyond offsets {segment.start_offset} to "
            f"{segment.end_offset}, which are all that belong to the log: leaders only cut between batches. "
            "'tiered-storage read' still returns its records"
        )
    return rows


def _under_epoch(batches: memoryview, begins: NDArray[np.int64], leader_epoch: int) -> bytes:
    """Return `batches`, which begin at `begins`, with `leader_epoch` in the place of their own, if they have one."""
    content = np.frombuffer(bytearray(batches), np.uint8)
    begins = begins[content[begins + MAGIC_END - 1] == MAGIC]
    places = begins[:, np.newaxis] + np.arange(LOG_OVERHEAD, LOG_OVERHEAD + _EPOCH_BYTES)
    content[places] = np.frombuffer(leader_epoch.to_bytes(_EPOCH_BYTES, "big"), np.uint8)
    return content.tobytes()


def write_durably(path: Path, content: bytes) -> None:
    """Write a file durably, in a directory that is not in use yet."""
    with path.open("xb") as file:
        file.write(content)
        _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
