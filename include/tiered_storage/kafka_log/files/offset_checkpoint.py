"""The three checkpoints of a log directory: one offset per partition.

    0             version
    2             count of the entries
    orders 0 17   topic, partition, offset
    orders 1 4

`replication-offset-checkpoint` holds high watermarks, `recovery-point-offset-checkpoint` the offsets up to which the
log is flushed to disk, `log-start-offset-checkpoint` log starts. A running broker writes the first every five seconds,
the others every minute: they are stale by up to that.

Source: KIP-107 for log starts; released Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.checkpoint_file import MAX_CHECKPOINT_BYTES, parse_checkpoint, write_checkpoint
from tiered_storage.kafka_log.files.small_files import read_small_file

HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"

_KEPT = 8
"""How many files to cache: a pass over thousands of partitions reads the same few checkpoints each time."""
_MOST_KEPT_BYTES = 4 << 20
"""A file larger than any broker's is parsed each time, not cached."""


def read_offset_checkpoint(path: Path) -> Mapping[tuple[str, int], int]:
    """Read offsets by (topic, partition).

    Raises CorruptIndexError if the file is corrupt or has a partition twice.
    """
    content = read_small_file(path, MAX_CHECKPOINT_BYTES)
    return _kept(path, content) if len(content) <= _MOST_KEPT_BYTES else _parsed(path, content)


@lru_cache(_KEPT)
def _kept(path: Path, content: bytes) -> Mapping[tuple[str, int], int]:
    return _parsed(path, content)


def _parsed(path: Path, content: bytes) -> Mapping[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    for line in parse_checkpoint(content, path, fields=3):
        partition = (line.fields[0], line.integer(1, bits=32))
        if partition in offsets:
            raise CorruptIndexError(path, line.position, f"{partition[0]}-{partition[1]} is listed twice")
        offsets[partition] = line.integer(2, bits=64)
    return MappingProxyType(offsets)


def write_offset_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the offsets by (topic, partition), durably and atomically."""
    write_checkpoint(path, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))
