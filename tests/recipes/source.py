"""The logs in a tar archive of a log directory, as an example of a SegmentSource."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.opening import SourceKind
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    SegmentLocation,
    UnreadablePartition,
)
from tiered_storage.remote_log.source.segment_source import LocalTrim, OpenSegment, SegmentSource
from tiered_storage.settings.settings import Settings

SCHEME = "archive"


def _archived(segment: LocalSegment) -> LocalSegment:
    """Return `segment`, a file of the unpacked archive, with the location that any host can open."""
    path = Path(segment.location)
    return replace(segment, location=SegmentLocation(f"{SCHEME}://{path.parent.name}/{path.name}"))


class NoTrim:
    """The LocalTrim of an archive, which is read-only."""

    def ensure_removable(self, segments: Sequence[LocalSegment]) -> None:
        if segments:
            raise InvalidLogDirectoryError(f"{segments[0].location}: an archive is never trimmed")

    def trim(
        self,
        partition: TopicIdPartition,  # noqa: ARG002 -- the border's
        segments: Sequence[LocalSegment],
        new_local_start: int,
        still_due: Callable[[], int] | None = None,  # noqa: ARG002 -- the border's
    ) -> int:
        self.ensure_removable(segments)
        return new_local_start


class ArchivedSegment(LogDirectorySegment):
    """A segment of the unpacked archive."""

    def siblings(self) -> Sequence[LocalSegment]:
        return [_archived(segment) for segment in super().siblings()]


@dataclass(frozen=True, slots=True)
class ArchivedLogs:
    """The SegmentSource of the archive that is `unpacked` there."""

    unpacked: LogDirectorySource

    @property
    def is_configured(self) -> bool:
        return True

    @property
    def shows_segments(self) -> bool:
        return True

    @property
    def access(self) -> Mapping[str, str]:
        return {}

    @property
    def notices(self) -> Sequence[str]:
        return self.unpacked.notices

    @property
    def local_trim(self) -> LocalTrim:
        return NoTrim()

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        return (_log(found) if isinstance(found, PartitionLog) else found for found in self.unpacked.partitions())

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        return self.unpacked.names()

    def named(self, topic: str, number: int) -> Sequence[NamedPartition | UnreadablePartition]:
        return self.unpacked.named(topic, number)

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        found = self.unpacked.partition(partition)
        return None if found is None else _log(found)

    def while_trimming(self, segment: LocalSegment) -> SegmentSource:  # noqa: ARG002 -- the border's
        return self

    def close(self) -> None:
        """The unpacked files stay for other processes."""


def _log(found: PartitionLog) -> PartitionLog:
    return replace(found, segments=tuple(_archived(segment) for segment in found.segments))


def archived_logs(archive: Path, scratch: Path) -> SourceKind:
    """Return the kind of source that reads `archive`, each host by way of a folder `scratch` of its own."""

    def unpacked() -> Path:
        if not scratch.exists():
            with tarfile.open(archive) as opened:
                opened.extractall(scratch, filter="data")
        return scratch

    def opens(settings: Settings, _: Mapping[str, str]) -> SegmentSource:
        return ArchivedLogs(LogDirectorySource((unpacked(),), settings.cluster_id, settings.log_end_is_stable))

    def opens_segment(location: SegmentLocation, history: ProducerHistory | None) -> OpenSegment:
        inside = location.removeprefix(f"{SCHEME}://")
        return ArchivedSegment.at(SegmentLocation(str(unpacked() / inside)), history)

    return SourceKind(lambda settings: not settings.log_dirs, opens, opens_segment)
