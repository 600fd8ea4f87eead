"""The kind of a Kafka file, by its name.

    {base offset}.log, .index, .timeindex, .txnindex    see log_segment.py; {offset}.snapshot likewise
    {…}.deleted, .cleaned, .swap                        such a file on its way out or in, see log_leftovers.py
    {end offset}-{epoch}.checkpoint                     a snapshot of the cluster's metadata: batches, as in a `.log`
    bootstrap.checkpoint                                the first one of these
    leader-epoch-checkpoint, *-offset-checkpoint, partition.metadata, meta.properties, .kafka_cleanshutdown

Source: released Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN

_NUMBERED = re.compile(
    r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)(?P<leaving>\.deleted|\.cleaned|\.swap)?"
)
_METADATA_SNAPSHOT = re.compile(r"bootstrap\.checkpoint|[0-9]{20}-[0-9]{10}\.checkpoint(?:\.deleted)?")
_CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
_MAX_OFFSET = (1 << 63) - 1


class FileKind(Enum):
    """The kinds of Kafka's files, with their description."""

    LOG = "log"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    LEADER_EPOCHS = "leader epochs"
    OFFSET_CHECKPOINT = "offset checkpoint"
    PARTITION_METADATA = "partition metadata"
    META_PROPERTIES = "meta properties"
    CLEAN_SHUTDOWN = "clean shutdown"


_SUFFIXES = {
    "log": FileKind.LOG,
    "index": FileKind.OFFSET_INDEX,
    "timeindex": FileKind.TIME_INDEX,
    "txnindex": FileKind.TRANSACTION_INDEX,
    "snapshot": FileKind.PRODUCER_SNAPSHOT,
}
_NAMES = {
    LEADER_EPOCH_CHECKPOINT: FileKind.LEADER_EPOCHS,
    HIGH_WATERMARK_CHECKPOINT: FileKind.OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT: FileKind.OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT: FileKind.OFFSET_CHECKPOINT,
    _CLEANER_CHECKPOINT: FileKind.OFFSET_CHECKPOINT,
    PARTITION_METADATA: FileKind.PARTITION_METADATA,
    META_PROPERTIES: FileKind.META_PROPERTIES,
    CLEAN_SHUTDOWN: FileKind.CLEAN_SHUTDOWN,
}


@dataclass(frozen=True, slots=True)
class KafkaFile:
    """A file: its `kind`, and the offset in its name, or 0.

    `log_path` is where the log of an index must be.
    """

    path: Path
    kind: FileKind
    offset: int = 0
    leaving: str = ""

    @property
    def log_path(self) -> Path:
        return self.path.with_name(f"{self.offset:020d}.log{self.leaving}")


def recognize(path: Path) -> KafkaFile | None:
    """Return the kind of `path` by its name alone; None if Kafka has no file of that name."""
    if (kind := _NAMES.get(path.name)) is not None:
        return KafkaFile(path, kind)
    if _METADATA_SNAPSHOT.fullmatch(path.name):
        return KafkaFile(path, FileKind.LOG)
    name = _NUMBERED.fullmatch(path.name)
    if name is None or int(name["offset"]) > _MAX_OFFSET:
        return None
    return KafkaFile(path, _SUFFIXES[name["kind"]], int(name["offset"]), name["leaving"] or "")
