"""One batch of a deletion: delete the objects of marked segments, and then write DELETE_SEGMENT_FINISHED.

The segments of a batch may be of several partitions, each under its own lease. A segment that the store could not
delete stays in DELETE_SEGMENT_STARTED, and is listed as a failed deletion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tiered_storage.errors import RemoteMetadataError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, write_partition_states
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import delete_singly

LeasedSegment: TypeAlias = tuple[RemoteLogSegmentMetadata, Lease]
"""A marked segment, and the lease of its partition."""


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """The deleted remote segments, the failures, and the partitions held by somebody else.

    `stopped` is why the run ended early: a person stopped all deletions meanwhile.
    """

    deleted: tuple[RemoteLogSegmentMetadata, ...]
    failures: tuple[Finding, ...]
    left: tuple[Finding, ...]
    stopped: str | None = None


@dataclass(slots=True)
class Found:
    """The results of a run so far."""

    deleted: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def fail(self, partition: TopicIdPartition, error: object) -> None:
        """Record a failure in `partition`."""
        self.failures.append(Finding(str(partition), str(error)))

    def report(self, stopped: str | None = None) -> DeletionReport:
        """Return the report."""
        return DeletionReport(tuple(self.deleted), tuple(self.failures), tuple(self.left), stopped)


@dataclass(frozen=True, slots=True)
class SegmentDeleter:
    """Deletes the given segments; the caller checks whether that is allowed."""

    context: RemoteLogContext
    on_moved: OnMoved = unreported
    """Is called for each deleted segment."""

    def delete(self, batch: Sequence[LeasedSegment], found: Found) -> dict[TopicIdPartition, RemoteMetadataError]:
        """Delete a batch, and return the partitions whose metadata could not be updated, and why."""
        segments = [segment for segment, _ in batch]
        failed = self._delete_objects(segments)
        now, ended = self.context.clock(), SegmentState.DELETE_SEGMENT_FINISHED
        gone = [(segment, lease) for segment, lease in batch if segment.segment_id.id not in failed]
        steps = [(RemoteLogSegmentMetadataUpdate(segment.segment_id, ended, now), lease) for segment, lease in gone]
        refused: dict[TopicIdPartition, RemoteMetadataError] = {}
        for (segment, _), outcome in zip(gone, self.context.segments.update_remote_log_segments(steps), strict=True):
            if isinstance(outcome, RemoteLogSegmentMetadata):
                found.deleted.append(outcome)
                self.on_moved(outcome.size, 1)
            else:
                refused[segment.topic_id_partition] = outcome
        self.note([segment for segment in segments if segment.segment_id.id in failed], failed, found)
        self.context.safety.forget_failures(segment.segment_id for segment, _ in gone)
        return refused

    def note(self, stuck: Sequence[RemoteLogSegmentMetadata], reasons: Mapping[str, object], found: Found) -> None:
        """List `stuck` as failed deletions, with the reason of each by its segment id."""
        self.context.safety.note_failures(
            {one.segment_id: str(reasons[one.segment_id.id]) for one in stuck}, self.context.clock()
        )
        for segment in stuck:
            found.fail(segment.topic_id_partition, f"{segment.segment_id}: {reasons[segment.segment_id.id]}")

    def forget_marks(self, leases: Sequence[Lease], gone: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Remove the `gone` segments from the partition manifests in the store.

        If that fails nothing is wrong: the next write of the document removes them.
        """
        ended: defaultdict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        for segment in gone:
            if segment.custom_metadata is not None:
                ended[segment.topic_id_partition].append(segment)
        stored: list[tuple[Lease, StoredState]] = []
        for lease in leases:
            partition = lease.topic_id_partition
            if partition not in ended:
                continue
            state = self.context.segments.partition_state(partition)
            if StoredState.of(state, (), ended[partition]).marked:
                stored.append((lease, StoredState.of(state, self.context.segments.list_remote_log_segments(partition))))
        write_partition_states(self.context.storage, self.context.leases, stored, self.context.clock())

    def _delete_objects(self, batch: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        if (storage := as_listable(self.context.storage)) is not None:
            return storage.delete_segments(batch)
        return delete_singly(self.context.storage, batch)
