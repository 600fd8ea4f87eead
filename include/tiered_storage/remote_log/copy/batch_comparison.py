"""The batches of local and remote segments as columns, to compare two logs batch by batch.

Two batches are the same if their offsets and CRC are. A damaged segment yields all its sound batches, wherever they
lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import (
    CorruptRecordError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CRC_END, LOG_OVERHEAD, MAGIC
from tiered_storage.kafka_log.records.batch_header import (
    LEAST_BATCH_BYTES,
    LEGACY_MAGICS,
    MAGIC_END,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_message import read_true_header
from tiered_storage.kafka_log.records.segment_scan import claimed_checksums
from tiered_storage.remote_log.copy.tasks import PlannedSegment
from tiered_storage.remote_log.lineage import valid_end, whole_lineage
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment
from tiered_storage.remote_log.storage.batch_stream import BatchStream

ReadSegment = Callable[[RemoteLogSegmentMetadata], Iterator[bytes]]
"""Streams all bytes of a remote segment."""
ReadRange = Callable[[int, int], bytes]
"""Takes a position and a length (bytes); returns those bytes of an object."""

_WINDOW_BYTES = 1 << 20
_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches by rising offset: first and last offset (inclusive), and the CRC in the header."""

    base: NDArray[np.int64]
    last: NDArray[np.int64]
    crc: NDArray[np.uint32]

    @classmethod
    def of(cls, window: memoryview, table: BatchTable) -> Self:
        """Return the batches of `table`, whose bytes `window` holds."""
        return cls(table.base_offset, table.last_offset, claimed_checksums(window, table))

    def __len__(self) -> int:
        return self.base.size

    def between(self, start: int, end: int | None = None) -> Self:
        """Return those that begin at or above `start` and end at or below `end`, as copies, to free larger arrays."""
        first = int(np.searchsorted(self.base, start))
        stop = len(self) if end is None else int(np.searchsorted(self.last, end, side="right"))
        return type(self)(self.base[first:stop].copy(), self.last[first:stop].copy(), self.crc[first:stop].copy())

    def touching(self, start: int, end: int | None = None) -> Self:
        """Return those that have an offset from `start` to `end` (inclusive; None: no end)."""
        first = int(np.searchsorted(self.last, start))
        stop = len(self) if end is None else int(np.searchsorted(self.base, end, side="right"))
        return type(self)(self.base[first:stop], self.last[first:stop], self.crc[first:stop])

    def followed_by(self, other: Self) -> Self:
        """Return these, and then those of `other`."""
        return type(self)(
            np.concatenate((self.base, other.base)),
            np.concatenate((self.last, other.last)),
            np.concatenate((self.crc, other.crc)),
        )

    def first_not_in(self, other: Self) -> int | None:
        """Return the row of the first batch that `other` lacks or has differently; None if it has them all."""
        if not len(other):
            return 0 if len(self) else None
        at = np.minimum(np.searchsorted(other.base, self.base), len(other) - 1)
        same = (other.base[at] == self.base) & (other.last[at] == self.last) & (other.crc[at] == self.crc)
        return None if same.all() else int(np.argmin(same))

    def shown(self, row: int) -> str:
        """Describe the batch of a row."""
        return shown_batch(int(self.base[row]), int(self.last[row]), int(self.crc[row]))


def first_difference(windows: Iterable[Batches], remote: Iterator[Batches]) -> tuple[Batches, int, Batches] | None:
    """Return the first batch that `remote` lacks or has differently: its window, its row, and the remote batches there.

    Both by rising offset. Returns None, and reads `remote` to its end, if there is no such batch.
    """
    known = _none()
    for ours in windows:
        if not len(ours):
            continue
        known = known.between(int(ours.base[0]))
        while not len(known) or known.last[-1] < ours.last[-1]:
            more = next(remote, None)
            if more is None:
                break
            known = known.followed_by(more.between(int(ours.base[0])))
        row = ours.first_not_in(known)
        if row is not None:
            return ours, row, known
    for _ in remote:
        pass
    return None


def local_batches(local: Iterable[LocalSegment | PlannedSegment]) -> Iterator[Batches]:
    """Yield the batches of local segments, each checked; skip a segment that is gone.

    Raises CorruptRecordError and UnsupportedMagicError.
    """
    for segment in local:
        try:
            for window, table in open_segment(segment.location).windows():
                yield Batches.of(window, table)
        except FileNotFoundError:
            # Another run removed it meanwhile.
            continue


def remote_batches(
    held_by: Sequence[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry], read: ReadSegment
) -> Iterator[Batches]:
    """Yield the batches that readers get of `held_by`, each offset once; see Coverage. Raises what reading raises."""
    whole = whole_lineage(held_by, lineage)
    reached = 0
    for segment in sorted(held_by, key=lambda each: each.start_offset):
        end = valid_end(segment, whole)
        stream = BatchStream(str(segment.segment_id), segment.start_offset, segment.size)
        for piece in read(segment):
            for window, table in stream.windows(piece):
                yield Batches.of(window, table).between(reached, end)
        stream.finish()
        reached = max(reached, end + 1)


def _none() -> Batches:
    return Batches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


def overlapping(known: Batches, ours: Batches, row: int) -> str:
    """Show the first batch of `known` that shares an offset with row `row` of `ours`."""
    at = int(np.searchsorted(known.last, ours.base[row]))
    shared = at < len(known) and known.base[at] <= ours.last[row]
    return known.shown(at) if shared else "no batch"


def is_same_batch(ours: BatchHeader, theirs: BatchHeader) -> bool:
    """Return whether two headers are of the same batch: offsets and checksum, which covers everything but the epoch."""
    return (ours.base_offset, ours.last_offset, ours.crc) == (theirs.base_offset, theirs.last_offset, theirs.crc)


def shown_batch(base: int, last: int, crc: int) -> str:
    """Describe a batch: offsets (inclusive) and CRC."""
    return f"a batch of offsets {base} to {last} with CRC {crc:08x}"


def sound_batches(segment: RemoteLogSegmentMetadata, size: int, read: ReadRange) -> Iterator[Batches]:
    """Yield the batches of a damaged `segment` whose CRC is right, of the first `size` bytes of its `.log`.

    Skips broken bytes one by one up to the next sound batch. `read` need not check anything; its error for lost bytes
    ends the batches. Raises any other error of `read`.
    """
    window = _Window(size, read)
    position, next_offset = 0, segment.start_offset
    found: list[BatchHeader] = []
    try:
        while position + LEAST_BATCH_BYTES <= size:
            header = window.sound_batch(position, next_offset, segment.end_offset)
            if header is None:
                position = window.next_candidate(position + 1, next_offset, segment.end_offset)
                continue
            found.append(header)
            position, next_offset = position + header.size, header.next_offset
            if len(found) == _ROWS:
                yield _rows(found)
                found = []
    except (RemoteObjectNotFoundError, RemoteObjectCorruptError):
        # The readable bytes end here.
        pass
    yield _rows(found)


def _rows(headers: Sequence[BatchHeader]) -> Batches:
    return Batches(
        np.array([header.base_offset for header in headers], np.int64),
        np.array([header.last_offset for header in headers], np.int64),
        np.array([header.crc for header in headers], np.uint32),
    )


@dataclass(slots=True)
class _Window:
    """The bytes held of an object of `size` bytes during the search for its sound batches."""

    size: int
    read: ReadRange
    start: int = 0
    content: bytes = b""

    def sound_batch(self, position: int, next_offset: int, last_offset: int) -> BatchHeader | None:
        """Return the header of the batch at `position`; None unless it is sound and its offsets are in that range."""
        self._hold(position, min(BATCH_OVERHEAD, self.size - position))
        try:
            header = read_batch_header(self.content, position - self.start)
            if position + header.size > self.size:
                return None
            if header.magic in LEGACY_MAGICS:
                message = self.read(position, header.size)
                check_crc(message)
                header = read_true_header(message)
        except CorruptRecordError:
            return None
        if not (next_offset <= header.base_offset and header.last_offset <= last_offset):
            return None
        if header.magic in LEGACY_MAGICS:
            return header
        return header if self._checksum(position + CRC_END, position + header.size) == header.crc else None

    def next_candidate(self, position: int, next_offset: int, last_offset: int) -> int:
        """Return the first position from `position` on where a batch may begin; else the end of the bytes held.

        A batch begins with an offset from `next_offset` to `last_offset`.
        """
        if position + LEAST_BATCH_BYTES > self.size:
            return self.size
        self._hold(position, min(BATCH_OVERHEAD, self.size - position))
        data = np.frombuffer(self.content, np.uint8)[position - self.start :]
        heads = np.lib.stride_tricks.sliding_window_view(data, MAGIC_END)
        magic = np.flatnonzero(heads[:, MAGIC_END - 1] <= MAGIC)
        offsets = heads[magic, :8].copy().view(">i8")[:, 0]
        magic = magic[(next_offset <= offsets) & (offsets <= last_offset)]
        lengths = heads[magic, 8:LOG_OVERHEAD].copy().view(">i4")[:, 0].astype(np.int64)
        fits = (lengths >= LEAST_BATCH_BYTES - LOG_OVERHEAD) & (position + magic + LOG_OVERHEAD + lengths <= self.size)
        candidates = magic[fits]
        return position + int(candidates[0]) if candidates.size else position + len(heads)

    def _hold(self, position: int, count: int) -> None:
        if not self.start <= position <= position + count <= self.start + len(self.content):
            self.start = position
            self.content = self.read(position, min(_WINDOW_BYTES, self.size - position))

    def _checksum(self, position: int, end: int) -> int:
        checksum = 0
        while position < end:
            if not self.start <= position < self.start + len(self.content):
                self._hold(position, 1)
            piece = memoryview(self.content)[position - self.start : end - self.start]
            checksum = crc32c(piece, checksum)
            position += len(piece)
        return checksum
