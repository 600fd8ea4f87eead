"""Local logs from log directories that stand alone: a stopped broker's, a copy of one, or one that LocalLog wrote.

Only the log's own files show how far it is stable. The high watermark comes from replication-offset-checkpoint, the
open transactions from the producer snapshot and the active segment. Without the checkpoint a person must declare the
log's end stable (log.end.is.stable).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError, TieredStorageError
from tiered_storage.kafka_log.files.directory_lock import ensure_unlocked
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_directory import (
    LogDirectory,
    PartitionDirectory,
    read_log_directory,
    read_partition_directory,
    sign_of_tiering,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment, segment_sizes
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    SegmentLocation,
    UnreadablePartition,
    name_of,
)

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"


@dataclass(frozen=True, slots=True)
class LogDirectorySource:
    """A SegmentSource over `directories`.

    `cluster_id` is the id of a directory without meta.properties, and must equal the id of a directory with one.
    Without either, the id is derived from the directory's path. `end_is_stable`: a person declares that nothing in
    these logs will be truncated. `held` is a directory whose `.lock` the caller holds itself. `metadata_topic` is the
    name of Remote Log's own topic, besides the default one: it is internal.
    """

    directories: tuple[Path, ...]
    cluster_id: str | None = None
    end_is_stable: bool = False
    held: Path | None = None
    metadata_topic: str | None = None

    @property
    def is_configured(self) -> bool:
        """Whether log.dirs names a directory."""
        return bool(self.directories)

    @property
    def shows_segments(self) -> bool:
        """As SegmentSource."""
        return True

    @property
    def access(self) -> Mapping[str, str]:
        """As SegmentSource."""
        return {}

    @property
    def notices(self) -> Sequence[str]:
        """Notices of missing files and left-out partitions, of each directory."""
        return [
            notice
            for directory, _ in map(self._read, self.directories)
            for notice in (
                *directory.warnings,
                *(f"{directory.root / name} is left out: {reason}" for name, reason in directory.skipped.items()),
            )
        ]

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Look at every partition of every directory."""
        if not self.is_configured:
            raise ConfigurationError("log.dirs names no directory: set it to the broker's log.dirs")
        read = [self._read(root) for root in self.directories]
        repeated = repeated_partitions((directory for directory, _ in read), self.cluster_id)
        for directory, compacted in read:
            for name, error in directory.damaged.items():
                yield UnreadablePartition(name, str(error))
            for found in directory.partitions:
                if (same := repeated.get(found.path)) is not None:
                    yield UnreadablePartition(found.path.name, several(same))
                    continue
                try:
                    yield self._look(directory, found, compacted)
                except (TieredStorageError, OSError) as error:
                    yield UnreadablePartition(found.path.name, str(error))

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        """Name every partition without reading a log: only one with a broken file beside its log is unreadable."""
        yield from self._named([self._read(root) for root in self.directories])

    def named(self, topic: str, number: int) -> Sequence[NamedPartition | UnreadablePartition]:
        """Return the partitions of that name in all directories, even if a broker holds them."""
        read, found = [], list[NamedPartition | UnreadablePartition]()
        for root in self.directories:
            try:
                read.append(replace(self, held=root)._read(root, (topic, number)))
            except (TieredStorageError, OSError) as error:
                found.append(UnreadablePartition(f"{topic}-{number}", str(error)))
        found += self._named(read)
        return [one for one in found if name_of(one) == (topic, number)]

    def _named(
        self, read: Sequence[tuple[LogDirectory, frozenset[str]]]
    ) -> Iterator[NamedPartition | UnreadablePartition]:
        repeated = repeated_partitions((directory for directory, _ in read), self.cluster_id)
        for directory, compacted in read:
            for name, error in directory.damaged.items():
                yield UnreadablePartition(name, str(error))
            for found in directory.partitions:
                partition = self._identify(directory, found)
                same = repeated.get(found.path)
                problem = self._why_end_unknown(directory, found) if same is None else several(same)
                yield NamedPartition(
                    topic_id_partition=partition,
                    place=str(found.path),
                    is_internal=self._is_internal(found),
                    is_compacted=found.topic in compacted,
                    topic_id_is_derived=found.topic_id is None,
                    cluster_id_is_derived=self._known_cluster_id(directory) is None,
                    problem=problem,
                )

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Look at one partition, in whichever directory it is, and at no other."""
        looks: list[tuple[LogDirectory, PartitionDirectory, frozenset[str]]] = []
        read = [self._read(root, (partition.topic, partition.partition)) for root in self.directories]
        for directory, compacted in read:
            for error in directory.damaged.values():
                raise error
            looks += [
                (directory, found, compacted)
                for found in directory.partitions
                if self._identify(directory, found) == partition
            ]
        repeated = repeated_partitions((directory for directory, _ in read), self.cluster_id)
        for _, found, _ in looks:
            if (same := repeated.get(found.path)) is not None:
                raise InvalidLogDirectoryError(several(same))
        return self._look(*looks[0]) if looks else None

    @property
    def local_trim(self) -> LogDirectoryTrim:
        """Removes segments under the directory's lock."""
        return LogDirectoryTrim()

    def while_trimming(self, segment: LocalSegment) -> LogDirectorySource:
        """Take the lock on the log directory of `segment` for our own."""
        return replace(self, held=Path(segment.location).parents[1])

    def close(self) -> None:
        """Do nothing: between two calls nothing is open."""

    def _read(self, root: Path, only: tuple[str, int] | None = None) -> tuple[LogDirectory, frozenset[str]]:
        directory, compacted = _read_unlocked(root, self.held, only)
        if self.cluster_id is not None and directory.cluster_id not in {None, self.cluster_id}:
            raise ConfigurationError(
                f"{root} is of the cluster {directory.cluster_id} by its meta.properties, and cluster.id is "
                f"{self.cluster_id}: leave cluster.id out, or name another directory in log.dirs"
            )
        return directory, compacted

    def _is_internal(self, found: PartitionDirectory) -> bool:
        return found.is_internal or found.topic in {OUR_METADATA_TOPIC, self.metadata_topic}

    def _identify(self, directory: LogDirectory, found: PartitionDirectory) -> TopicIdPartition:
        cluster_id = self._known_cluster_id(directory) or _derived_id(str(directory.root.resolve()))
        topic_id = found.topic_id or derived_topic_id(cluster_id, found.topic)
        return TopicIdPartition(cluster_id, topic_id, found.partition, found.topic)

    def _known_cluster_id(self, directory: LogDirectory) -> str | None:
        return directory.cluster_id or self.cluster_id

    def _look(self, directory: LogDirectory, found: PartitionDirectory, compacted: frozenset[str]) -> PartitionLog:
        if found.path.is_symlink():
            # A broker may hold the directory of the files, even if the link's own directory is not held.
            ensure_unlocked(found.path.resolve().parent)
        from tiered_storage.kafka_log.producers.transaction_state import read_last_stable_offset

        sizes = segment_sizes(found.path)
        files = [file for file, _ in sizes]
        high_watermark = self._high_watermark(directory, found, files)
        over_tiers = (directory.log_start_offsets or {}).get((found.topic, found.partition))
        log_start = max(files[0].base_offset, over_tiers or 0)
        return PartitionLog(
            topic_id_partition=self._identify(directory, found),
            place=str(found.path),
            segments=local_segments(sizes),
            log_start_offset=log_start,
            last_stable_offset=read_last_stable_offset(found.path, high_watermark, files, log_start),
            leader_epochs=_lineage(found.path, files),
            is_internal=self._is_internal(found),
            topic_id_is_derived=found.topic_id is None,
            cluster_id_is_derived=self._known_cluster_id(directory) is None,
            is_compacted=found.topic in compacted,
            high_watermark=high_watermark,
            tiered_by_kafka=_why_tiered_by_kafka(directory, found, files[0].base_offset),
            log_start_over_tiers=over_tiers,
        )

    def _high_watermark(self, directory: LogDirectory, found: PartitionDirectory, files: Sequence[LogSegment]) -> int:
        if unknown := self._why_end_unknown(directory, found):
            raise InvalidLogDirectoryError(unknown)
        high_watermark = (directory.high_watermarks or {}).get((found.topic, found.partition))
        return _log_end(files[-1]) if high_watermark is None else high_watermark

    def _why_end_unknown(self, directory: LogDirectory, found: PartitionDirectory) -> str | None:
        if self.end_is_stable or (found.topic, found.partition) in (directory.high_watermarks or {}):
            return None
        return (
            f"{found.path}: its high watermark is unknown (replication-offset-checkpoint does not name it): copy that "
            "file into the log directory as well; or, if the broker was stopped cleanly, set log.end.is.stable: true"
        )


def local_segments(sizes: Sequence[tuple[LogSegment, int]]) -> tuple[LocalSegment, ...]:
    """Return all segments of a log, of which `sizes` has the files and their bytes, in order."""
    ends = [successor.base_offset - 1 for successor, _ in sizes[1:]]
    return tuple(
        LocalSegment(file.base_offset, end, size, SegmentLocation(file.log_location))
        for (file, size), end in zip(sizes, [*ends, None], strict=True)
    )


def _why_tiered_by_kafka(directory: LogDirectory, found: PartitionDirectory, first: int) -> str | None:
    """Return what shows that offsets below `first`, the local log's first one, may lie in Kafka's own remote tier.

    For a topic that it tiers, a broker's checkpoint always has the log start over both tiers; for any other topic only
    an offset within the local log. Our own trimming moves it to the first segment that stays. A broker killed early has
    not written the entry yet. Then the leader epochs decide, which begin with the log in both tiers; without any, the
    other files that tiering leaves in the directory.
    """
    name, checkpoint = f"{found.topic}-{found.partition}", directory.root / LOG_START_OFFSET_CHECKPOINT
    if first == 0:
        return None
    may_tier = f"Kafka itself may tier {name}: its first local offset is {first}, and"
    if directory.log_start_offsets is None:
        return f"{may_tier} {checkpoint} is missing"
    start = directory.log_start_offsets.get((found.topic, found.partition))
    if start is None:
        sign = _sign_of_tiering(directory, found.path, first)
        return None if sign is None else f"{may_tier} {checkpoint} does not name it, but {sign}"
    if start >= first:
        return None
    return (
        f"Kafka itself tiers {name}: its first local offset is {first}, and {checkpoint} has offset {start} as its log "
        "start"
    )


def _sign_of_tiering(directory: LogDirectory, partition_directory: Path, first: int) -> str | None:
    """Return what shows, besides the checkpoint of log starts, that a log begins below its first local offset."""
    path = partition_directory / LEADER_EPOCH_CHECKPOINT
    epochs = read_leader_epochs(path) if path.is_file() else ()
    if not epochs:
        sign = sign_of_tiering(directory.root)
        return None if sign is None else f"{sign} is there"
    began = epochs[0].start_offset
    return f"{path} begins at offset {began}" if began < first else None


def repeated_partitions(directories: Iterable[LogDirectory], cluster_id: str | None) -> dict[Path, list[Path]]:
    """Return, for each partition that `directories` have more than once, by each of its paths, all of them.

    Two of one name are the same partition unless the ids of their clusters or of their topics differ. An unknown id
    does not count as different. `cluster_id` is that of directories without meta.properties.
    """
    named: dict[tuple[str, int], list[tuple[str | None, str | None, Path]]] = {}
    for directory in directories:
        for found in directory.partitions:
            place = directory.cluster_id or cluster_id, found.topic_id, found.path
            named.setdefault((found.topic, found.partition), []).append(place)
    repeated: dict[Path, list[Path]] = {}
    for places in named.values():
        for cluster, topic, path in places if len(places) > 1 else ():
            same = [other for known, its_id, other in places if _may_be(known, cluster) and _may_be(its_id, topic)]
            if len(same) > 1:
                repeated[path] = same
    return repeated


def _may_be(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def several(places: Sequence[Path]) -> str:
    """Say that `places` are one partition."""
    return (
        f"{' and '.join(map(str, places))} are the same partition: name only one of them in log.dirs (of two clusters "
        "each directory needs its meta.properties)"
    )


def _read_unlocked(
    root: Path, held: Path | None, only: tuple[str, int] | None = None
) -> tuple[LogDirectory, frozenset[str]]:
    """Return what is in `root`, which nobody holds, or it is `held` by ourselves, and its compacted topics.

    If `only` names a partition, it is the only one returned.
    """
    try:
        if root != held:
            ensure_unlocked(root)
        directory = read_log_directory(root) if only is None else read_partition_directory(root, *only)
        return directory, _compacted(root)
    except OSError as error:
        raise InvalidLogDirectoryError(
            f"{root} cannot be read: {error}: give this user the right to, or look at the disk"
        ) from error


def _log_end(active: LogSegment) -> int:
    """Return the offset after the last whole batch of the active segment."""
    from tiered_storage.kafka_log.records.segment_scan import iterate_segment
    from tiered_storage.kafka_log.records.sound_part import recover_valid_length

    valid = recover_valid_length(active.log_path, active.base_offset)
    if not valid:
        return active.base_offset
    end = active.base_offset
    for _, table in iterate_segment(active.log_path, active.base_offset, verify_crc=False):
        sound = table.position < valid
        if sound.any():
            end = int(table.last_offset[sound][-1]) + 1
        if int(table.position[-1] + table.size[-1]) >= valid:
            break
    return end


def _lineage(partition_directory: Path, files: Sequence[LogSegment]) -> tuple[EpochEntry, ...]:
    """Return the leader epochs, from the checkpoint, or if there is none from the batches themselves."""
    path = partition_directory / LEADER_EPOCH_CHECKPOINT
    if path.is_file():
        entries = read_leader_epochs(path)
        if entries:
            return entries
    return tuple(_lineage_of_batches(files))


def _lineage_of_batches(files: Sequence[LogSegment]) -> list[EpochEntry]:
    """Return the epochs of the batches. As in a broker, one without an epoch ends the lineage before it."""
    from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH
    from tiered_storage.kafka_log.records.segment_scan import iterate_segment

    found: list[EpochEntry] = []
    for file in files:
        for _, table in iterate_segment(file.log_path, file.base_offset, verify_crc=False):
            for epoch, offset in zip(table.partition_leader_epoch.tolist(), table.base_offset.tolist(), strict=True):
                if epoch == NO_LEADER_EPOCH:
                    found.clear()
                elif not found or epoch > found[-1].epoch:
                    found.append(EpochEntry(epoch, offset))
    return found


def _compacted(root: Path) -> frozenset[str]:
    """Return the topics of which the log cleaner has compacted a partition here."""
    path = root / CLEANER_CHECKPOINT
    return frozenset(topic for topic, _ in read_offset_checkpoint(path)) if path.is_file() else frozenset()


def derived_topic_id(cluster_id: str, topic: str) -> str:
    """Return the derived id of a topic without partition.metadata."""
    return _derived_id(cluster_id, topic)


def _derived_id(*names: str) -> str:
    """Return an id in Kafka's form that is the same for the same `names` for ever."""
    return encode_uuid(hashlib.sha256("\0".join(names).encode()).digest()[:16])
