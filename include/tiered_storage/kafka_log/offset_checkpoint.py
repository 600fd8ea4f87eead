"""The three checkpoints of a log directory: one offset a partition.

    0             version
    2             count of the entries
    orders 0 17   topic, partition, offset
    orders 1 4

`replication-offset-checkpoint` holds high watermarks, `recovery-point-offset-checkpoint` the offsets up to which the
log is on the disk for sure, `log-start-offset-checkpoint` log starts. A running broker writes each of them every few
seconds: they lag behind.

Source: KIP-107 for log starts; released Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.checkpoint_file import read_checkpoint, write_checkpoint

HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"


def read_offset_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Read offsets by (topic, partition).

    Raises CorruptIndexError where the file is broken or names a partition twice.
    """
    offsets: dict[tuple[str, int], int] = {}
    for line in read_checkpoint(path, fields=3):
        partition = (line.fields[0], line.integer(1, bits=32))
        if partition in offsets:
            raise CorruptIndexError(path, line.position, f"{partition[0]}-{partition[1]} is there twice")
        offsets[partition] = line.integer(2, bits=64)
    return offsets


def write_offset_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the offsets by (topic, partition), durably and all or nothing."""
    write_checkpoint(path, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))
