"""The content of a partition's page; what cannot be read leaves the rest intact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tiered_storage.clock import wall_clock
from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.safety import DeletionFailure
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import Isolation, OffsetSpec
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.segment_source import first_timestamp
from tiered_storage_airflow.read_service.partitions import Asked
from tiered_storage_airflow.read_service.routes.metadata import describe
from tiered_storage_airflow.read_service.routes.schemas import PartitionAnswer
from tiered_storage_airflow.read_service.tiers import Tiers

MOST_ROWS = 50


@dataclass(frozen=True, slots=True)
class Times:
    """The times (ms) of a partition's first and last records, and of the first one in its active segment.

    None: there is none, or it is not known.
    """

    first: int | None
    last: int | None
    active: int | None


@dataclass(frozen=True, slots=True)
class Listed:
    """At most MOST_ROWS of each: copies under way, segments from an offset on, deletions that failed.

    `next_offset` is where the segments continue; None: those were the last.
    """

    under_way: Sequence[RemoteLogSegmentMetadata]
    segments: Sequence[RemoteLogSegmentMetadata]
    next_offset: int | None
    failures: Sequence[DeletionFailure]


@dataclass(frozen=True, slots=True)
class PartitionContent:
    """The content of a partition's page at `now` (ms); its segments from offset `start` on."""

    answer: PartitionAnswer
    snapshot: PartitionSnapshot
    times: Times
    listed: Listed
    now: int
    stuck_after: int
    may_read: bool
    start: int


async def look_up(asked: Asked, start: int, *, may_read: bool) -> PartitionContent:
    """Look everything up."""
    service, partition = asked.service, asked.partition
    snapshot = await service.tiers.snapshot(partition)
    return PartitionContent(
        answer=await describe(service, partition),
        snapshot=snapshot,
        times=Times(
            await _time_of(service.tiers, partition, 0),
            await _time_of(service.tiers, partition, OffsetSpec.MAX_TIMESTAMP),
            await service.threads.asking.run(lambda: _active_since(snapshot)),
        ),
        listed=await service.threads.asking.run(lambda: _list(service.log, partition, start)),
        now=wall_clock(),
        stuck_after=service.log.context.settings.copy_stuck_after_ms,
        may_read=may_read,
        start=start,
    )


async def _time_of(tiers: Tiers, partition: TopicIdPartition, spec: OffsetSpec | int) -> int | None:
    """Return a record's time (ms); None if there is none, or if data are lost or damaged."""
    try:
        found = await tiers.offset(partition, spec, Isolation.READ_UNCOMMITTED, visible_only=True)
    except TieredStorageError:
        return None
    return None if found is None or found.timestamp < 0 else found.timestamp


def _active_since(snapshot: PartitionSnapshot) -> int | None:
    if snapshot.local is None or not snapshot.local.segments or not snapshot.local.segments[-1].is_active:
        return None
    try:
        return first_timestamp(open_segment(snapshot.local.segments[-1].location))
    except (TieredStorageError, OSError):
        return None


def _list(log: RemoteLogManager, partition: TopicIdPartition, start: int) -> Listed:
    """Read all segments and keep those that are shown."""
    under_way: list[RemoteLogSegmentMetadata] = []
    due: list[RemoteLogSegmentMetadata] = []
    for segment in log.context.segments.list_remote_log_segments(partition):
        if segment.state is SegmentState.COPY_SEGMENT_STARTED and len(under_way) < MOST_ROWS:
            under_way.append(segment)
        if segment.end_offset >= start and len(due) <= MOST_ROWS:
            due.append(segment)
    selection = Selection(re.escape(partition.topic), frozenset({partition.partition}))
    failed = log.context.store.safety.failures(selection)
    failures = list(islice((each for each in failed if each.segment_id.topic_id_partition == partition), MOST_ROWS))
    following = due[MOST_ROWS].start_offset if len(due) > MOST_ROWS else None
    return Listed(under_way, due[:MOST_ROWS], following, failures)
