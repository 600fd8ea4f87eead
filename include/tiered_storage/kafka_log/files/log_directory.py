"""A broker's log directory: its partitions and its checkpoints.

    meta.properties                      cluster and node, see meta_properties.py
    replication-offset-checkpoint        high watermarks, see offset_checkpoint.py
    log-start-offset-checkpoint          log starts
    recovery-point-offset-checkpoint     not needed here
    .lock                                see directory_lock.py
    {topic}-{partition}/                 see topic_partition.py, log_segment.py
        partition.metadata, leader-epoch-checkpoint

Source: released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tiered_storage.errors import CorruptIndexError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.log_segment import awaits_swap, has_segment
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.topic_partition import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    REMOTE_LOG_METADATA_TOPIC,
    parse_partition_directory,
    partition_directory_name,
)

_SUFFIX_REASONS = {
    "-delete": "the partition is being deleted",
    "-stray": "the partition is of a topic that its cluster does not know",
    "-future": "the partition is being moved here from another log directory",
}
_NO_SEGMENT = {
    False: "it has no .log file",
    True: "its segments were being swapped when its broker crashed: start it, or open it with LogDirectoryWriter",
}
_INDEX_CACHE = "remote-log-index-cache"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition in a log directory; `topic_id` is in Kafka's text form, None if the broker kept none."""

    topic: str
    partition: int
    path: Path
    topic_id: str | None

    @property
    def is_internal(self) -> bool:
        """Whether the topic is one of Kafka's own, such as `__consumer_offsets`."""
        return self.topic in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """The content of a log directory.

    `partitions` are in order of topic and partition. `skipped` has the reason for each directory that is left out on
    purpose, `damaged` the error for each partition with unreadable files. `high_watermarks` and `log_start_offsets` are
    by (topic, partition), None if there is no such file. `warnings` lists missing files of the directory, and what
    follows from that.
    """

    root: Path
    cluster_id: str | None
    node_id: int | None
    partitions: tuple[PartitionDirectory, ...]
    skipped: Mapping[str, str]
    damaged: Mapping[str, CorruptIndexError | InvalidLogDirectoryError]
    high_watermarks: Mapping[tuple[str, int], int] | None
    log_start_offsets: Mapping[tuple[str, int], int] | None
    warnings: tuple[str, ...]


def read_log_directory(root: Path) -> LogDirectory:
    """Read the log directory `root` without changing it.

    Raises InvalidLogDirectoryError if `root` is not a Kafka log directory, CorruptIndexError if meta.properties or a
    checkpoint is corrupt. A corrupt file of one partition affects only that partition: see `LogDirectory.damaged`.
    """
    return _read(root, sorted(entry for entry in _entries(root) if entry.is_dir()))


def read_partition_directory(root: Path, topic: str, partition: int) -> LogDirectory:
    """Read only one partition and the checkpoints of the log directory `root`.

    Raises as `read_log_directory`.
    """
    directory = root / partition_directory_name(topic, partition)
    if not directory.is_dir():
        if (meta := _meta(root)) is not None and meta.names_owner:
            return _read(root, ())
        # The other directories decide whether `root` is a log directory at all.
        return replace(read_log_directory(root), partitions=(), skipped={}, damaged={})
    return _read(root, [directory])


def sign_of_tiering(root: Path) -> Path | None:
    """Return a file in `root` that only a broker with its own remote tier leaves; None if there is none."""
    cache = root / _INDEX_CACHE
    return cache if cache.exists() else next(root.glob(f"{REMOTE_LOG_METADATA_TOPIC}-*"), None)


def _entries(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise InvalidLogDirectoryError(f"{root} is not a directory; name one of a broker's log.dirs")
    return root.iterdir()


def _read(root: Path, directories: Iterable[Path]) -> LogDirectory:
    partitions: list[PartitionDirectory] = []
    skipped: dict[str, str] = {}
    damaged: dict[str, CorruptIndexError | InvalidLogDirectoryError] = {}
    for directory in directories:
        name = parse_partition_directory(directory.name)
        if name is None:
            skipped[directory.name] = _no_partition(directory.name)
        elif name[0] == CLUSTER_METADATA_TOPIC:
            skipped[directory.name] = "it is the log of the KRaft controllers"
        else:
            try:
                if has_segment(directory):
                    topic_id = read_topic_id(directory / PARTITION_METADATA)
                    partitions.append(PartitionDirectory(*name, directory, topic_id))
                else:
                    skipped[directory.name] = _NO_SEGMENT[awaits_swap(directory)]
            except CorruptIndexError as error:
                damaged[directory.name] = error
            except OSError as error:
                damaged[directory.name] = InvalidLogDirectoryError(
                    f"{directory} cannot be read: {error}: give this user the right to, or look at the disk"
                )

    meta = _meta(root)
    if not (partitions or damaged or (meta is not None and meta.names_owner)):
        raise InvalidLogDirectoryError(
            f"{root} is not a Kafka log directory: it has neither {META_PROPERTIES} with the id of a cluster or a "
            "broker nor a directory topic-partition with .log files in it; name one of a broker's log.dirs"
        )
    return LogDirectory(
        root=root,
        cluster_id=meta.cluster_id if meta else None,
        node_id=meta.node_id if meta else None,
        partitions=tuple(sorted(partitions, key=lambda partition: (partition.topic, partition.partition))),
        skipped=skipped,
        damaged=damaged,
        high_watermarks=_offsets(root / HIGH_WATERMARK_CHECKPOINT),
        log_start_offsets=_offsets(root / LOG_START_OFFSET_CHECKPOINT),
        warnings=_warnings(root),
    )


def _meta(root: Path) -> MetaProperties | None:
    path = root / META_PROPERTIES
    return MetaProperties.read(path) if path.is_file() else None


def _no_partition(name: str) -> str:
    """Return why a directory whose name is not `topic-partition` is left out."""
    for suffix, reason in _SUFFIX_REASONS.items():
        if name.endswith(suffix):
            return reason
    if name == _INDEX_CACHE:
        return "it is the broker's cache of remote indexes"
    return "its name is not of the form topic-partition"


def _offsets(path: Path) -> Mapping[tuple[str, int], int] | None:
    return read_offset_checkpoint(path) if path.is_file() else None


def _warnings(root: Path) -> tuple[str, ...]:
    consequences = {
        META_PROPERTIES: "the cluster's id is unknown",
        HIGH_WATERMARK_CHECKPOINT: "high watermarks are unknown",
        LOG_START_OFFSET_CHECKPOINT: "each log starts with its first segment; one above offset 0 is not copied",
    }
    return tuple(
        f"{root / name} is missing: {what}" for name, what in consequences.items() if not (root / name).is_file()
    )
