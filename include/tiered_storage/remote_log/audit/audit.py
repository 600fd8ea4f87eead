"""The audit: compare the store with the metadata, without changing either.

Quick: every object in the metadata exists with its size, there are no others, no offset is missing or held twice, and
each partition manifest agrees with the metadata. Deep: every byte is also read back and checked; see deep_audit.py.
Copies and deletions under way are not anomalies: whatever looks wrong is checked a second time. At most one partition
of the store is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.audit.manifest_audit import ManifestAudit
from tiered_storage.remote_log.audit.offsets import LocalLogs, offset_anomalies, partial_overlaps, reaches_too_far
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, AuditReport, AuditTally, kind_of
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.storage.documents.object_names import (
    RESERVED,
    ObjectKind,
    partition_folder,
    segment_object_names,
)
from tiered_storage.remote_log.storage.listable_storage import (
    ListableStorage,
    ListedObject,
    list_by_partition,
    listing_storage,
)

_UNSETTLED = {SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED}

DeepCheck = Callable[[RemoteLogSegmentMetadata], Sequence[Anomaly]]
"""Reads back a finished segment, whose objects have the right sizes, and returns its anomalies."""


def audit_remote_log(
    context: RemoteLogContext,
    selection: Selection,
    *,
    local_logs: LocalLogs | None = None,
    deep: DeepCheck | None = None,
) -> AuditReport:
    """Audit the selected partitions, and the unreferenced objects in them and outside of all partitions.

    An unreferenced object counts once it is older than remote.log.orphan.grace.ms. If `local_logs` are given, the two
    tiers must meet. Raises ConfigurationError for a store that cannot be listed, and errors of store and metadata that
    are not specific to a partition.
    """
    now, storage = context.clock(), listing_storage(context.storage)
    young_from = now - context.settings.remote_log_orphan_grace_ms
    audit = _Audit(context, storage, young_from, local_logs, deep, AuditTally.begun_at(now))
    audit.tally.unseen.extend(local_logs.unseen if local_logs else ())
    # The store first: the metadata of everything seen there were written before it.
    for partition, listed in list_by_partition(storage):
        if partition is None:
            audit.look_at_foreign(listed)
        elif selection.matches(partition.topic, partition.partition):
            audit.look_at(partition, {found.name: found for found in listed})
    for partition in context.segments.list_partitions():
        if partition not in audit.seen and selection.matches(partition.topic, partition.partition):
            audit.look_at(partition, {})
    return audit.tally.report()


@dataclass(frozen=True, slots=True)
class _Audit:
    """One audit under way; objects changed after `young_from` (ms) are too young to be orphans."""

    context: RemoteLogContext
    storage: ListableStorage
    young_from: int
    local_logs: LocalLogs | None
    deep: DeepCheck | None
    tally: AuditTally
    seen: set[TopicIdPartition] = field(default_factory=set)

    def look_at(self, partition: TopicIdPartition, listed: Mapping[str, ListedObject]) -> None:
        """Audit one partition; `listed` are all of its objects."""
        segments = list(self.context.segments.list_remote_log_segments(partition))
        suspicious = self._unreferenced(listed, segments)
        self.tally.objects += sum(found.document is None for found in listed.values())
        # A renamed topic's folder can be listed in two parts: then its segments were checked already.
        if partition not in self.seen:
            self.seen.add(partition)
            self.tally.looked_at(partition)
            self._notice_unfinished(partition, segments, listed)
            self._look_at_manifest(partition, listed)
            known = finished(segments)
            self.tally.segments += len(known)
            self.tally.size += sum(segment.size for segment in known)
            self.tally.add(self._segment_anomalies(partition, known, listed))
            outdated = tuple(self._outdated(partition, listed, segments))
            self.tally.add(outdated)
            # Objects that old metadata lack may exist in the store.
            kinds = {AnomalyKind.OVERLAP} if outdated else set(AnomalyKind)
            self.tally.add(each for each in self._offset_anomalies(partition, segments) if each.kind in kinds)
        self.tally.add(self._unreferenced_anomalies(partition, suspicious))

    def _look_at_manifest(self, partition: TopicIdPartition, listed: Mapping[str, ListedObject]) -> None:
        names = [found.document for found in listed.values() if found.document is not None]
        try:
            manifests = ManifestAudit(self.context, self.storage.partition_manifests, self.young_from)
            wrong = manifests.look_at(partition, names)
        except LaterVersionError as error:
            self.tally.could_not_read_manifest(partition, str(error))
            return
        self.tally.add(() if wrong is None else (wrong,))

    def _notice_unfinished(
        self,
        partition: TopicIdPartition,
        segments: Sequence[RemoteLogSegmentMetadata],
        listed: Mapping[str, ListedObject],
    ) -> None:
        """Report complete uncommitted copies: the local log may be deleted before they are committed."""
        waiting = sum(_is_unfinished(segment, self.young_from) and _is_there(segment, listed) for segment in segments)
        if waiting:
            self.tally.notices.append(
                f"{partition}: {waiting} uncommitted copies are complete in the store: 'tiered-storage repair "
                "--dry-run' shows which of them no other segment covers, and without --dry-run commits those"
            )

    def look_at_foreign(self, listed: Iterable[ListedObject]) -> None:
        """Report objects that are in no partition's folder."""
        for found in listed:
            if found.name.partition("/")[0] in RESERVED:
                continue
            self.tally.objects += 1
            if found.last_modified >= self.young_from:
                self.tally.young += 1
                continue
            message = f"{found.size} bytes, of no partition: another program put it here; remove it, or move it away"
            self.tally.add([Anomaly(AnomalyKind.UNREFERENCED_OBJECT, found.name, message)])

    def _outdated(
        self,
        partition: TopicIdPartition,
        listed: Mapping[str, ListedObject],
        segments: Sequence[RemoteLogSegmentMetadata],
    ) -> Iterator[Anomaly]:
        """Yield an anomaly if the store has complete segments, or a lease's document, that the metadata never had."""
        marked = {
            found.segment.segment_id.id
            for found in listed.values()
            if found.segment is not None
            and found.segment.kind is ObjectKind.COMMIT_MARKER
            and not found.segment.temporary
        }
        unlisted = marked - {segment.segment_id.id for segment in segments}
        unknown = unlisted - self.context.segments.known_segment_ids(partition, unlisted) if unlisted else unlisted
        why = f"the store has {len(unknown)} complete segments that they never had" if unknown else None
        numbers = [found.document.fencing_number for found in listed.values() if found.document is not None]
        if why is None and numbers:
            number = max(numbers)
            given = self.context.leases.fencing_number(partition)
            why = f"lease {number} wrote to the store, but they granted none after {given}" if number > given else None
        if why is not None:
            message = (
                f"{why}: objects that they miss may exist; restore a newer backup of them, or run rebuild-metadata, "
                "before you repair or give up anything"
            )
            yield Anomaly(AnomalyKind.OUTDATED_METADATA, str(partition), message, partition)

    def _segment_anomalies(
        self,
        partition: TopicIdPartition,
        segments: Sequence[RemoteLogSegmentMetadata],
        listed: Mapping[str, ListedObject],
    ) -> Iterator[Anomaly]:
        wrong = [segment for segment in segments if self._seems_wrong(segment, listed)]
        # Again: a copy or a deletion may have ended after the listing.
        now = {found.name: found for found in self._list(partition)} if wrong else {}
        found = [(segment, self._judged(segment, lambda one: self._object_anomalies(one, now))) for segment in wrong]
        if self.deep is not None:
            seen_wrong = {segment.segment_id for segment in wrong}
            sound = [segment for segment in segments if segment.segment_id not in seen_wrong]
            sound += [segment for segment, anomalies in found if anomalies == ()]
            found += [(segment, self._judged(segment, self.deep)) for segment in sound]
        if not any(anomalies for _, anomalies in found):
            return
        still_there = {
            segment.segment_id for segment in finished(self.context.segments.list_remote_log_segments(partition))
        }
        for segment, anomalies in sorted(found, key=lambda each: each[0].start_offset):
            if segment.segment_id in still_there:
                yield from anomalies or ()

    def _seems_wrong(self, segment: RemoteLogSegmentMetadata, listed: Mapping[str, ListedObject]) -> bool:
        try:
            return any(self._object_anomalies(segment, listed))
        except LaterVersionError:
            return True

    def _judged(
        self, segment: RemoteLogSegmentMetadata, look: Callable[[RemoteLogSegmentMetadata], Iterable[Anomaly]]
    ) -> tuple[Anomaly, ...] | None:
        """Return the anomalies that `look` finds; None for an object of a later release, reported separately."""
        later: LaterVersionError | None = None
        anomalies: tuple[Anomaly, ...] = ()
        try:
            anomalies = tuple(look(segment))
        except LaterVersionError as error:
            later = error
        if anomalies:
            later = self.storage.later_version(segment)
        if later is None:
            return anomalies
        self.tally.could_not_read(segment, str(later), is_lasting=True)
        return None

    def _object_anomalies(
        self, segment: RemoteLogSegmentMetadata, listed: Mapping[str, ListedObject]
    ) -> Iterator[Anomaly]:
        try:
            expected = self.storage.expected_objects(segment)
        except (RemoteObjectCorruptError, RemoteObjectNotFoundError) as error:
            yield Anomaly.of_segment(kind_of(error), segment, str(error))
            return
        for name, size in expected.items():
            if name not in listed:
                yield Anomaly.of_segment(AnomalyKind.MISSING_OBJECT, segment, "there is no such object", name)
            elif listed[name].size != size:
                message = f"has {listed[name].size} bytes, {size} were sent"
                yield Anomaly.of_segment(AnomalyKind.WRONG_SIZE, segment, message, name)

    def _offset_anomalies(
        self, partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> Sequence[Anomaly]:
        if partial := partial_overlaps(segments):
            self.tally.notices.append(
                f"{partition}: {partial} segments overlap others in part, since replicas roll segments at different "
                "offsets: readers get each offset once"
            )
        local = self.local_logs.range_of(partition) if self.local_logs else None
        state = self.context.segments.partition_state(partition)
        if not any(offset_anomalies(partition, segments, state, local)) and not reaches_too_far(segments, state, local):
            return ()
        # Again: a leader may have changed, or a trim or an expiry have ended.
        local = self.local_logs.range_now(partition) if self.local_logs else None
        state = self.context.segments.partition_state(partition)
        segments = list(self.context.segments.list_remote_log_segments(partition))
        if ends := reaches_too_far(segments, state, local):
            self.tally.notices.append(
                f"{partition}: the remote log ends with offset {ends[0]}, the local one is stable only up to "
                f"{ends[1]}: is it an old one, or was it truncated?"
            )
        return tuple(offset_anomalies(partition, segments, state, local))

    def _unreferenced(
        self, listed: Mapping[str, ListedObject], segments: Sequence[RemoteLogSegmentMetadata]
    ) -> list[ListedObject]:
        """Return objects that no segment references and that are not young, by the metadata right after the listing."""
        known = {segment.segment_id.id for segment in segments}
        unreferenced = [found for found in listed.values() if not _is_referenced(found, known)]
        old = [found for found in unreferenced if found.last_modified < self.young_from]
        self.tally.young += len(unreferenced) - len(old)
        return old

    def _unreferenced_anomalies(
        self, partition: TopicIdPartition, suspicious: Sequence[ListedObject]
    ) -> Iterator[Anomaly]:
        if not suspicious:
            return
        # Again: a deletion may have ended since the listing.
        there = {found.name for found in self._list(partition)}
        ids = [found.segment.segment_id.id for found in suspicious if found.segment is not None]
        known = self.context.segments.known_segment_ids(partition, ids)
        for found in suspicious:
            if found.name in there:
                yield _unreferenced_anomaly(partition, found, known)

    def _list(self, partition: TopicIdPartition) -> Iterator[ListedObject]:
        return self.storage.list_objects(partition_folder(partition))


def _is_unfinished(segment: RemoteLogSegmentMetadata, young_from: int) -> bool:
    was_never_seen = segment.state in _UNSETTLED and segment.custom_metadata is None
    return was_never_seen and segment.event_timestamp < young_from


def _is_there(segment: RemoteLogSegmentMetadata, listed: Mapping[str, ListedObject]) -> bool:
    names = segment_object_names(segment.segment_id, segment.start_offset)
    return {names.data, names.indexes} <= listed.keys()


def _is_referenced(found: ListedObject, known: set[str]) -> bool:
    if found.document is not None:
        return not found.document.temporary
    return found.segment is not None and not found.segment.temporary and found.segment.segment_id.id in known


def _unreferenced_anomaly(partition: TopicIdPartition, found: ListedObject, known: frozenset[str]) -> Anomaly:
    segment_id = None if found.segment is None else found.segment.segment_id.id
    is_known = segment_id in known or found.document is not None
    if found.document is not None:
        why = "an orphan of a killed writer; repair deletes it, or the next writer of the partition"
    elif found.segment is None:
        why = "it does not have the name of a segment's object: another program put it here; remove it, or move it away"
    elif not is_known:
        why = (
            "the metadata never had its segment: they are older than the store, or were rebuilt; restore a newer "
            "backup of them, or run rebuild-metadata"
        )
    elif found.segment.temporary:
        why = "an orphan of a killed writer; repair deletes it"
    else:
        why = "an orphan: its segment was deleted; repair deletes it"
    message = f"{found.size} bytes, {why}"
    return Anomaly(AnomalyKind.UNREFERENCED_OBJECT, found.name, message, partition, segment_id, is_known)
