"""Find intervals of a table with records that were copied only after the export.

A run at the end of a day lacks the records of segments that are still open. The manifest names the partitions that were
not copied past the interval's end (`not_reached`), and all partitions that had been copied at all (`partitions`). An
interval is exported again if a partition of `not_reached` is now copied past the interval's end, or if a partition that
is not in `partitions` has records before that end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import MANIFEST, SUCCESS, ExportManifest, Interval, TableFolder
from tiered_storage.remote_log.tables.overwrite_guard import OverwriteGuard
from tiered_storage.remote_log.tables.planning import TablePlan


@dataclass(frozen=True, slots=True)
class IncompleteInterval:
    """An interval that may lack records, and why it is not exported again."""

    interval: Interval
    reason: str


@dataclass(frozen=True, slots=True)
class LateIntervals:
    """The intervals of a table that may lack records, the latest first: those to export again, and the others."""

    due: tuple[ExportRequest, ...] = ()
    incomplete: tuple[IncompleteInterval, ...] = ()


def find_late(
    folder: TableFolder, plan: TablePlan, request: ExportRequest, begin: Callable[[TopicIdPartition], int | None]
) -> LateIntervals:
    """Return the intervals below `folder`, except that of `request`, that may lack records of `plan`.

    Reads every manifest. `begin` returns the first timestamp (ms) of a partition. Raises what the store raises.
    """
    contents = {(interval, name) for interval, name in folder.contents() if name in {MANIFEST, SUCCESS}}
    every = {interval for interval, name in contents if name == MANIFEST} - {request.interval}
    found = sorted(every, key=lambda each: each.begin, reverse=True)
    judge = _Judge(plan, request, begin, {interval for interval, name in contents if name == SUCCESS})
    manifests = concurrent_map(lambda each: _read(folder, each), found)
    judged = [judge.judged(*each) for each in zip(found, manifests, strict=True)]
    return LateIntervals(
        tuple(each for each in judged if each is not None and not isinstance(each, IncompleteInterval)),
        tuple(each for each in judged if isinstance(each, IncompleteInterval)),
    )


def _read(folder: TableFolder, interval: Interval) -> ExportManifest | IncompleteInterval | None:
    """Return an interval's manifest; None if its folder has been removed."""
    try:
        return folder.manifest(interval)
    except (RemoteObjectCorruptError, LaterVersionError) as error:
        return IncompleteInterval(interval, str(error))


class _Judge:
    """Judges intervals by `plan`; `committed` are those that have their _SUCCESS."""

    def __init__(
        self,
        plan: TablePlan,
        request: ExportRequest,
        begin: Callable[[TopicIdPartition], int | None],
        committed: Collection[Interval],
    ) -> None:
        self._plan = plan
        self._request = request
        self._begin_of = cache(begin)
        self._committed = committed

    def judged(
        self, interval: Interval, manifest: ExportManifest | IncompleteInterval | None
    ) -> ExportRequest | IncompleteInterval | None:
        """Return the export of an interval that is due, or why one may lack records; None if it is complete."""
        if manifest is None or isinstance(manifest, IncompleteInterval):
            return manifest
        again = self._request.again(interval, manifest)
        is_due = interval not in self._committed or self._has_new_partitions(manifest)
        if not is_due and not manifest.not_reached:
            return None
        if (reason := OverwriteGuard(manifest, self._plan).hindrance) is not None:
            return IncompleteInterval(interval, reason)
        if is_due or self._reaches(manifest, again):
            return again
        return IncompleteInterval(interval, "no records past its end are copied yet")

    def _has_new_partitions(self, manifest: ExportManifest) -> bool:
        """Return whether partitions that were first copied after the export have records before the interval's end."""
        named = (each.topic_id_partition for each in self._plan.partitions)
        begins = (self._begin_of(each) for each in named if each.partition not in manifest.partitions)
        return any(begin is not None and begin < manifest.end for begin in begins)

    def _reaches(self, manifest: ExportManifest, again: ExportRequest) -> bool:
        """Return whether a partition that was not copied past the interval's end is now."""
        rows = again.table_query.rows
        reached = (each.topic_id_partition.partition for each in self._plan.partitions if each.has_all(rows))
        return not set(manifest.not_reached).isdisjoint(reached)


def first_timestamp(
    metadata: RemoteLogMetadataManager, storage: RemoteStorageManager, partition: TopicIdPartition
) -> int | None:
    """Return when the first copied segment of a partition begins (ms): -1 if unknown, None if nothing is copied.

    Raises what the store raises.
    """
    segments = metadata.list_remote_log_segments(partition)
    copied = (each for each in segments if each.state is SegmentState.COPY_SEGMENT_FINISHED)
    first = min(copied, key=lambda each: each.start_offset, default=None)
    if first is None:
        return None
    try:
        raw = storage.fetch_index(first, IndexKind.MANIFEST)
        begin = Manifest.parse(raw, str(first.segment_id)).first_timestamp
    except (RemoteObjectNotFoundError, RemoteObjectCorruptError, LaterVersionError):
        return -1
    return -1 if begin is None else begin
