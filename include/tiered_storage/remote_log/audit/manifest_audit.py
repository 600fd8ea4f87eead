"""Compare the partition manifest in the store with the metadata.

The document is written first, so the metadata are never ahead of it. After a killed writer it may be one step ahead; if
that remains for long, it is wrong too, since a rebuild would use it. A lineage may be longer in either of the two:
only contradictions count. A marked segment counts only if the document lists it although it is still read: a rebuild
would mark it, and it may be the last copy. If one is missing from the list, a rebuild shows again what was to be
deleted, and loses nothing. Whatever looks wrong is checked a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, kind_of
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.model import PartitionDeleteState, PartitionState, TopicIdPartition
from tiered_storage.remote_log.storage.documents.object_names import PartitionManifestName, partition_manifests_folder
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest, PartitionManifests

_REPAIR = "'tiered-storage repair' writes it again from the metadata"


@dataclass(frozen=True, slots=True)
class ManifestAudit:
    """Audits documents; one written after `young_from` (ms) may be ahead of its writer's next step."""

    context: RemoteLogContext
    manifests: PartitionManifests
    young_from: int

    def look_at(self, partition: TopicIdPartition, listed: Iterable[PartitionManifestName]) -> Anomaly | None:
        """Return the anomaly of the newest document of `partition`, of which `listed` exist; None if there is none.

        Costs one small read if there is none. Raises what store and metadata raise, and LaterVersionError.
        """
        newest = max((name.fencing_number for name in listed if not name.temporary), default=None)
        if self._look(partition, newest) is None:
            return None
        # Again: a writer may have been at work since the listing.
        before = self.context.segments.partition_state(partition)
        return self._look(partition, self.manifests.newest_number(partition), before)

    def _look(
        self, partition: TopicIdPartition, newest: int | None, before: PartitionState | None = None
    ) -> Anomaly | None:
        """Check the document `newest`; `before` is the state in the metadata before it was known to be the newest."""
        expected = before or self.context.segments.partition_state(partition)
        if newest is None:
            return self._missing(partition, expected)
        if newest > self.context.leases.fencing_number(partition):
            # The metadata are older than the store, which the audit reports as a whole: nothing in them is reliable.
            return None
        name = PartitionManifestName(partition, newest).name
        try:
            manifest = self.manifests.read_numbered(partition, newest)
        except (RemoteObjectCorruptError, RemoteObjectNotFoundError) as error:
            message = f"{error}; until then a rebuild would not know the global log start: {_REPAIR}"
            return Anomaly(kind_of(error), name, message, partition)
        wrong = self._disagreement(manifest, expected) or self._marked_in_vain(manifest)
        if wrong is None:
            return None
        return Anomaly(AnomalyKind.WRONG_CHECKSUM, name, f"{wrong}: {_REPAIR}", partition)

    def _missing(self, partition: TopicIdPartition, state: PartitionState) -> Anomaly | None:
        if state.delete_state is PartitionDeleteState.FINISHED:
            # Earlier releases wrote none.
            return None
        decided = state.log_start_offset is not None or state.delete_state is not None
        if not decided and not finished(list(self.context.segments.list_remote_log_segments(partition))):
            return None
        message = f"the partition has no document: a rebuild would not know the global log start; {_REPAIR}"
        return Anomaly(AnomalyKind.MISSING_OBJECT, partition_manifests_folder(partition), message, partition)

    def _marked_in_vain(self, manifest: PartitionManifest) -> str | None:
        if not manifest.marked or manifest.written_at >= self.young_from:
            return None
        named = frozenset(manifest.marked)
        known = finished(list(self.context.segments.list_remote_log_segments(manifest.topic_id_partition)))
        count = sum(segment.segment_id.id in named for segment in known)
        return f"lists {count} segments as marked for deletion that readers still get" if count else None

    def _disagreement(self, manifest: PartitionManifest, known: PartitionState) -> str | None:
        stored = manifest.state
        is_settled = manifest.written_at < self.young_from
        if known.delete_state != stored.delete_state and (is_settled or _step(stored) < _step(known)):
            return f"has the deletion {_said(stored.delete_state)}, the metadata {_said(known.delete_state)}"
        if known.delete_state is PartitionDeleteState.FINISHED:
            return None
        ours, theirs = known.log_start_offset, stored.log_start_offset
        if ours != theirs and (is_settled or theirs is None or (ours is not None and theirs < ours)):
            return f"has log start {theirs}, the metadata {ours}"
        if is_settled and (entry := _contradicted(stored.lineage, known.lineage)):
            return f"has leader epoch {entry.epoch} from offset {entry.start_offset} on, the metadata do not"
        return None


def _step(state: PartitionState) -> int:
    return -1 if state.delete_state is None else int(state.delete_state)


def _said(deletion: PartitionDeleteState | None) -> str:
    return "none" if deletion is None else deletion.name


def _contradicted(stored: Iterable[EpochEntry], known: Iterable[EpochEntry]) -> EpochEntry | None:
    """Return an entry of `stored` that contradicts `known`: it has another start, or another epoch at its start."""
    starts = {entry.epoch: entry.start_offset for entry in known}
    epochs = {start: epoch for epoch, start in starts.items()}
    for entry in stored:
        if starts.get(entry.epoch, entry.start_offset) != entry.start_offset:
            return entry
        if epochs.get(entry.start_offset, entry.epoch) != entry.epoch:
            return entry
    return None
