"""`leader-epoch-checkpoint`: the start offset of each leader epoch of a partition.

    0             version
    2             count of the entries
    0 0           epoch, start offset: the first offset that the leader of that epoch appended
    3 1500        both rise; an epoch lasts until the next entry's start offset

LeaderEpochCache keeps the epochs while a log is written, and writes each change to the file at once. Two logs can
diverge at the end of an epoch: followers ask their leader for it.

Source: KIP-101, KIP-279; released Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Self

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.checkpoint_file import (
    CheckpointEntry,
    encode_checkpoint,
    parse_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """Leader epoch `epoch` began at offset `start_offset` (inclusive)."""

    epoch: int
    start_offset: int


def read_leader_epochs(path: Path) -> tuple[EpochEntry, ...]:
    """Read the epochs of a partition, earliest first.

    Raises CorruptIndexError if the file is broken, an epoch does not rise or a start offset falls.
    """
    return _epochs(path, read_checkpoint(path, fields=2))


def parse_leader_epochs(content: bytes, source: Path | str) -> tuple[EpochEntry, ...]:
    """Return the epochs in the `content` of a checkpoint; raises as `read_leader_epochs`, naming `source`."""
    return _epochs(source, parse_checkpoint(content, source, fields=2))


def write_leader_epochs(path: Path, entries: Sequence[EpochEntry]) -> None:
    """Replace the leader epochs of a partition, durably and all or nothing."""
    write_checkpoint(path, map(_line, entries))


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Return the content of a leader-epoch-checkpoint with `entries`."""
    return encode_checkpoint(map(_line, entries))


def _epochs(source: Path | str, lines: Iterable[CheckpointEntry]) -> tuple[EpochEntry, ...]:
    entries: list[EpochEntry] = []
    for line in lines:
        entry = EpochEntry(line.integer(0, bits=32), line.integer(1, bits=64))
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
            raise CorruptIndexError(source, line.position, f"{entry} cannot follow {entries[-1]}")
        entries.append(entry)
    return tuple(entries)


def _line(entry: EpochEntry) -> str:
    return f"{entry.epoch} {entry.start_offset}"


_EPOCH = attrgetter("epoch")
_START = attrgetter("start_offset")


def end_offset_for(entries: Sequence[EpochEntry], epoch: int, log_end_offset: int) -> tuple[int, int] | None:
    """Return the latest epoch up to `epoch`, and the offset (exclusive) where it ends; None if unknown.

    The latest of `entries` ends with the log. An epoch before all of them ends where the first one begins.
    """
    if entries and epoch == entries[-1].epoch:
        return epoch, log_end_offset
    above = bisect_right(entries, epoch, key=_EPOCH)
    if epoch < 0 or above == len(entries):
        return None
    return (entries[above - 1].epoch if above else epoch), entries[above].start_offset


class LeaderEpochCache:
    """The epochs in the checkpoint `path`, by rising epoch and start offset."""

    def __init__(self, path: Path, entries: Sequence[EpochEntry]) -> None:
        """Use `read`."""
        self.path = path
        self._entries = list(entries)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the checkpoint `path`; a missing one has no entries, and is created.

        Raises CorruptIndexError if it is corrupt.
        """
        if not path.is_file():
            write_leader_epochs(path, [])
        return cls(path, read_leader_epochs(path))

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The leader epochs with their start offsets, earliest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The latest epoch, None if none has begun."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin `epoch` at `start_offset`; do nothing if it is the latest one and began before that.

        This removes contradicted entries: those of the same or a later epoch, and those that do not begin before it.
        """
        if self._entries and epoch == self._entries[-1].epoch and start_offset >= self._entries[-1].start_offset:
            return
        kept = [entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self._replace([*kept, EpochEntry(epoch, start_offset)])

    def add_later(self, entries: Iterable[EpochEntry]) -> None:
        """Add those of `entries`, as found in batches, that are later than the latest epoch."""
        found = list(self._entries)
        for entry in entries:
            if entry.epoch >= 0 and (not found or entry.epoch > found[-1].epoch):
                found.append(entry)
        self._replace(found)

    def epoch_for(self, offset: int) -> int | None:
        """Return the epoch that `offset` belongs to, None if it lies before the first one."""
        i = bisect_right(self._entries, offset, key=_START) - 1
        return self._entries[i].epoch if i >= 0 else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Return what the function `end_offset_for` returns for this log's epochs."""
        return end_offset_for(self._entries, epoch, log_end_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that begin at `end_offset` or later."""
        self._replace([entry for entry in self._entries if entry.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before `start_offset`; the one that contains it now begins there."""
        before = bisect_right(self._entries, start_offset, key=_START)
        if before:
            first = EpochEntry(self._entries[before - 1].epoch, start_offset)
            self._replace([first, *self._entries[before:]])

    def clear(self) -> None:
        """Remove all epochs."""
        self._replace([])

    def _replace(self, entries: list[EpochEntry]) -> None:
        if entries == self._entries:
            return
        write_leader_epochs(self.path, entries)
        self._entries = entries
