"""`leader-epoch-checkpoint`: at which offset each leader epoch of a partition began.

    0             version
    2             count of the entries
    0 0           epoch, start offset: the first offset that the leader of that epoch appended
    3 1500        both rise; an epoch lasts until the next entry's start offset

Source: KIP-101; released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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

    Raises CorruptIndexError where the file is broken, an epoch does not rise or a start offset falls.
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
            raise CorruptIndexError(source, line.position, f"{entry} falls behind {entries[-1]} before it")
        entries.append(entry)
    return tuple(entries)


def _line(entry: EpochEntry) -> str:
    return f"{entry.epoch} {entry.start_offset}"
