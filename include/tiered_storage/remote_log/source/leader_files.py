"""The files of a partition's leader while that broker runs: read only, without its lock.

A broker writes only to a log's active segment. It may also roll, delete, truncate, move or rename what is there at any
moment, so what is found may change: a reader of a segment checks its batches, and the commit of a copy asks the
brokers again for leader and offsets.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import CorruptIndexError, InvalidLogDirectoryError, SourceClusterError
from tiered_storage.kafka_log.files.log_segment import segment_sizes
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import local_segments
from tiered_storage.remote_log.source.partition_log import Elsewhere, LeaderFiles, LocalSegment, LogDirLocation

SETTING = "broker.log.dirs"

_LISTINGS = 10
"""How often a directory is listed until two listings agree; a broker deletes a few segments in milliseconds."""


@dataclass(frozen=True, slots=True)
class BrokerDirectories:
    """The log directories of brokers, by the brokers' ids, as the setting broker.log.dirs names them."""

    by_broker: Mapping[int, tuple[Path, ...]]

    def files_of(self, broker: int) -> LeaderFiles:
        """Return where the files of `broker` are; nowhere if the setting does not name it."""
        return LeaderFiles(broker, tuple(LogDirLocation(str(each)) for each in self.by_broker.get(broker, ())))

    def elsewhere(self, brokers: Sequence[int], cluster_id: str) -> dict[int, Elsewhere]:
        """Return those of `brokers` whose files this host cannot read, and why not."""
        seen = {broker for broker in self.by_broker if why_unseen(self.files_of(broker), cluster_id) is None}
        return {
            broker: Elsewhere(reason, is_left=bool(seen) and broker in self.by_broker)
            for broker in brokers
            if (reason := why_unseen(self.files_of(broker), cluster_id)) is not None
        }


def why_unseen(files: LeaderFiles, cluster_id: str) -> str | None:
    """Return why this host sees none of the directories; None if it sees one. Reads their meta.properties only."""
    broker = files.broker
    if not files.directories:
        return (
            f"broker {broker} leads, and {SETTING} names no directory of it: add {broker}=FOLDER, or take {SETTING} "
            "out to copy by Fetch"
        )
    reasons = [why_not_of(Path(each), broker, cluster_id) for each in files.directories]
    if None in reasons:
        return None
    return (
        f"broker {broker} leads, and the host {socket.gethostname()} sees none of the directories that {SETTING} names "
        f"for it ({'; '.join(filter(None, reasons))}): run the copy on a host that sees them, such as the broker's "
        f"own, or correct {SETTING}, or take it out to copy by Fetch"
    )


def why_not_of(directory: Path, broker: int, cluster_id: str) -> str | None:
    """Return why `directory` is not a log directory of this broker that can be read here; None if it is one."""
    try:
        meta = MetaProperties.read(directory / META_PROPERTIES)
    except FileNotFoundError:
        return f"{directory} has no {META_PROPERTIES}" if directory.is_dir() else f"{directory} is not there"
    except (CorruptIndexError, OSError) as error:
        return f"{directory} cannot be read: {error}"
    if meta.node_id != broker:
        return f"{directory} is of broker {meta.node_id} by its {META_PROPERTIES}"
    if meta.cluster_id not in {None, cluster_id}:
        return f"{directory} is of the cluster {meta.cluster_id} by its {META_PROPERTIES}, not of {cluster_id}"
    return None


def find_directory(files: LeaderFiles, partition: TopicIdPartition, *, has_topic_id: bool = True) -> Path:
    """Return the partition's directory among its leader's.

    Raises InvalidLogDirectoryError if this host sees none of the broker's directories. Raises SourceClusterError if
    the partition is in none of them, or in two, which a broker may leave for a moment, or if its files are those of
    another incarnation of the topic.
    """
    if reason := why_unseen(files, partition.cluster_id):
        raise InvalidLogDirectoryError(f"{partition}: {reason}")
    name = partition_directory_name(partition.topic, partition.partition)
    directories = [Path(each) for each in files.directories]
    found = [each / name for each in directories if (each / name).is_dir()]
    shown = " and ".join(files.directories)
    if not found:
        unseen = filter(None, (why_not_of(each, files.broker, partition.cluster_id) for each in directories))
        but = "".join(f"; {each}" for each in unseen)
        raise SourceClusterError(
            f"{partition}: broker {files.broker} leads it, and {shown} ({SETTING}) has no {name}{but}. If the broker "
            f"keeps it elsewhere, name that directory in {SETTING}; if it is being moved or deleted, the next run "
            "looks again"
        )
    if len(found) > 1:
        raise SourceClusterError(
            f"{partition}: {' and '.join(map(str, found))} are the same partition: broker {files.broker} moves it "
            "from one to the other; the next run looks again"
        )
    if has_topic_id:
        _ensure_incarnation(found[0], partition)
    return found[0]


def _ensure_incarnation(directory: Path, partition: TopicIdPartition) -> None:
    try:
        topic_id = read_topic_id(directory / PARTITION_METADATA)
    except (CorruptIndexError, OSError) as error:
        raise SourceClusterError(f"{directory / PARTITION_METADATA} cannot be read now: {error}") from error
    if topic_id not in {None, partition.topic_id}:
        raise SourceClusterError(
            f"{partition}: {directory} is of the topic id {topic_id}, not {partition.topic_id}: the topic was created "
            "again; the next run looks again"
        )


def list_leader_segments(directory: Path) -> tuple[LocalSegment, ...]:
    """Return the segments in a partition's directory; the last one is the active one.

    Two listings must agree: the broker deletes segments meanwhile, the oldest first, and one listing could miss a
    segment between two that it shows. Raises SourceClusterError if they never do, or if the directory is gone.
    """
    before: list[int] | None = None
    for _ in range(_LISTINGS):
        try:
            sizes = segment_sizes(directory)
        except FileNotFoundError:
            before = None
            continue
        except OSError as error:
            raise InvalidLogDirectoryError(
                f"{directory} cannot be read: {error}: give this user the right to, or look at the disk"
            ) from error
        offsets = [segment.base_offset for segment, _ in sizes]
        if offsets and offsets == before:
            return local_segments(sizes)
        before = offsets
    raise SourceClusterError(
        f"{directory} is gone, or its broker deletes or moves what is in it: the next run looks again"
    )


def closed_sizes(
    files: LeaderFiles, partition: TopicIdPartition, start_offset: int, end_offset: int, *, has_topic_id: bool = True
) -> list[int]:
    """Return the bytes of each closed segment with any offset from `start_offset` on, and none above `end_offset`.

    Raises as find_directory and list_leader_segments.
    """
    directory = find_directory(files, partition, has_topic_id=has_topic_id)
    return [
        segment.size
        for segment in list_leader_segments(directory)
        if segment.end_offset is not None and start_offset <= segment.end_offset <= end_offset
    ]
