"""Looks at the partitions of a log directory, for tests."""

from __future__ import annotations

from support.remote_logs import RemoteLogFiles
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import SegmentSource


def source_of(files: RemoteLogFiles, *, end_is_stable: bool = False) -> LogDirectorySource:
    return LogDirectorySource((files.log_directory,), None, end_is_stable)


def look(files: RemoteLogFiles, *, end_is_stable: bool = False) -> PartitionLog:
    [found] = source_of(files, end_is_stable=end_is_stable).partitions()
    assert isinstance(found, PartitionLog), found
    return found


def why_unreadable(source: SegmentSource) -> dict[str, str]:
    return {found.partition: found.reason for found in source.partitions() if isinstance(found, UnreadablePartition)}
