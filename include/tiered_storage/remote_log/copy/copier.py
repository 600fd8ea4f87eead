"""Copies one segment: checks, indexes and sends its bytes in one pass through memory.

The copier reads a window of whole batches, checks every batch's checksum and offsets, extends all indexes, and sends
the window to the store. It compares the local index files with the batches. In place of a false or missing one it
sends the index that it built, and it reports a false one; for the files about producers see producer_file_check.py. An
error in the log itself stops the copy before anything of the segment is marked as whole.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.errors import (
    ConfigurationError,
    CorruptIndexError,
    CorruptLogError,
    CorruptRecordError,
    EncryptionKeyError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, encode_leader_epochs
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.copy.forked_log import ensure_same_segment
from tiered_storage.remote_log.copy.producer_file_check import ProducerFileCheck, instead_of_index
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.indexes.batch_epochs import wrong_epoch
from tiered_storage.remote_log.indexes.remote_index_builder import RemoteIndexBuilder
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.model import RemoteLogSegmentMetadataUpdate, SegmentState
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.storage.listable_storage import ensure_encodes
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, RemoteStorageManager

LEAST_WINDOW = 64 << 10
WINDOWS_A_SECOND = 50
NO_LIMIT = RateLimit()
_LIBRARY = str(Path(__file__).parents[2])


@dataclasses.dataclass(frozen=True, slots=True)
class CopySizes:
    """The sizes of a copy, in bytes: what it holds at once, how dense its indexes are, how long metadata may be."""

    window: int
    index_interval: int
    remote_index_chunk: int
    custom_metadata: int = 128

    def within(self, bytes_per_second: float) -> CopySizes:
        """Return the sizes for a limited copy: it moves a window's bytes at once, so they are 20 ms' at most.

        Producers and consumers on the same disk and processors wait for each window.
        """
        if bytes_per_second <= 0:
            return self
        window = int(bytes_per_second / WINDOWS_A_SECOND)
        return dataclasses.replace(self, window=max(LEAST_WINDOW, min(self.window, window)))


def copy_segment(
    task: CopyTask,
    storage: RemoteStorageManager,
    sizes: CopySizes,
    clock: Clock,
    history: ProducerHistory | None = None,
    moved: Callable[[int], None] = lambda _: None,
    limit: RateLimit = NO_LIMIT,
) -> CopyOutcome:
    """Copy the segment of `task` and return how it ended; never raises for an error of this segment alone.

    Copies of one partition's segments may share their `history`. `moved` is called with the bytes that the store took.
    What is sent, indexes too, waits for `limit`.
    """
    begun = time.monotonic()
    try:
        ensure_encodes(storage, task.encoding)
        _ensure_continues(task, storage)
        source = _SegmentStream(task, sizes, history or ProducerHistory(), moved, limit)
        data = LogSegmentData(
            task.metadata.size, source.chunks(), source.indexes, task.encoding, source.remote.chunk_ends
        )
        custom_metadata = storage.copy_log_segment_data(task.metadata, data)
        _ensure_no_longer(custom_metadata, sizes.custom_metadata, task, storage)
    except (TieredStorageError, OSError) as error:
        return CopyOutcome(task, None, JobFailure.of(error), seconds=time.monotonic() - begun, library=_LIBRARY)
    finished = RemoteLogSegmentMetadataUpdate(
        task.metadata.segment_id,
        SegmentState.COPY_SEGMENT_FINISHED,
        clock(),
        custom_metadata,
        source.max_timestamp,
    )
    return CopyOutcome(
        task,
        finished,
        record_count=source.record_count,
        damages=tuple(source.damages),
        notices=tuple(source.notices),
        seconds=time.monotonic() - begun,
        library=_LIBRARY,
    )


def _ensure_no_longer(custom_metadata: bytes, most: int, task: CopyTask, storage: RemoteStorageManager) -> None:
    """Delete the copy and raise ConfigurationError if its custom metadata are longer than `most` bytes."""
    if len(custom_metadata) <= most:
        return
    storage.delete_log_segment_data(dataclasses.replace(task.metadata, custom_metadata=custom_metadata))
    raise ConfigurationError(
        f"{task.metadata.segment_id}: {type(storage).__name__} returned {len(custom_metadata)} bytes of custom "
        f"metadata, more than {most}, and the copy was deleted: raise remote.log.metadata.custom.metadata.max.bytes; "
        "the next run copies the segment again"
    )


def _ensure_continues(task: CopyTask, storage: RemoteStorageManager) -> None:
    """Raise ForkedLogError unless the local log has the batches of the remote segment that `task` continues."""
    if task.after is None:
        return
    try:
        ensure_same_segment(open_segment(task.location), task.after, task.lineage, storage)
    except (
        CorruptLogError,
        EncryptionKeyError,
        RemoteObjectCorruptError,
        RemoteObjectNotFoundError,
        LaterVersionError,
    ):
        # An audit reports the damage; the copy continues all the same.
        return


class _SegmentStream:
    """The bytes of one local segment, and what the copy learns from them."""

    def __init__(
        self,
        task: CopyTask,
        sizes: CopySizes,
        history: ProducerHistory,
        moved: Callable[[int], None],
        limit: RateLimit,
    ) -> None:
        self._moved = moved
        self._limit = limit
        self._task = task
        self._sizes = sizes
        self._segment = open_segment(task.location, history)
        self._indexes = IndexBuilder(task.metadata.start_offset, sizes.index_interval)
        self.remote = RemoteIndexBuilder(task.metadata, sizes.remote_index_chunk)
        self._of_producers: dict[IndexKind, bytes] = {}
        self.record_count = 0
        self.damages: list[str] = []
        self.notices: list[str] = []

    @property
    def max_timestamp(self) -> int:
        """The largest record timestamp (ms) so far; -1 for none."""
        return self._indexes.latest.timestamp

    def chunks(self) -> Iterator[memoryview]:
        """Yield the segment window by window.

        Raises CorruptRecordError for anything that a broker would not have written, and InvalidLogDirectoryError if the
        aborted transactions cannot be determined.
        """
        checks = self._local_index_checks()
        producers = ProducerFileCheck(self._segment, self._segment.producers.before(), self._task.readable_from)
        passed, last_offset = 0, -1
        for window, table in self._segment.windows(window_bytes=self._sizes.window):
            self._check_epochs(table)
            self._indexes.append(table)
            self.remote.append(table)
            self._run_checks(checks, table)
            producers.feed(window, table)
            self.record_count += int(table.record_count.sum())
            size = len(window)
            passed += size
            last_offset = int(table.last_offset[-1])
            self._limit.spend(size)
            yield window
            # The caller asks for the next window, so the store has taken this one.
            self._moved(size)
        self._check_end(passed, last_offset)
        self._run_checks(checks, None)
        self._indexes.close()
        self._finish_producers(producers)

    def indexes(self) -> dict[IndexKind, bytes]:
        """Return all files to send beside the segment; call it after the last chunk."""
        indexes = {
            **self.remote.indexes(),
            IndexKind.OFFSET: self._indexes.offset_index().to_bytes(),
            IndexKind.TIMESTAMP: self._indexes.time_index().to_bytes(),
            IndexKind.LEADER_EPOCH: encode_leader_epochs(self._task.lineage),
            **self._of_producers,
        }
        self._limit.spend(sum(map(len, indexes.values())))
        return indexes

    def _finish_producers(self, producers: ProducerFileCheck) -> None:
        self._of_producers = producers.contents()
        is_doubtful = producers.damages or producers.lacks_snapshot
        if is_doubtful and (corrected := producers.corrected(self._segment.producers.by_log())):
            producers = corrected
            self._of_producers = producers.contents()
        self.damages += producers.damages
        self.notices += producers.notices
        if producers.lacks_snapshot:
            self._segment.producers.remember(producers.known())

    def _local_index_checks(self) -> list[OffsetIndexCheck | TimeIndexCheck]:
        checks: list[OffsetIndexCheck | TimeIndexCheck] = []
        for beside, check in (
            (self._segment.offset_index, OffsetIndexCheck),
            (self._segment.time_index, TimeIndexCheck),
        ):
            try:
                index = beside.read()
            except CorruptIndexError as error:
                self._report(error)
                continue
            if index is None:
                self.notices.append(f"{beside.name} is missing: it was rebuilt from the log")
            else:
                checks.append(check(beside.name, index))  # type: ignore[arg-type]  # each with its own
        return checks

    def _run_checks(self, checks: list[OffsetIndexCheck | TimeIndexCheck], table: BatchTable | None) -> None:
        """Feed `table` to every check, or end them if None; the first false entry ends a check."""
        for check in list(checks):
            try:
                if table is None:
                    check.finish()
                else:
                    check.feed(table)
            except CorruptIndexError as error:
                checks.remove(check)
                self._report(error)

    def _report(self, error: CorruptIndexError) -> None:
        self.damages.append(f"{error}; {instead_of_index(self._segment)}")

    def _check_epochs(self, table: BatchTable) -> None:
        """Check that the lineage has the batches' leaders: it decides which copy readers follow."""
        wrong = wrong_epoch(table, self._task.lineage)
        if wrong is not None:
            raise CorruptRecordError(
                self._segment.name,
                wrong.position,
                f"the batch at offset {wrong.base_offset} was written under leader epoch {wrong.found}, where "
                f"{LEADER_EPOCH_CHECKPOINT} says {wrong.expected}",
            )

    def _check_end(self, passed: int, last_offset: int) -> None:
        expected = self._task.metadata
        if passed != expected.size:
            raise CorruptRecordError(
                self._segment.name,
                passed,
                f"the segment has {passed} bytes; it had {expected.size} when it was planned",
            )
        if last_offset != expected.end_offset:
            raise CorruptRecordError(
                self._segment.name,
                passed,
                f"the log ends with offset {last_offset}, but the next segment begins at {expected.end_offset + 1}: "
                "its end is missing",
            )
