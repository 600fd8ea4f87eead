"""The state of a log's producers where one of its segments begins.

The state is complete from offset 0 on or from a producer snapshot on, as long as every later batch was read. If the
oldest segment of a log begins later and has no snapshot at its base offset, or a segment is corrupt or missing, only
later batches are known: a transaction may have begun before.

The state is kept as small as a snapshot needs: every open transaction, and of the producers without one the most
recent: at least PRODUCERS_KEPT of them and never more than twice as many, each with only its last batch. Forgotten
producers are missing from a rebuilt snapshot, as if they had expired.

Source: ProducerStateManager of released Kafka, which treats such a log's producers as unknown too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.producers.producer_snapshot_files import latest_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

DIRECTORIES_REMEMBERED = 4
PRODUCERS_KEPT = 1 << 16


@dataclass(frozen=True, slots=True)
class KnownProducers:
    """The producers of a log as of `end_offset` (exclusive).

    With `seen_from`, batches are known only from that offset (inclusive) on; None: all of them.
    """

    end_offset: int
    producers: tuple[ProducerSnapshotEntry, ...] = ()
    seen_from: int | None = None

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by its producer's id."""
        return self.state().open_transactions

    def state(self) -> ProducerState:
        """Return a state to continue with `follow`: a snapshot needs only each producer's last batch."""
        return ProducerState(self.end_offset, self.producers, batches_kept=1)


class ProducerHistory:
    """Finds the state of producers before segments, and caches what a reader of whole segments found.

    So a log without snapshots is not read from its start for every segment. Thread-safe.
    """

    def __init__(self) -> None:
        self._remembered: dict[Path, KnownProducers] = {}
        self._lock = Lock()

    def remember(self, partition_directory: Path, known: KnownProducers) -> None:
        """Record the state of a log, unless a later one is recorded."""
        with self._lock:
            before = self._remembered.get(partition_directory)
            if before is not None and before.end_offset >= known.end_offset:
                return
            while before is None and len(self._remembered) >= DIRECTORIES_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[partition_directory] = known

    def before(self, segment: LogSegment) -> KnownProducers:
        """Return the state at the base offset of `segment`, from the snapshot there if possible."""
        end = segment.base_offset
        with self._lock:
            remembered = self._remembered.get(segment.directory)
        if remembered is not None and remembered.end_offset == end:
            return remembered
        if end == 0:
            return KnownProducers(0)
        try:
            return KnownProducers(end, read_producer_snapshot(producer_snapshot_path(segment.directory, end)))
        except (FileNotFoundError, CorruptIndexError):
            return self.by_the_log(segment)

    def by_the_log(self, segment: LogSegment) -> KnownProducers:
        """Return the state at the base offset of `segment`, ignoring the snapshot there.

        The segments before it are read, checksums included, from the nearest sound snapshot on.
        """
        end = segment.base_offset
        earlier = [known for known in list_segments(segment.directory) if known.base_offset < end]
        start = self._nearest(segment.directory, earlier[0].base_offset if earlier else end, end)
        found = _read_on(start, earlier, end)
        self.remember(segment.directory, found)
        return found

    def _nearest(self, partition_directory: Path, start: int, end: int) -> KnownProducers:
        """Return the state at the highest offset from `start` up to `end` that is known without reading batches.

        Only snapshots below `end` count.
        """
        with self._lock:
            found = self._remembered.get(partition_directory)
        if found is not None and start <= found.end_offset <= end:
            start = found.end_offset + 1
        else:
            found = KnownProducers(start, (), start or None)
        snapshot = latest_snapshot(partition_directory, start, end - 1)
        return found if snapshot is None else KnownProducers(*snapshot)


def follow(state: ProducerState, path: Path | str, window: memoryview, batches: BatchTable) -> list[AbortedTxn]:
    """Let `state` take the next batches of the log `path`, whose bytes are `window` and are not going to be cut off.

    Returns the transactions that they abort. Keeps only as much of the producers as the module docstring promises.
    Raises CorruptRecordError if an end marker cannot be read.
    """
    aborted = state.feed(path, window, batches)
    state.on_high_watermark(state.end_offset)
    state.forget_silent(PRODUCERS_KEPT)
    return aborted


def _read_on(known: KnownProducers, segments: Sequence[LogSegment], end_offset: int) -> KnownProducers:
    """Advance `known` through `segments`, which follow one another, up to `end_offset`."""
    state, seen_from = known.state(), known.seen_from
    offsets = [*(segment.base_offset for segment in segments), end_offset]
    for segment, (_, end) in zip(segments, pairwise(offsets), strict=True):
        if end > state.end_offset and not _read_segment(state, segment, end):
            state, seen_from = KnownProducers(end).state(), end
    return KnownProducers(end_offset, state.snapshot(), seen_from)


def _read_segment(state: ProducerState, segment: LogSegment, end: int) -> bool:
    """Advance `state` over `segment`; return whether its batches are sound and reach offset `end`."""
    try:
        for window, batches in iterate_segment(segment.log_path, segment.base_offset):
            follow(state, segment.log_path, window, batches)
    except CorruptRecordError:
        return False
    return state.end_offset == end
